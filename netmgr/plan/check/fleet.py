"""Compares machines' documents with each other and with the plan.

A document by itself is checked where it is read; this finds what only several show. Hosts of one
cluster may translate the same ranges in the same way, so that one can stand in for another. Drift
is where a document differs from the one that the plan and its lock give the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from netmgr.documents.diagnostics import Diagnostic, KeyPath, Location, listed
from netmgr.documents.node import NodeDocument
from netmgr.documents.sites import HUB, KeyedPrefix, Nat, Role, overlapping, prefixes_of
from netmgr.plan import machines
from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import LockDocument
from netmgr.plan.machines import PlannedHost, PlannedNode
from netmgr.plan.render.node import Documents
from netmgr.prefixes import Prefix, merge


def contradictions(documents: Mapping[str, NodeDocument]) -> Iterator[Diagnostic]:
    """Every contradiction between documents; they are keyed by where they were read from."""
    sources, compared = tuple(documents), tuple(documents.values())
    for check in (_names, _sites, _spokes, _addresses, _translations):
        for message, at, beside, remedy in check(compared):
            here, there = (Location(key[1:], sources[int(key[0])]) for key in (at, beside))
            yield Diagnostic(message, here, there, remedy)


_NAME = ("node", "name")
# Numbers, since `overlapping` orders keys: what a later document says is at fault.
_Contradiction = tuple[str, KeyPath, KeyPath, str]
"""Message, key, other key and remedy; both keys begin with their document's number."""


def _names(documents: Sequence[NodeDocument]) -> Iterator[_Contradiction]:
    first: dict[str, int] = {}
    for number, document in enumerate(documents):
        known = first.setdefault(document.node.name, number)
        if known != number:
            message = f"{document.node.name} is another machine's name, too"
            remedy = "give every machine a name of its own"
            yield message, (number, *_NAME), (known, *_NAME), remedy


def _sites(documents: Sequence[NodeDocument]) -> Iterator[_Contradiction]:
    """Documents with other sites than the first that has any."""
    first = next((number for number, document in enumerate(documents) if document.sites), 0)
    for number, document in enumerate(documents):
        if document.sites != documents[first].sites:
            yield from _other_sites(documents, number, first)


def _other_sites(
    documents: Sequence[NodeDocument], number: int, first: int
) -> Iterator[_Contradiction]:
    remedy = "all machines must know the same sites: render them again from one plan"
    mine, theirs = (
        {site.name: (index, site) for index, site in enumerate(documents[which].sites)}
        for which in (number, first)
    )
    for name in theirs.keys() - mine.keys():
        yield f"{name} is missing", (number, "sites"), (first, "sites", theirs[name][0]), remedy
    for name, (index, site) in mine.items():
        at = (number, "sites", index)
        if name not in theirs:
            yield f"{name} is no site elsewhere", at, (first, "sites"), remedy
        elif site != theirs[name][1]:
            there, other = theirs[name]
            message = f"{name} has {listed(site.every_prefix)}, not {listed(other.every_prefix)}"
            yield message, at, (first, "sites", there), remedy


def _spokes(documents: Sequence[NodeDocument]) -> Iterator[_Contradiction]:
    """Prefixes of a site that are another one's in another document."""
    # Documents repeat all sites, so only the first key of each site's prefix is compared.
    first: dict[tuple[str, Prefix], KeyedPrefix] = {}
    for number, document in enumerate(documents):
        for keyed in prefixes_of(document.sites, (number, "sites")):
            first.setdefault((keyed.owner, keyed.prefix), keyed)
    for later, earlier in overlapping(first.values()):
        if later.owner != earlier.owner:
            message = (
                f"{later.prefix} of {later.owner} overlaps {earlier.prefix} of {earlier.owner}"
            )
            yield message, later.key, earlier.key, "an address is of one site: correct one of them"


def _addresses(documents: Sequence[NodeDocument]) -> Iterator[_Contradiction]:
    """Machines' own addresses, and the ranges they hand out."""
    used: list[KeyedPrefix] = []
    for number, document in enumerate(documents):
        own = [address.prefix for address in document.node.addresses]
        for key, prefixes in ((("node", "addresses"), own), (("ranges",), document.ranges)):
            for index, prefix in enumerate(prefixes):
                used.append(KeyedPrefix(prefix, (number, *key, index), document.node.name))
    for later, earlier in overlapping(used):
        if later.key[0] != earlier.key[0]:
            # Within one document the agent's own validation reports overlaps.
            mine, theirs = _short(later.prefix), _short(earlier.prefix)
            message = f"{mine} of {later.owner} overlaps {theirs} of {earlier.owner}"
            yield message, later.key, earlier.key, "an address has one owner: correct one of them"


def _translations(documents: Sequence[NodeDocument]) -> Iterator[_Contradiction]:
    """Ranges that hosts of several spokes show, or hosts of one spoke in different ways."""
    shown: list[KeyedPrefix] = []
    known: list[tuple[str | None, Nat]] = []
    for number, document in enumerate(documents):
        if document.nat is None:
            continue
        # Hosts of one spoke differ in their own addresses alone.
        way = document.site, document.nat.model_copy(update={"addresses": ()})
        if way in known:
            continue
        known.append(way)
        for index, service in enumerate(document.nat.services):
            key = (number, "nat", "services", index, "vip_range")
            shown.append(KeyedPrefix(service.vip_range, key, document.node.name))
    for later, earlier in overlapping(shown):
        if later.key[0] != earlier.key[0]:
            message = (
                f"{later.prefix} of {later.owner} is claimed by {earlier.owner} as {earlier.prefix}"
            )
            remedy = "let one host translate it, or hosts of one spoke in the same way"
            yield message, later.key, earlier.key, remedy


def _short(prefix: Prefix) -> str:
    return str(prefix.network if prefix.is_address else prefix)


def drift(
    documents: Mapping[str, NodeDocument], plan: PlanDocument, lock: LockDocument, lock_source: str
) -> Iterator[Diagnostic]:
    """Each document's keys that differ, beside the part of the lock that they follow from.

    Documents are keyed by where they were read from; `lock_source` is where the lock was.
    """
    rendered = Documents(plan, lock)
    hosts = {host.name: host for host in machines.hosts(lock)}
    for source, document in documents.items():
        name = document.node.name
        machine = hosts.get(name) or machines.node_named(lock, name)
        for key, message, locked in _differences(document, machine, rendered):
            remedy = "render the document again, or correct the plan"
            here, there = Location(key, source), Location(locked, lock_source)
            yield Diagnostic(message, here, there, remedy)


_Difference = tuple[KeyPath, str, KeyPath]
"""Key of a machine's document, what is so, and the key of the lock that says otherwise."""


def _differences(
    document: NodeDocument, machine: PlannedNode | PlannedHost | None, rendered: Documents
) -> Iterator[_Difference]:
    if machine is None:
        yield _NAME, f"the plan has no machine {document.node.name}", ("clusters",)
        return
    # Both as models, so that a default that is written out is no difference.
    wanted = NodeDocument.model_validate(rendered.of(machine))
    own = _key_of(machine)
    mine, planned = _comparable(document), _comparable(wanted)
    locked = dict.fromkeys(mine, own) | {("routes",): (*own[:2], "nat"), ("internal",): ()}
    if own[0] != HUB:
        locked["nat",] = (*own[:2], "services")
    for key, text in mine.items():
        if text != planned[key]:
            message = f"is {text or 'not given'}, and {planned[key] or 'not given'} by the plan"
            yield key, message, locked[key]
    yield from _unplanned_sites(document, wanted)


def _key_of(machine: PlannedNode | PlannedHost) -> KeyPath:
    """The key of the lock that a machine's addresses follow from."""
    if isinstance(machine, PlannedNode):
        return "clusters", machine.cluster, "node_pools", machine.pool
    if machine.role is Role.HUB_ROUTER:
        return HUB, "routers"
    return "clusters", machine.site, "nat"


def _comparable(document: NodeDocument) -> dict[KeyPath, str]:
    """What a document says, in one form for all ways to write it."""
    translated = ""
    if nat := document.nat:
        pairs = (f"{service.vip_range} for {service.service_cidr}" for service in nat.services)
        addresses = listed(nat.addresses or document.node.addresses)
        translated = f"{listed(pairs)} ({nat.source} by {addresses})"
    return {
        ("role",): document.role,
        ("site",): document.site or "",
        ("node", "addresses"): listed(document.node.addresses),
        # Merged and sorted: two blocks side by side and the prefix of both are the same.
        ("ranges",): listed(merge(document.ranges)),
        ("nat",): translated,
        ("routes",): listed(f"{route.to} via {route.via}" for route in document.routes),
        ("internal",): listed(merge(document.internal)),
    }


def _unplanned_sites(document: NodeDocument, wanted: NodeDocument) -> Iterator[_Difference]:
    known = {site.name: site for site in wanted.sites}
    for index, site in enumerate(document.sites):
        planned = known.pop(site.name, None)
        if planned != site:
            has = f"{planned.name}: {listed(planned.every_prefix)}" if planned else "no site"
            message = f"is {site.name}: {listed(site.every_prefix)}, and {has} by the plan"
            yield ("sites", index), message, _site_key(site.name)
    for name, missing in known.items():
        message = f"has no {name}, which is {name}: {listed(missing.every_prefix)} by the plan"
        yield ("sites",), message, _site_key(name)


def _site_key(name: str) -> KeyPath:
    return (HUB, "prefixes") if name == HUB else ("clusters", name)
