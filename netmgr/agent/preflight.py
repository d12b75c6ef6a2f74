"""What a node document says about its machine, compared with the machine before anything is changed.

A document can be sound and still speak of a group, an interface or an address that this
machine has otherwise. Everything here only reads, and runs before the agent makes its first
directory; so a refused document leaves kernel and file system as they were.
"""

from __future__ import annotations

import grp
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from netmgr import documents
from netmgr.config import NodeDocument
from netmgr.dataplane import desired, forwarding, links, rtnetlink
from netmgr.dataplane.links import Link
from netmgr.dataplane.netlink import Netlink
from netmgr.documents import KeyPath
from netmgr.errors import ConfigError, of_system
from netmgr.model import LINK_PREFIX
from netmgr.prefixes import Address, Family, Prefix
from netmgr.sites import Nat, SourceAddress

Fault = tuple[KeyPath, str]


def check(path: Path, document: NodeDocument) -> None:
    """Compare the document read from `path` with this machine.

    Raises:
        ConfigError: they disagree; names file, line, key and reason of every fault.
        KernelError: the kernel does not list its links or addresses.
    """
    faults = [*_reader_group(document), *_directories(document), *_links(document)]
    if faults:
        raise ConfigError("\n".join(f"{documents.place(path, key)}: {reason}" for key, reason in faults))


def group_number(group: str | int) -> int | None:
    """Number of a group that is given by name or number; None for a name this machine does not know."""
    if isinstance(group, int):
        return group
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        return None


def _reader_group(document: NodeDocument) -> Iterator[Fault]:
    group = document.reader_group
    if group is not None and group_number(group) is None:
        yield ("reader_group",), f"this node has no group {group!r}; create it or give a number"


def _directories(document: NodeDocument) -> Iterator[Fault]:
    for key, directory in (("state_dir", document.state_dir), ("run_dir", document.run_dir)):
        try:
            present = next(place for place in (directory, *directory.parents) if place.exists())
        except OSError as error:
            yield (key,), f"cannot be made: {of_system(error)}"
        else:
            if not present.is_dir():
                yield (key,), f"{present} is no directory"


def _links(document: NodeDocument) -> Iterator[Fault]:
    with Netlink() as kernel:
        present = kernel.dump(rtnetlink.dump_links(), links.link_of)
        names = {link.number: link.name for link in present}
        yield from _named_as_pods_links(present)
        uplink = document.node.uplink
        if uplink is not None and uplink not in names.values():
            yield ("node", "uplink"), f"this node has no interface {uplink!r}; name one it has, or leave it out"
        own = {
            Address(held.family, held.value): names.get(number, "a link that has gone")
            for family in Family
            for held, number in kernel.dump(rtnetlink.dump_addresses(family), rtnetlink.address_of)
        }
    translation = list(_translation(document, document.nat, own)) if document.nat else []
    yield from translation
    for index, address in enumerate(document.node.addresses):
        key = ("node", "addresses", index)
        if address not in own and key not in dict(translation):
            yield key, f"no link of this machine has {address}; correct it, or leave it out"
    if document.cni:
        yield from _without_ipv6(document)
        yield from _holding_own({("ranges", index): block for index, block in enumerate(document.ranges)}, own)


def _without_ipv6(document: NodeDocument) -> Iterator[Fault]:
    """Ranges of a family that new links, or the uplink, do not have: every ADD would fail."""
    blocks = [index for index, block in enumerate(document.ranges) if block.family is Family.V6]
    switches = forwarding.sysctls() / "ipv6" / "conf"
    for name in ("default", *([document.node.uplink] if document.node.uplink else [])) if blocks else ():
        switch = switches / name / "disable_ipv6"
        if not switches.exists():
            reason = "the kernel was started without IPv6 (ipv6.disable=1)"
        elif switch.exists() and switch.read_text(encoding="ascii").strip() == "1":
            reason = f"IPv6 is off on this machine; switch it on with sysctl -w net.ipv6.conf.{name}.disable_ipv6=0"
        else:
            continue
        yield ("ranges", blocks[0]), f"{document.ranges[blocks[0]]} is IPv6, and {reason}, or give IPv4 ranges alone"
        return


def _named_as_pods_links(present: Iterable[Link]) -> Iterator[Fault]:
    """Links that the rules would take for pods' by their names, and whose packets they would so judge."""
    for link in present:
        if link.name.startswith(LINK_PREFIX) and not desired.is_host_end(link):
            reason = f"this node has an interface {link.name}; names that begin with {LINK_PREFIX} are pods' links"
            yield ("node",), f"{reason}, by which the rules tell them: rename it"


def _holding_own(blocks: Mapping[KeyPath, Prefix], own: Mapping[Address, str]) -> Iterator[Fault]:
    """Blocks that hold an address of the machine's links, which neither pods nor Services can have."""
    for key, block in blocks.items():
        for address, link in own.items():
            if block.holds(address):
                yield key, f"{block} holds the node's own address {address} ({link}); take it out"


def _translation(document: NodeDocument, nat: Nat, own: Mapping[Address, str]) -> Iterator[Fault]:
    """Addresses that connections are to get, to which no answer would come; ranges that the machine itself is in."""
    key: KeyPath = ("nat", "addresses") if nat.addresses else ("node", "addresses")
    taken = (nat.addresses or document.node.addresses) if nat.source is SourceAddress.SNAT else ()
    families = {item.seen.family for item in nat.services}
    for index, address in enumerate(taken):
        if address.family in families and address not in own:
            yield (*key, index), f"no link of this machine has {address}, so answers to it would not come here; add it"
    for index, item in enumerate(nat.services):
        yield from _holding_own({("nat", "services", index, "seen"): item.seen}, own)
