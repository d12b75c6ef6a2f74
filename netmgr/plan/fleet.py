"""Machines' documents held against each other: what one hands out, claims or believes must suit all.

A document by itself is checked where it is read; this finds what only several show. Hosts of one
cluster may translate the same ranges in the same way, so that one can stand in for another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from netmgr.agreement import Claim, overlapping
from netmgr.config import NodeDocument
from netmgr.fields import KeyPath
from netmgr.prefixes import Prefix
from netmgr.sites import Nat, Site

ONE_OWNER = "an address has one owner: correct one of them"


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in one of the documents, which are told apart by where they were read from."""

    source: str
    key: KeyPath


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two places that cannot both be right, and what to do."""

    at: Spot
    message: str
    beside: Spot
    remedy: str


def contradictions(documents: Mapping[str, NodeDocument]) -> Iterator[Contradiction]:
    """Everything that documents say against each other, by where they were read from."""
    fleet = _Fleet(tuple(documents), tuple(documents.values()))
    yield from fleet.names()
    yield from fleet.sites()
    yield from fleet.spokes()
    yield from fleet.addresses()
    yield from fleet.translations()


@dataclass(frozen=True, slots=True)
class _Fleet:
    """Places in the documents begin with the document's number."""

    sources: tuple[str, ...]
    documents: tuple[NodeDocument, ...]

    def names(self) -> Iterator[Contradiction]:
        first: dict[str, int] = {}
        for number, document in enumerate(self.documents):
            known = first.setdefault(document.node.name, number)
            if known != number:
                message = f"{document.node.name} is another machine's name, too"
                key = ("node", "name")
                yield self._found((number, *key), message, (known, *key), "give every machine a name of its own")

    def sites(self) -> Iterator[Contradiction]:
        """Documents that know other sites than the first one that knows any."""
        first = next((number for number, document in enumerate(self.documents) if document.sites), None)
        for number, document in enumerate(self.documents if first is not None else ()):
            if first is not None and document.sites != self.documents[first].sites:
                yield from self._other_sites(number, first)

    def _other_sites(self, number: int, first: int) -> Iterator[Contradiction]:
        remedy = "all machines must know the same sites: render them again from one plan"
        mine, theirs = (
            {site.name: (place, site) for place, site in enumerate(self.documents[which].sites)}
            for which in (number, first)
        )
        for name in theirs.keys() - mine.keys():
            yield self._found((number, "sites"), f"{name} is missing", (first, "sites", theirs[name][0]), remedy)
        for name, (place, site) in mine.items():
            if name not in theirs:
                yield self._found((number, "sites", place), f"{name} is no site elsewhere", (first, "sites"), remedy)
            elif site != theirs[name][1]:
                there, other = theirs[name]
                message = f"{name} has {_shown(site)}, not {_shown(other)}"
                yield self._found((number, "sites", place), message, (first, "sites", there), remedy)

    def spokes(self) -> Iterator[Contradiction]:
        """Prefixes of a site that are another one's in another document."""
        claims: dict[tuple[str, object], Claim] = {}
        for number, document in enumerate(self.documents):
            for place, site in enumerate(document.sites):
                for key, prefixes in (("prefixes", site.prefixes), ("services", site.services)):
                    for item, prefix in enumerate(prefixes):
                        spot = (number, "sites", place, key, item)
                        claims.setdefault((site.name, prefix), (prefix, spot, site.name))
        for (prefix, at, name), (other, beside, holder) in overlapping(claims.values()):
            if name != holder:
                message = f"{prefix} of {name} overlaps {other} of {holder}"
                yield self._found(at, message, beside, "an address is of one site: correct one of them")

    def addresses(self) -> Iterator[Contradiction]:
        """Machines' own addresses, and the ranges they hand out."""
        claims: list[Claim] = []
        for number, document in enumerate(self.documents):
            name = document.node.name
            own = enumerate(document.node.addresses)
            claims += [(address.prefix, (number, "node", "addresses", place), name) for place, address in own]
            claims += [(block, (number, "ranges", place), name) for place, block in enumerate(document.ranges)]
        for (prefix, at, name), (other, beside, holder) in overlapping(claims):
            if at[0] != beside[0]:
                message = f"{_text(prefix)} of {name} overlaps {_text(other)} of {holder}"
                yield self._found(at, message, beside, ONE_OWNER)

    def translations(self) -> Iterator[Contradiction]:
        """Ranges that hosts of several spokes show, or hosts of one spoke in different ways."""
        claims: list[Claim] = []
        told: list[tuple[str | None, Nat]] = []
        for number, document in enumerate(self.documents):
            if (nat := document.nat) is None or (document.site, _way(nat)) in told:
                continue
            told.append((document.site, _way(nat)))
            for place, service in enumerate(nat.services):
                claims.append((service.seen, (number, "nat", "services", place, "seen"), document.node.name))
        for (seen, at, name), (other, beside, holder) in overlapping(claims):
            if at[0] != beside[0]:
                message = f"{seen} of {name} is claimed by {holder} as {other}"
                remedy = "let one host translate it, or hosts of one spoke in the same way"
                yield self._found(at, message, beside, remedy)

    def _found(self, at: KeyPath, message: str, beside: KeyPath, remedy: str) -> Contradiction:
        return Contradiction(self._spot(at), message, self._spot(beside), remedy)

    def _spot(self, key: KeyPath) -> Spot:
        return Spot(self.sources[int(key[0])], key[1:])


def _way(nat: Nat) -> Nat:
    """How a host translates, whichever its addresses are."""
    return nat.model_copy(update={"addresses": ()})


def _text(prefix: Prefix) -> str:
    return str(prefix.network if prefix.length == prefix.family.width else prefix)


def _shown(site: Site) -> str:
    return ", ".join(map(str, site.every_prefix))
