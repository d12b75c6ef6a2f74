"""What each cloud offers: the one module outside a cloud's own folder that imports it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from netmgr.documents.sites import HUB
from netmgr.errors import ConfigError
from netmgr.plan.clouds.azure import existing, interface, terraform
from netmgr.plan.clouds.cloud import Cloud, CloudLimits
from netmgr.plan.derive import address_spaces, narrowed, network, segment_subnet
from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import LockDocument
from netmgr.plan.machines import PlannedNode
from netmgr.plan.network import Network
from netmgr.prefixes import Prefix


@dataclass(frozen=True, slots=True)
class Offer:
    """What one cloud offers.

    Attributes:
        terraform: the resources of a whole network, for Terraform.
        interface: one node's network interface, in the subnet of that name.
        narrowing: how a network that loses address space is changed without an outage. Takes
            its name, its prefixes before and after, and the networks it is peered with.
    """

    terraform: Callable[[PlanDocument, Network], str]
    interface: Callable[[PlanDocument, PlannedNode, str], str]
    narrowing: Callable[[str, Sequence[Prefix], Sequence[Prefix], Sequence[str]], str]


OFFERS = {Cloud.AZURE: Offer(terraform.terraform, interface.interface, terraform.narrowing)}


def rendered(plan: PlanDocument, lock: LockDocument, limits: CloudLimits) -> str:
    """The cloud resources of a plan, for Terraform; ConfigError if the cloud has none."""
    return _offer(plan.cloud).terraform(plan, network(plan, lock, limits))


def rendered_interface(plan: PlanDocument, lock: LockDocument, node: PlannedNode) -> str:
    """One node's network interface with its blocks; ConfigError if the cloud has no resources."""
    return _offer(plan.cloud).interface(plan, node, segment_subnet(lock, node))


def _offer(cloud: Cloud) -> Offer:
    if cloud not in OFFERS:
        raise ConfigError(
            f"cloud: {cloud} has no cloud resources; "
            f"set cloud: {' or '.join(OFFERS)} in the plan to render them"
        )
    return OFFERS[cloud]


def narrowings(cloud: Cloud, before: LockDocument | None, after: LockDocument) -> Iterator[str]:
    """What to know before a lock is applied that takes address space from a live network."""
    if cloud not in OFFERS or before is None:
        return
    old, new = address_spaces(before), address_spaces(after)
    was, now = ({name: space.prefixes for name, space in spaces.items()} for spaces in (old, new))
    for name in narrowed(was, now):
        sites = (HUB, new[name].owner)
        # Those that there are already, which still route the lost space to it.
        peers = [peer for peer, space in old.items() if peer != name and space.owner in sites]
        yield OFFERS[cloud].narrowing(name, was[name], now[name], peers)


read_networks = existing.read_networks
"""Reads what a cloud's own tool lists; a second reader will have to recognise its own entries."""
