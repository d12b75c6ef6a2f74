"""What a node document says about its machine, compared with the machine before anything is changed.

A document can be sound and still speak of a group, an interface or an address that this
machine has otherwise. Everything here only reads, and runs before the agent makes its first
directory; so a refused document leaves kernel and file system as they were.
"""

from __future__ import annotations

import grp
from collections.abc import Iterator, Mapping
from pathlib import Path

from netmgr import documents
from netmgr.config import NodeDocument
from netmgr.dataplane import rtnetlink
from netmgr.dataplane.netlink import Netlink
from netmgr.documents import KeyPath
from netmgr.errors import ConfigError
from netmgr.prefixes import Address

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
            yield (key,), f"{directory} cannot be made: {error.strerror}"
        else:
            if not present.is_dir():
                yield (key,), f"{present} is no directory"


def _links(document: NodeDocument) -> Iterator[Fault]:
    with Netlink() as kernel:
        names = {link.number: link.name for link in kernel.dump(rtnetlink.dump_links(), rtnetlink.link_of)}
        uplink = document.node.uplink
        if uplink is not None and uplink not in names.values():
            yield ("node", "uplink"), f"this node has no interface {uplink!r}; name one it has, or leave it out"
        if document.cni:
            yield from _own_addresses(document, kernel, names)


def _own_addresses(document: NodeDocument, kernel: Netlink, names: Mapping[int, str]) -> Iterator[Fault]:
    """Ranges that hold an address of the node's links; pods' addresses are on no link of the node."""
    for family in document.families:
        for held, number in kernel.dump(rtnetlink.dump_addresses(family), rtnetlink.address_of):
            address = Address(held.family, held.value)
            for index, block in enumerate(document.ranges):
                if block.holds(address):
                    link = names.get(number, "a link that has gone")
                    yield ("ranges", index), f"{block} holds the node's own address {address} ({link}); take it out"
