"""Which rules keep spokes apart: on every machine of a spoke, and on the router between them.

The rules stand behind all counting of the hook. First comes what lets everything else pass by at
most two look-ups, however many spokes there are; behind it one rule for each ordered pair, which
names the pair in its counter. Machines of the hub itself keep nobody apart: the hub reaches all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, permutations

from netmgr.config import NodeDocument
from netmgr.prefixes import Family, Prefix, merge
from netmgr.rules.model import Abilities, Drop, Element, Hook, InSet, Match, Pass, Rule, SetSpec, Side, outside
from netmgr.sites import HUB, Role

LINK_SCOPE = (Prefix.parse("fe80::/10"), Prefix.parse("ff02::/16"))
"""What never leaves its link (RFC 4291); neighbours must find each other before anything of theirs can be judged."""

FROM, TO = Side.SOURCE, Side.DESTINATION


@dataclass(frozen=True)
class Spoke:
    """One spoke, and every address that its packets can carry here."""

    name: str
    prefixes: tuple[Prefix, ...]


@dataclass(frozen=True)
class Isolation:
    """Spokes that must not meet; `own` is the one whose machine this is, None on the router between them."""

    spokes: tuple[Spoke, ...]
    own: str | None = None

    @classmethod
    def of(cls, document: NodeDocument) -> Isolation | None:
        """What a node document asks for; None where there is nobody to keep apart."""
        router = document.role is Role.HUB_ROUTER
        spokes = tuple(
            Spoke(site.name, (*site.every_prefix, *_behind(document, site.name)))
            for site in document.sites
            if site.name != HUB
        )
        if not spokes or (document.site == HUB and not router):
            return None
        return cls(spokes, None if router else document.site)

    def sets(self, abilities: Abilities) -> dict[SetSpec, frozenset[Element]]:
        """The sets of the rules, and what is in them."""
        found: dict[SetSpec, frozenset[Element]] = {}
        for family in Family:
            if not self._pairs(family):
                continue
            if len(others := self._others(family)) > abilities.compares:
                found[_foreign(family)] = frozenset(others)
            for spoke in self._having(family):
                found[_site(spoke.name, family)] = frozenset(_merged(spoke.prefixes, family))
        if self.own is not None and self._pairs(Family.V6):
            found[_LINK_SCOPE] = frozenset(LINK_SCOPE)
        return found

    def passing(self, hook: Hook, family: Family, abilities: Abilities) -> list[Rule]:
        """What lets packets pass that are of no business here; to stand before the dropping of any family."""
        if not self._pairs(family) or hook not in (Hook.INPUT, Hook.FORWARD, Hook.OUTPUT):
            return []
        others = self._others(family)
        strangers = {side: outside(side, _foreign(family).name, others, abilities.compares) for side in _sides(hook)}
        if self.own is not None:
            on_link = hook is not Hook.FORWARD and family is Family.V6
            near = (InSet(Side.DESTINATION if hook is Hook.INPUT else Side.SOURCE, _LINK_SCOPE.name),)
            return [
                _pass(hook, family, "own", *chain.from_iterable(strangers.values())),
                *([_pass(hook, family, "neighbour discovery", *near)] if on_link else []),
            ]
        if hook is not Hook.FORWARD:
            return []
        within = [
            _pass(hook, family, f"within {spoke.name}", *(InSet(side, _site(spoke.name, family).name) for side in Side))
            for spoke in self._having(family)
        ]
        return [_pass(hook, family, f"hub {side}", *matches) for side, matches in strangers.items()] + within

    def dropping(self, hook: Hook, family: Family) -> list[Rule]:
        """One rule for each ordered pair of spokes that can meet at the hook."""
        return [
            Rule(f"isolation {hook} {origin} {destination} v{family.value}", family, matches, _drop(pair, family))
            for pair in self._pairs(family)
            if (matches := self._matches(hook, family, *pair))
            for origin, destination in [pair]
        ]

    def pairs(self) -> list[tuple[str, str]]:
        """The ordered pairs, from and to, that are kept apart here."""
        return list(dict.fromkeys(pair for family in Family for pair in self._pairs(family)))

    @property
    def others(self) -> tuple[Prefix, ...]:
        """The prefixes of every spoke but the own one."""
        return tuple(prefix for family in Family for prefix in self._others(family))

    def _others(self, family: Family) -> list[Prefix]:
        return _merged((prefix for one in self.spokes if one.name != self.own for prefix in one.prefixes), family)

    def _having(self, family: Family) -> list[Spoke]:
        return [spoke for spoke in self.spokes if any(prefix.family is family for prefix in spoke.prefixes)]

    def _pairs(self, family: Family) -> list[tuple[str, str]]:
        names = [spoke.name for spoke in self._having(family)]
        return [pair for pair in permutations(names, 2) if self.own is None or self.own in pair]

    def _matches(self, hook: Hook, family: Family, origin: str, destination: str) -> tuple[Match, ...]:
        """What tells a packet of the pair; nothing where none can come by.

        At a machine's own hooks the other side is the machine itself, by whatever address.
        """
        whole = InSet(FROM, _site(origin, family).name), InSet(TO, _site(destination, family).name)
        match hook:
            case Hook.FORWARD:
                return whole
            case Hook.INPUT if destination == self.own:
                return whole[:1]
            case Hook.OUTPUT if origin == self.own:
                return whole[1:]
            case _:
                return ()


def _behind(document: NodeDocument, site: str) -> Iterator[Prefix]:
    """A NAT host's packets also carry its Service ranges as they are inside, of its own spoke alone."""
    if document.nat is not None and site == document.site:
        yield from (service.real for service in document.nat.services)


def _sides(hook: Hook) -> tuple[Side, ...]:
    return {Hook.INPUT: (FROM,), Hook.OUTPUT: (TO,)}.get(hook, (FROM, TO))


def _pass(hook: Hook, family: Family, what: str, *matches: Match) -> Rule:
    return Rule(f"isolation {hook} passes {what} v{family.value}", family, matches, Pass())


def _drop(pair: tuple[str, str], family: Family) -> Drop:
    return Drop(f"isolated_{pair[0]}_{pair[1]}_v{family.value}", pair)


def _foreign(family: Family) -> SetSpec:
    return SetSpec(f"foreign{family.value}", family)


_LINK_SCOPE = SetSpec("link_scope6", Family.V6)


def _site(name: str, family: Family) -> SetSpec:
    return SetSpec(f"site_{name}{family.value}", family)


def _merged(prefixes: Iterable[Prefix], family: Family) -> list[Prefix]:
    return merge(prefix for prefix in prefixes if prefix.family is family)
