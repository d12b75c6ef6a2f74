"""Rules that count pods' traffic by class: everything that is forwarded and not internet.

They follow the rules that count the internet, in the same chain, which a pod's internet packets
leave there. What gets here with a pod's address is in some class, and in `internal` if in no other.
What a pod exchanges with its own node is not forwarded and is in no class.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from netmgr.documents.classes import INTERNAL, disjoint
from netmgr.documents.node import NodeDocument
from netmgr.documents.special_use import RESERVED_USE, SPECIAL_USE
from netmgr.model import LINK_PREFIX, Traffic
from netmgr.prefixes import Family, Prefix, merge
from netmgr.rules import model

# Which address is the pod's and which the peer's.
_DIRECTIONS = {
    "out": (model.Side.SOURCE, model.Side.DESTINATION),
    "in": (model.Side.DESTINATION, model.Side.SOURCE),
}

_Class = tuple[str, tuple[Prefix, ...]]
"""A class's name and its prefixes."""


@dataclass(frozen=True)
class Classifier:
    """Disjoint prefixes of each class, by the class's name."""

    pieces: tuple[_Class, ...]
    own_links: bool = True
    """Whether pods' packets come and go by links of ours, and no others do."""

    @classmethod
    def of(cls, document: NodeDocument) -> Classifier | None:
        """What a node document asks for; None without any class."""
        if not (wanted := document.traffic_classes):
            return None
        # The longest prefix decides between classes and `internal`; ranges and sites are internal
        # only where no class has them.
        claims = [
            (prefix, INTERNAL) for prefix in (*SPECIAL_USE, *RESERVED_USE, *document.internal)
        ]
        claims += [(prefix, name) for name, prefixes in wanted.items() for prefix in prefixes]
        pieces = disjoint(claims)
        counted = tuple((name, tuple(pieces[name])) for name in wanted)
        return cls(counted, own_links=document.wires_pods)

    @property
    def traffics(self) -> tuple[Traffic, ...]:
        """What is counted for each pod, beside the internet."""
        names = (*(name for name, _ in self.pieces), INTERNAL)
        return tuple(Traffic(f"{name}-{way}") for name in names for way in ("in", "out"))

    @property
    def prefixes(self) -> tuple[Prefix, ...]:
        """What is not internet because a class has it."""
        return tuple(merge(prefix for _, prefixes in self.pieces for prefix in prefixes))

    def sets(self, abilities: model.Abilities) -> model.Sets:
        if abilities.verdict_maps:
            return {}
        sets: model.Sets = {}
        for family in Family:
            known = self._known(family)
            if len(known) > abilities.compares:
                sets[model.SetSpec.of_prefixes("classes", family)] = frozenset(merge(known))
                for name, prefixes in self._branches(family):
                    members = model.SetSpec.of_prefixes(f"class_{name}", family)
                    sets[members] = frozenset(prefixes)
        return sets

    def rules(
        self, hook: model.Hook, family: Family, abilities: model.Abilities
    ) -> Iterator[model.Rule]:
        if hook is model.Hook.BEFORE_SRCNAT:
            for way in _DIRECTIONS:
                yield from self._counting(way, family, abilities)

    def _counting(
        self, way: str, family: Family, abilities: model.Abilities
    ) -> Iterator[model.Rule]:
        pod, peer = _DIRECTIONS[way]
        links: list[model.Match] = []
        if self.own_links:
            links.append(model.OnLink(pod, f"{LINK_PREFIX}*"))
        if way == "in":
            links.append(model.FORWARDED)
        if abilities.verdict_maps:
            branches = tuple(
                model.Branch(_counter(name, way, family), prefixes)
                for name, prefixes in self._branches(family)
            )
            rest = _counter(INTERNAL, way, family)
            action = model.Classify(f"{way}{family}", peer, pod, branches, rest)
            yield model.Rule.named(f"classes {way}", family, tuple(links), action)
            return
        known = self._known(family)
        # All are compared, or all looked up: the last rule leaves out every class.
        most = abilities.compares if len(known) <= abilities.compares else 0
        for name, prefixes in self._branches(family):
            members = model.inside(peer, f"class_{name}{family}", prefixes, most)
            for suffix, member in members.items():
                counts = model.InSet(pod, _counter(name, way, family))
                matches = (*links, member, counts)
                yield model.Rule.named(
                    f"class {name}{suffix} {way}", family, matches, model.Continue()
                )
        # Without a verdict map a packet goes on after the class that counted it, so the last rule
        # leaves out what is in any class.
        others = model.outside(peer, f"classes{family}", known, most)
        matches = (*links, *others, model.InSet(pod, _counter(INTERNAL, way, family)))
        yield model.Rule.named(f"class {INTERNAL} {way}", family, matches, model.Continue())

    def _known(self, family: Family) -> list[Prefix]:
        """The prefixes of all classes."""
        return [prefix for _, prefixes in self._branches(family) for prefix in prefixes]

    def _branches(self, family: Family) -> list[_Class]:
        """The classes that have prefixes of the family, with these alone."""
        narrowed = ((name, tuple(model.of_family(own, family))) for name, own in self.pieces)
        return [(name, prefixes) for name, prefixes in narrowed if prefixes]


def pod_set(traffic: Traffic, family: Family, *, at_links: bool = False) -> model.SetSpec:
    """The set that counts pods of one family in one direction and class.

    The internet's is the unnamed one.
    """
    where = "link" if at_links else "pod"
    way = "in" if traffic.is_inward else "out"
    kind = "" if traffic in (Traffic.INTERNET_IN, Traffic.INTERNET_OUT) else f"{traffic.kind}_"
    return model.SetSpec(f"{where}_{kind}{way}{family}", family, traffic, at_links=at_links)


def _counter(name: str, way: str, family: Family) -> str:
    return pod_set(Traffic(f"{name}-{way}"), family).name
