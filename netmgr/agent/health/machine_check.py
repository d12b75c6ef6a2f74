"""Compares a node document with its machine, before anything is changed.

A valid document may still name a group, an interface or an address that this machine does not
have. Everything here only reads, and runs before the agent makes its first directory, so a refused
document leaves kernel and file system as they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from netmgr.api.server import group_number
from netmgr.dataplane import desired, settings
from netmgr.documents import loader
from netmgr.documents.diagnostics import Diagnostic, KeyPath, error
from netmgr.documents.node import NodeDocument
from netmgr.documents.sites import Nat, SourceAddress
from netmgr.errors import ConfigError, of_system
from netmgr.kernel import links
from netmgr.kernel.links import Link
from netmgr.kernel.netlink import Netlink
from netmgr.model import LINK_PREFIX, PROBE_LINK
from netmgr.prefixes import Address, Family, Prefix

_WHOSE = (
    "if this is another machine's document, use this machine's own, or both give out the same "
    "addresses; if this machine's address has changed, write the new one"
)


def check(path: Path, document: NodeDocument, *, has_mounts: bool = True) -> None:
    """Compare the document read from `path` with this machine.

    A container that has not the agent's mounts sees nothing but the network.

    Raises a ConfigError with file, line, key and reason of every fault.
    """
    checks = (_reader_group, _directories, _cgroups, _links) if has_mounts else (_links,)
    if diagnostics := [diagnostic for look in checks for diagnostic in look(document)]:
        raise ConfigError(
            "\n".join(loader.describe(diagnostic, path) for diagnostic in diagnostics)
        )


def _reader_group(document: NodeDocument) -> Iterator[Diagnostic]:
    group = document.reader_group
    if group is not None and group_number(group) is None:
        message = f"this node has no group {group!r}"
        yield error(message, ("reader_group",), remedy="create it or give a number")


def _directories(document: NodeDocument) -> Iterator[Diagnostic]:
    for key, directory in (("state_dir", document.state_dir), ("run_dir", document.run_dir)):
        try:
            # The nearest one that exists: the agent makes what is missing below it.
            present = next(place for place in (directory, *directory.parents) if place.exists())
        except OSError as fault:
            yield error(f"cannot be made: {of_system(fault)}", (key,))
        else:
            if not present.is_dir():
                yield error(f"{present} is no directory", (key,))


def _cgroups(document: NodeDocument) -> Iterator[Diagnostic]:
    accounting = document.accounting
    if not accounting.host_pods:
        return
    # Loaded only on a node that counts them.
    from netmgr.observer.host_network import uncountable  # noqa: PLC0415  see above

    if fault := uncountable(accounting.cgroup_dir):
        yield error(
            f"host-network pods cannot be counted: {fault}",
            ("accounting", "cgroup_dir"),
            remedy="name the directory of cgroup v2 that holds kubelet's kubepods; or boot the "
            "node with cgroup v2 alone (systemd.unified_cgroup_hierarchy=1); or remove "
            "accounting.host_pods, and their traffic is the node's own",
        )


def _links(document: NodeDocument) -> Iterator[Diagnostic]:
    with Netlink() as kernel:
        present = links.read_links(kernel)
        yield from _named_as_pods_links(present)
        uplink = document.node.uplink
        if uplink is not None and uplink not in {link.name for link in present}:
            message = f"this node has no interface {uplink!r}"
            remedy = "name the one that leads to other nodes"
            yield error(message, ("node", "uplink"), remedy=remedy)
        own = links.read_holders(kernel)
    yield from _addresses(document, own)
    if document.cni:
        yield from _without_ipv6(document)
        for index, block in enumerate(document.ranges):
            yield from _holding_own(block, ("ranges", index), own)


def _addresses(document: NodeDocument, own: Mapping[Address, str]) -> Iterator[Diagnostic]:
    """Addresses that the document says the machine has, and no link of it does."""
    translation = list(_translation(document, document.nat, own)) if document.nat else []
    yield from translation
    reported = {diagnostic.at.key for diagnostic in translation}
    for index, address in enumerate(document.node.addresses):
        key = ("node", "addresses", index)
        if address not in own and key not in reported:
            yield error(f"no link of this machine has {address}", key, remedy=_WHOSE)


def _without_ipv6(document: NodeDocument) -> Iterator[Diagnostic]:
    """Ranges of a family that new links, or the uplink, do not have: every ADD would fail."""
    for index, block in enumerate(document.ranges):
        if block.family is Family.V6 and (reason := _why_no_ipv6(document.node.uplink)):
            message = f"{block} is IPv6, and {reason}, or give IPv4 ranges alone"
            yield error(message, ("ranges", index))
            return


def _why_no_ipv6(uplink: str | None) -> str:
    """Why a new link or the uplink would have no IPv6 address; empty where they can have one."""
    switches = settings.sysctls() / "ipv6" / "conf"
    if not switches.exists():
        return "the kernel was started without IPv6 (ipv6.disable=1)"
    # New links, pods' among them, start with what `default` says.
    for name in filter(None, ("default", uplink)):
        switch = switches / name / "disable_ipv6"
        if switch.exists() and switch.read_text(encoding="ascii").strip() == "1":
            remedy = f"sysctl -w net.ipv6.conf.{name}.disable_ipv6=0"
            return f"IPv6 is off on this machine; switch it on with {remedy}"
    return ""


def _named_as_pods_links(present: Iterable[Link]) -> Iterator[Diagnostic]:
    """Links that the rules would take for pods' by their names."""
    for link in present:
        if link.name.startswith(LINK_PREFIX) and not desired.may_be_host_end(link):
            remedy = f"names that begin with {LINK_PREFIX} are pods' links to the rules: rename it"
            yield error(f"this node has an interface {link.name}", ("node",), remedy=remedy)


def _holding_own(block: Prefix, key: KeyPath, own: Mapping[Address, str]) -> Iterator[Diagnostic]:
    """Addresses of the machine's links in a block, which neither pods nor Services can have."""
    for address, link in own.items():
        # A preflight holds addresses of the ranges; an agent waits for its end.
        if block.holds(address) and link != PROBE_LINK:
            message = f"{block} holds the node's own address {address} ({link})"
            yield error(message, key, remedy="take it out")


def _translation(
    document: NodeDocument, nat: Nat, own: Mapping[Address, str]
) -> Iterator[Diagnostic]:
    """Addresses of NAT to which no answer would come; VIP ranges that the machine itself is in."""
    key: KeyPath = ("nat", "addresses") if nat.addresses else ("node", "addresses")
    taken = (nat.addresses or document.node.addresses) if nat.source is SourceAddress.SNAT else ()
    families = {item.vip_range.family for item in nat.services}
    for index, address in enumerate(taken):
        if address.family in families and address not in own:
            message = f"no link of this machine has {address}, so answers to it would not come here"
            yield error(message, (*key, index), remedy=_WHOSE)
    for index, item in enumerate(nat.services):
        yield from _holding_own(item.vip_range, ("nat", "services", index, "vip_range"), own)
