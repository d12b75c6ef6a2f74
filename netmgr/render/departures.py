"""Where machines' documents say something else than the plan and its lock would have them say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from netmgr.config import NodeDocument
from netmgr.fields import KeyPath
from netmgr.plan import hosts, nodes
from netmgr.plan.document import PlanDocument
from netmgr.plan.fleet import Contradiction, Spot
from netmgr.plan.hosts import PlannedHost
from netmgr.plan.lock import LockDocument
from netmgr.plan.nodes import PlannedNode
from netmgr.prefixes import merge
from netmgr.render.node import Documents
from netmgr.sites import HUB, Role, Site

AGAIN = "render the document again, or correct the plan"


def departures(
    documents: Mapping[str, NodeDocument], plan: PlanDocument, lock: LockDocument, lock_source: str
) -> Iterator[Contradiction]:
    """Each document's keys that differ, beside the part of the lock that they follow from.

    Args:
        documents: by where they were read from.
        plan: the plan.
        lock: its lock, which answers it.
        lock_source: where the lock was read from.
    """
    rendered = Documents(plan, lock)
    planned = {host.name: host for host in hosts.hosts(lock)}
    for source, document in documents.items():
        name = document.node.name
        machine = planned.get(name) or nodes.named(lock, name)
        if machine is None:
            unknown = Spot(source, ("node", "name"))
            yield Contradiction(unknown, f"the plan has no machine {name}", Spot(lock_source, ("clusters",)), AGAIN)
            continue
        mapping = rendered.of_host(machine) if isinstance(machine, PlannedHost) else rendered.of_node(machine)
        wanted = NodeDocument.model_validate(mapping)
        for key, message, locked in (*_own(document, wanted, machine), *_sites(document, wanted)):
            yield Contradiction(Spot(source, key), message, Spot(lock_source, locked), AGAIN)


Departure = tuple[KeyPath, str, KeyPath]
"""Key of a machine's document, what is so, and the key of the lock that says otherwise."""


def _own(found: NodeDocument, wanted: NodeDocument, machine: PlannedNode | PlannedHost) -> Iterator[Departure]:
    """What is the machine's own."""
    here = _place(machine)
    mine, planned = _said(found), _said(wanted)
    locked = dict.fromkeys(mine, here) | {("routes",): (*here[:2], "nat"), ("internal",): ()}
    if here[0] != HUB:
        locked["nat",] = (*here[:2], "services")
    for key, text in mine.items():
        if text != planned[key]:
            yield key, f"is {text or 'not given'}, and {planned[key] or 'not given'} by the plan", locked[key]


def _said(document: NodeDocument) -> dict[KeyPath, str]:
    """What a document says, in one way for all ways to say it."""
    return {
        ("role",): document.role,
        ("site",): document.site or "",
        ("node", "addresses"): ", ".join(map(str, document.node.addresses)),
        ("ranges",): ", ".join(map(str, merge(document.ranges))),
        ("nat",): _nat(document),
        ("routes",): ", ".join(f"{route.to} via {route.via}" for route in document.routes),
        ("internal",): ", ".join(map(str, merge(document.internal))),
    }


def _nat(document: NodeDocument) -> str:
    nat = document.nat
    if nat is None:
        return ""
    services = ", ".join(f"{service.seen} for {service.real}" for service in nat.services)
    addresses = ", ".join(map(str, nat.addresses or document.node.addresses))
    return f"{services} ({nat.translation}, {nat.source} by {addresses})"


def _place(machine: PlannedNode | PlannedHost) -> KeyPath:
    """The key of the lock that a machine's addresses follow from."""
    if isinstance(machine, PlannedNode):
        return ("clusters", machine.cluster, "node_pools", machine.pool)
    return (HUB, "routers") if machine.role is Role.HUB_ROUTER else ("clusters", machine.site, "nat")


def _sites(found: NodeDocument, wanted: NodeDocument) -> Iterator[Departure]:
    known = {site.name: site for site in wanted.sites}
    for place, site in enumerate(found.sites):
        planned = known.pop(site.name, None)
        if planned != site:
            has = _prefixes(planned) if planned else "no site"
            yield ("sites", place), f"is {_prefixes(site)}, and {has} by the plan", _site_key(site.name)
    for name, missing in known.items():
        yield ("sites",), f"has no {name}, which is {_prefixes(missing)} by the plan", _site_key(name)


def _site_key(name: str) -> KeyPath:
    return (HUB, "prefixes") if name == HUB else ("clusters", name)


def _prefixes(site: Site) -> str:
    return f"{site.name}: {', '.join(map(str, site.every_prefix))}"
