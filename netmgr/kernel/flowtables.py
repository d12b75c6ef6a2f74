"""nf_tables' flowtables: what the kernel forwards past all hooks but that of its devices.

A packet that comes in by a device of a flowtable, and belongs to a connection that a rule handed to
it (`flow add`), is sent on at once. It meets neither a chain nor connection tracking
(Documentation/networking/nf_flowtable.rst). Since Linux 6.16 devices may be wildcards, too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from netmgr.errors import Ignoring, KernelError
from netmgr.kernel import netlink, nf_tables
from netmgr.kernel.nf_tables import FAMILY_NAMES, Expression, message
from netmgr.kernel.nf_tables_socket import NO_NF_TABLES, NftSocket

_NEW_FLOWTABLE, _GET_FLOWTABLE, _DELETE_FLOWTABLE = 22, 23, 24
_TABLE, _NAME, _HOOK = 1, 2, 3
_HOOK_NUMBER, _HOOK_PRIORITY, _DEVICES, _DEVICE_NAME, _DEVICE_PREFIX = 1, 2, 3, 1, 2
_NETDEV_INGRESS, _PRIORITY = 0, 0
_PROBE = "netmgr-probe"
_MOST_DEVICES = 255
"""That one message may name: NFT_NETDEVICE_MAX counts one more."""

DEVICES = threading.Lock()
"""Held by whoever adds some, and while rules change, which all packets have to meet."""


@dataclass(frozen=True, slots=True, order=True)
class Flowtable:
    """A flowtable that is there; `table` includes the family, such as `inet netmgr`.

    It also has every device whose name begins with one of `prefixes` (`eth*`).
    """

    table: str
    name: str
    devices: frozenset[str]
    prefixes: frozenset[str] = frozenset()

    def has_any(self, links: Iterable[str]) -> bool:
        return any(link in self.devices or link.startswith(tuple(self.prefixes)) for link in links)

    def __str__(self) -> str:
        return f"{self.name} of table {self.table}"


def read_flowtables(channel: NftSocket) -> list[Flowtable]:
    """All flowtables of the namespace, whosever they are; none on a kernel without them."""
    request = message(
        _GET_FLOWTABLE, b"", "list flowtables", netlink.NLM_F_DUMP, nf_tables.NFPROTO_UNSPEC
    )
    with Ignoring(*NO_NF_TABLES):
        return channel.list_of(request, _flowtable_of)
    return []


def is_supported(channel: NftSocket) -> bool:
    """Whether this kernel has flowtables for both families, and rules that fill them."""
    # The kernel is asked to make them, in a transaction that ends with what cannot be done: nobody
    # has the table that is deleted. So nothing is made.
    flow_add = Expression("flow_offload", {1: _PROBE.encode() + b"\0"})
    impossible = nf_tables.delete_table(f"{_PROBE}-missing")
    try:
        channel.commit(
            [
                nf_tables.new_table(_PROBE),
                new_flowtable(_PROBE, _PROBE),
                nf_tables.new_chain(_PROBE, _PROBE, nf_tables.FORWARD_HOOK),
                nf_tables.add_rule(_PROBE, _PROBE, [flow_add]),
                impossible,
            ]
        )
    except KernelError as error:
        return impossible.text in error.message
    return False


def new_flowtable(table: str, name: str) -> netlink.Operation:
    """Make a flowtable of an inet table, without devices."""
    return _of_devices(_NEW_FLOWTABLE, Flowtable(f"inet {table}", name, frozenset()), ())


def add_devices(flowtable: Flowtable) -> Iterator[netlink.Operation]:
    """Have packets that come in by these devices skip the rules, beside those that already do.

    ENOENT if a device, or the flowtable's table, is gone.
    """
    return _changes(_NEW_FLOWTABLE, flowtable)


def remove_devices(flowtable: Flowtable) -> Iterator[netlink.Operation]:
    """Have packets that come in by these devices meet the rules; ENOENT if one is gone."""
    return _changes(_DELETE_FLOWTABLE, flowtable)


def _changes(kind: int, flowtable: Flowtable) -> Iterator[netlink.Operation]:
    devices = sorted(flowtable.devices)
    for first in range(0, len(devices), _MOST_DEVICES):
        yield _of_devices(kind, flowtable, devices[first : first + _MOST_DEVICES])


def _of_devices(kind: int, flowtable: Flowtable, devices: Sequence[str]) -> netlink.Operation:
    names = b"".join(netlink.encoded({_DEVICE_NAME: device}) for device in devices)
    # Without hook and priority an update is refused (EOPNOTSUPP), though they cannot change.
    hook = {
        _HOOK_NUMBER: netlink.number(_NETDEV_INGRESS),
        _HOOK_PRIORITY: netlink.number(_PRIORITY),
        _DEVICES: names or None,
    }
    table = flowtable.table.split()[1]
    body = netlink.encoded({_TABLE: table, _NAME: flowtable.name, _HOOK: netlink.encoded(hook)})
    if kind == _NEW_FLOWTABLE:
        return message(kind, body, f"add flowtable {flowtable}", netlink.NLM_F_CREATE)
    return message(kind, body, f"remove the devices of flowtable {flowtable}")


def _flowtable_of(body: bytes) -> Flowtable:
    attributes = netlink.attributes(body, netlink.NFGENMSG.size)
    devices = netlink.attributes(attributes.get(_HOOK, b"")).get(_DEVICES, b"")
    names, prefixes = set[str](), set[str]()
    for kind, value in netlink.each_attribute(devices):
        # Linux 6.16.0 to 6.16.5 list a prefix as a name that does not end.
        if kind == _DEVICE_PREFIX or not value.endswith(b"\0"):
            prefixes.add(netlink.string_of(value))
        elif kind == _DEVICE_NAME:
            names.add(netlink.string_of(value))
    return Flowtable(
        f"{FAMILY_NAMES[body[0]]} {netlink.string_of(attributes[_TABLE])}",
        netlink.string_of(attributes[_NAME]),
        frozenset(names),
        frozenset(prefixes),
    )
