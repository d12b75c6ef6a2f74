"""The pod's end of a link: finding its sandbox, and checking what is in it."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Collection, Generator, Iterable, Iterator
from contextlib import contextmanager

from netmgr.dataplane import desired, settings
from netmgr.dataplane.desired import DEFAULT_ROUTES, HOST_MAC
from netmgr.descriptors import closing
from netmgr.documents.node import POD_GATEWAYS
from netmgr.errors import KernelError
from netmgr.kernel import links, netns, offloads, routes
from netmgr.kernel.links import Link, read_addresses, read_links
from netmgr.kernel.neighbours import Neighbour, missing_of
from netmgr.kernel.netlink import Netlink, Reader
from netmgr.kernel.routes import ANY_TABLE, RT_TABLE_LOCAL, RTN_LOCAL, read_routes, read_rules
from netmgr.model import Attachment
from netmgr.prefixes import Address, Family

# The kernel makes a new address usable in less than a millisecond, but from a work queue, which a
# busy machine holds up.
SETTLE_SECONDS = 10.0
_SETTLE_POLL_SECONDS = 0.0002
# Not that of TCP: one segment at a time costs bulk TCP 14 times the processor time, and headers are
# 3 % of what it sends.
_OFFLOADS_OF_SMALL = ("tx-udp-segmentation", "tx-sctp-segmentation")


@contextmanager
def reached(host: Reader, link: Link, path: str) -> Iterator[Netlink | None]:
    """A socket in the sandbox of a link; None if neither this path nor another leads there.

    `host` is a socket in the namespace that `link` is in.
    """
    with contextlib.closing(opened(host, [link.peer_netns], path)) as sandboxes:
        for _, sandbox in sandboxes:
            with channel_in(sandbox) as inside:
                yield inside
            return
    yield None


def opened(
    host: Reader, numbers: Collection[int], path: str = ""
) -> Generator[tuple[int, int], None, None]:
    """Those of the namespaces with these numbers that the path, a mount or a process leads to.

    Each with its number, as a descriptor that is open until the next one. `host` is a socket in the
    namespace that the numbers belong to.
    """
    missing = set(numbers)
    others = netns.places() if missing - {links.HERE} else ()
    # The process that the path names (/proc/PID/ns/net) may have ended, and others live there.
    for place in itertools.chain((path,), others):
        if not missing:
            return
        try:
            sandbox = netns.open_namespace(place)
        except KernelError:
            continue
        with closing(sandbox):
            # Another sandbox may have come to be at the path: the number says whose it is.
            number = host.query(links.show_namespace_id(sandbox), links.namespace_id_of)
            if number in missing:
                missing.remove(number)
                yield number, sandbox


def channel_in(sandbox: int) -> Netlink:
    """A socket in the namespace of this descriptor."""
    with netns.entered(sandbox):
        return Netlink()


def wait_for_addresses(inside: Reader, addresses: Iterable[Address]) -> None:
    """Wait until the kernel accepts packets for those of these addresses that are IPv6.

    Raises:
        KernelError: they are still missing after `SETTLE_SECONDS`.
    """
    # IPv4's local routes are made with their addresses; IPv6's come from a work queue, even without
    # duplicate address detection (addrconf_dad_work).
    wanted = {address for address in addresses if address.family is Family.V6}
    deadline = time.monotonic() + SETTLE_SECONDS
    while wanted and wanted - {
        route.destination.network
        for route in read_routes(
            inside, table=RT_TABLE_LOCAL, kind=RTN_LOCAL, families=(Family.V6,)
        )
    }:
        if time.monotonic() > deadline:
            raise KernelError(
                "wait for new addresses", details="the kernel does not make them local"
            )
        time.sleep(_SETTLE_POLL_SECONDS)


def remove_rules(host: Netlink, link: Link, path: str, table: int) -> None:
    """Remove the rules for a further interface's table from the sandbox of a link.

    `host` is a socket in the namespace of `link`.
    """
    # Routes of a table go with their link, rules do not.
    with reached(host, link, path) as inside:
        if inside is not None:
            rules = [rule for rule in read_rules(inside) if rule.table == table]
            inside.transact([routes.delete_rule(rule) for rule in rules])


def faults(
    inside: Reader, attachment: Attachment, index: int, moved: Collection[Family] = ()
) -> list[str]:
    """What is missing in a sandbox of all that `attach` made, for the pod's end of this index."""
    present = {link.number: link for link in read_links(inside)}
    # It may go after its index was asked for.
    if index not in present:
        return [f"interface {attachment.key.ifname} is missing in the sandbox"]
    link = present[index]
    differences = [] if link.up else [f"interface {link.name} is down in the sandbox"]
    held = {address.network for address, _ in read_addresses(inside, index)}
    lost = [address for address in attachment.addresses if address not in held]
    for family in attachment.families:
        missing = [
            *(f"address {address}" for address in lost if address.family is family),
            *_missing_ways_out(inside, attachment, family, index, is_moved=family in moved),
            *_missing_source_routing(inside, attachment, family, index),
        ]
        differences += [f"{part} is missing in the sandbox" for part in missing]
    return differences


def _missing_ways_out(
    inside: Reader, attachment: Attachment, family: Family, index: int, *, is_moved: bool
) -> Iterator[str]:
    gateway = POD_GATEWAYS[family]
    # In any table but a further interface's own: `sbr` and `vrf`, later in the chain, move them.
    own = desired.route_metric(attachment.key)
    present = {
        (route.destination, route.gateway)
        for route in read_routes(inside, table=ANY_TABLE, oif=index, families=(family,))
        if not own or route.table != own
    }
    wanted = [(gateway.prefix, None)] + ([] if is_moved else [(DEFAULT_ROUTES[family], gateway)])
    for destination, via in wanted:
        if (destination, via) not in present:
            yield f"route to {destination}"
    if missing_of([Neighbour(gateway, HOST_MAC, index)], inside):
        yield f"neighbour {gateway}"


def _missing_source_routing(
    inside: Reader, attachment: Attachment, family: Family, index: int
) -> Iterator[str]:
    wanted = [rule for rule in desired.source_rules(attachment) if rule.source.family is family]
    if not wanted:
        return
    present = set(read_rules(inside, (family,)))
    for rule in wanted:
        if rule not in present:
            yield f"rule of {rule.source.network} for table {rule.table}"
    table = desired.route_metric(attachment.key)
    ways = {
        (route.destination, route.oif, route.gateway)
        for route in read_routes(inside, table=table, families=(family,))
    }
    if (DEFAULT_ROUTES[family], index, POD_GATEWAYS[family]) not in ways:
        yield f"default route of table {table}"


def segment_early(attachment: Attachment) -> None:
    """Have a pod's small packets be what they will be on a wire, before they are charged.

    Raises:
        KernelError: the sandbox is gone, or the kernel refused.
        SetupError: a setting cannot be written.
    """
    # A packet that is segmented later is charged with one header for all segments. So a process
    # without privileges could send twenty times its quota in datagrams of one byte (UDP_SEGMENT),
    # or 1.7 times in TCP segments of 76 (TCP_MAXSEG).
    try:
        with closing(netns.open_namespace(attachment.netns)) as sandbox, netns.entered(sandbox):
            offloads.switch_off(attachment.key.ifname, _OFFLOADS_OF_SMALL)
            settings.bound_segments()
    except OSError as error:
        raise KernelError(f"segment packets of {attachment.key.ifname}", error.errno or 0) from None
