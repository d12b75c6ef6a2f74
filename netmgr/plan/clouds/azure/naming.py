"""How Azure names next hops, IP configurations and machines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

from netmgr.plan.network import NextHop, NodeGroup
from netmgr.prefixes import Family

NEXT_HOPS = {
    NextHop.APPLIANCE: "VirtualAppliance",
    NextHop.INTERNET: "Internet",
    NextHop.NONE: "None",
    NextHop.LOCAL: "VnetLocal",
}


@dataclass(frozen=True, slots=True)
class IpConfiguration:
    """One IP configuration of a network interface."""

    name: str
    primary: bool
    family: Family

    @property
    def version(self) -> str:
        """IPv4 or IPv6."""
        return f"IPv{self.family}"


def configurations(scale_set: NodeGroup) -> Iterator[IpConfiguration]:
    """The node's own address of each family, then one for each block or address of its pods."""
    for family in scale_set.families:
        # The cloud accepts only IPv4 as primary, and exactly one primary an interface.
        yield IpConfiguration(f"node-v{family}", family is Family.V4, family)
    for number in range(scale_set.blocks):
        yield IpConfiguration(f"pods-{number}", primary=False, family=Family.V4)
    if Family.V6 in scale_set.families:
        yield IpConfiguration("pods-v6", primary=False, family=Family.V6)


LONGEST_PREFIX = 58
"""Of 64 characters of a host name, Azure keeps six for the machine's number."""


def computer_prefix(scale_set: NodeGroup) -> str:
    """What its machines' names begin with: a host name has no underscores (RFC 1123).

    One that would be too long ends in a digest of the scale set's name, and so does one of several
    sets of a segment: `<cluster>-<node pool>_0_1` must not become another node pool's name.
    """
    prefix = scale_set.name.replace("_", "-") + "-"
    if len(prefix) <= LONGEST_PREFIX and scale_set.name.count("_") < len("__"):
        return prefix
    digest = f"-{sha256(scale_set.name.encode()).hexdigest()[:8]}-"
    return prefix[: LONGEST_PREFIX - len(digest)] + digest
