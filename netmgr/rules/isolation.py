"""Which rules keep spokes apart: on every machine of a spoke, and on the router between them.

The rules follow all others of the hook. The first ones pass everything else; what has the hub or
the internet at one end takes at most two look-ups, however many spokes there are. On a router of
nftables, one rule then drops and counts all ordered pairs. Elsewhere there is one rule for each
pair, which names it in its counter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, permutations

from netmgr.documents.node import NodeDocument
from netmgr.documents.sites import HUB, Role
from netmgr.prefixes import Family, Prefix, merge
from netmgr.rules import model

# What never leaves its link (RFC 4291).
LINK_SCOPE = (Prefix.parse("fe80::/10"), Prefix.parse("ff02::/16"))

_LINK_SCOPE = model.SetSpec("link_scope6", Family.V6)

# Room for the pairs of 128 spokes. The kernel takes 16 bytes for each at once (nft_set_hash.c).
_PAIRS = 1 << 14

FROM, TO = model.Side.SOURCE, model.Side.DESTINATION
_Sides = Mapping[model.Hook, tuple[model.Side, ...]]
# Where another spoke's address can be, on a spoke's machine: the other side is the machine.
_SIDES: _Sides = {
    model.Hook.INPUT: (FROM,),
    model.Hook.FORWARD: (FROM, TO),
    model.Hook.OUTPUT: (TO,),
}


@dataclass(frozen=True)
class Isolation:
    """Spokes that must not meet.

    `own` is the one whose machine this is, None on the router between them.
    """

    spokes: tuple[model.Spoke, ...]
    own: str | None = None

    @classmethod
    def of(cls, document: NodeDocument) -> Isolation | None:
        """What a node document asks for; None where no spokes are kept apart."""
        router = document.role is Role.HUB_ROUTER
        services = document.nat.services if document.nat else ()
        # A NAT host's packets also carry these, for its own spoke alone.
        carried = tuple(service.service_cidr for service in services)
        spokes = tuple(
            model.Spoke(
                site.name, site.every_prefix + (carried if site.name == document.site else ())
            )
            for site in document.sites
            if site.name != HUB
        )
        # The hub reaches all, so its machines keep nothing apart.
        if not spokes or (document.site == HUB and not router):
            return None
        return cls(spokes, None if router else document.site)

    def sets(self, abilities: model.Abilities) -> model.Sets:
        sets: model.Sets = {}
        for family in filter(self._keeps_apart, Family):
            if len(others := self._others(family)) > abilities.compares:
                sets[model.SetSpec.of_prefixes("foreign", family)] = frozenset(others)
            if self._is_one_rule(abilities):
                sets[self._pair_set(family)] = frozenset()
                continue
            for spoke in self._having(family):
                site = model.SetSpec.of_prefixes(f"site_{spoke.name}", family)
                sets[site] = frozenset(spoke.prefixes)
        if self.own is not None and self._keeps_apart(Family.V6):
            sets[_LINK_SCOPE] = frozenset(LINK_SCOPE)
        return sets

    def passing(
        self, hook: model.Hook, family: Family, abilities: model.Abilities
    ) -> list[model.Rule]:
        """Rules that pass all but packets between spokes; they precede those of `dropping`."""
        sides: _Sides = _SIDES if self.own is not None else {model.Hook.FORWARD: (FROM, TO)}
        if not self._keeps_apart(family) or hook not in sides:
            return []
        others = self._others(family)
        strangers = {
            side: model.outside(side, f"foreign{family}", others, abilities.compares)
            for side in sides[hook]
        }
        if self.own is None:
            passed = self._routed(family, strangers, abilities)
        else:
            # On a spoke's machine, a packet between two spokes has an address of another spoke on
            # one side. One that has none on either side is no business of these rules.
            passed = {"own": tuple(chain.from_iterable(strangers.values()))}
            if hook is not model.Hook.FORWARD and family is Family.V6:
                # Neighbours must find each other before any of their packets can be checked.
                near = model.InSet(TO if hook is model.Hook.INPUT else FROM, _LINK_SCOPE.name)
                passed["neighbour discovery"] = (near,)
        return [
            model.Rule.named(f"isolation {hook} passes {name}", family, matches, model.Return())
            for name, matches in passed.items()
        ]

    def _routed(
        self,
        family: Family,
        strangers: Mapping[model.Side, tuple[model.Match, ...]],
        abilities: model.Abilities,
    ) -> dict[str, tuple[model.Match, ...]]:
        """What the router forwards: the hub's packets, and those within one spoke."""
        # On the router, a packet without a spoke on one side is the hub's.
        passed = {f"hub {side}": matches for side, matches in strangers.items()}
        if not self._is_one_rule(abilities):
            for spoke in self._having(family):
                site = f"site_{spoke.name}{family}"
                passed[f"within {spoke.name}"] = (model.InSet(FROM, site), model.InSet(TO, site))
        return passed

    def dropping(
        self, hook: model.Hook, family: Family, abilities: model.Abilities
    ) -> list[model.Rule]:
        """Rules that count and drop packets between spokes, all that are not passed before."""
        if self._is_one_rule(abilities):
            if hook is not model.Hook.FORWARD or not self._keeps_apart(family):
                return []
            pairs = self._pair_set(family).name
            action = model.DropBetween(pairs, family, self._having(family))
            return [model.Rule.named("isolation forward", family, (), action)]
        rules = []
        # Of 100 spokes these are 9,900 for each family, which take seconds to plan and apply.
        for origin, destination in self._pairs(family):
            if matches := self._matches(hook, family, origin, destination):
                name = f"isolation {hook} {origin} {destination}"
                drop = model.Drop(pair_counter(origin, destination, family))
                rules.append(model.Rule.named(name, family, matches, drop))
        return rules

    def _is_one_rule(self, abilities: model.Abilities) -> bool:
        return self.own is None and abilities.verdict_maps and abilities.dynamic_sets

    def _pair_set(self, family: Family) -> model.SetSpec:
        # A growing set would be made anew, and its counters begin at zero. So it rarely grows.
        spokes = len(self._having(family))
        room = max(_PAIRS, 1 << (spokes * spokes).bit_length())
        return model.SetSpec(f"isolated{family}", family, is_dynamic=True, pairs=room)

    def pairs(self) -> list[tuple[str, str]]:
        """The ordered pairs, from and to, that are kept apart here."""
        return list(dict.fromkeys(pair for family in Family for pair in self._pairs(family)))

    def _others(self, family: Family) -> list[Prefix]:
        spokes = [spoke for spoke in self.spokes if spoke.name != self.own]
        prefixes = chain.from_iterable(spoke.prefixes for spoke in spokes)
        return merge(model.of_family(prefixes, family))

    def _having(self, family: Family) -> tuple[model.Spoke, ...]:
        """The spokes that have prefixes of the family, with these alone, and always `own`."""
        merged = (
            model.Spoke(spoke.name, tuple(merge(model.of_family(spoke.prefixes, family))))
            for spoke in self.spokes
        )
        # A machine may have an address of a family in which its site has no prefix.
        return tuple(spoke for spoke in merged if spoke.prefixes or spoke.name == self.own)

    def _keeps_apart(self, family: Family) -> bool:
        # Pairs are not listed for this: a router may have thousands.
        names = [spoke.name for spoke in self._having(family)]
        return len(names) > 1 and (self.own is None or self.own in names)

    def _pairs(self, family: Family) -> list[tuple[str, str]]:
        names = [spoke.name for spoke in self._having(family)]
        return [pair for pair in permutations(names, 2) if self.own is None or self.own in pair]

    def _matches(
        self, hook: model.Hook, family: Family, origin: str, destination: str
    ) -> tuple[model.Match, ...]:
        # At a machine's own hooks the other side is the machine itself, by whatever address.
        whole = (
            model.InSet(FROM, f"site_{origin}{family}"),
            model.InSet(TO, f"site_{destination}{family}"),
        )
        if hook is model.Hook.FORWARD:
            return whole
        if hook is model.Hook.INPUT and destination == self.own:
            return whole[:1]
        if hook is model.Hook.OUTPUT and origin == self.own:
            return whole[1:]
        return ()


def pair_counter(origin: str, destination: str, family: Family) -> str:
    """The name of the counter of what one spoke sends to another, for example `isolated_a_b_v4`."""
    return f"isolated_{origin}_{destination}_v{family}"
