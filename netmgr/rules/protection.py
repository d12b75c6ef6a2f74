"""Addresses that pods may not reach: a cloud's metadata and platform services, and configured ones.

Whoever reaches a machine's metadata can often act as the machine. The rules apply to the pods in
the set that counts them; those of excepted namespaces are not in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from netmgr.documents.node import NodeDocument
from netmgr.model import LINK_PREFIX, PROTECTED
from netmgr.prefixes import Family, Prefix
from netmgr.rules import model
from netmgr.rules.classifier import pod_set

# Some of these addresses also answer DNS, and cluster DNS asks there.
DNS_PORT = 53

# Of what is forwarded, where it is counted: each base chain costs every packet.
_HOOKS = (model.Hook.BEFORE_SRCNAT, model.Hook.INPUT)


@dataclass(frozen=True)
class Protection:
    """`prefixes` are protected, `own` those of them that the node itself answers from.

    Pods of `excepted` reach all.
    """

    prefixes: tuple[Prefix, ...]
    own: tuple[Prefix, ...] = ()
    excepted: frozenset[str] = frozenset()

    @classmethod
    def of(cls, document: NodeDocument) -> Protection | None:
        """What a node document says; None where nothing is protected."""
        # Rules know pods by the names of netmgr's own links.
        if not document.wires_pods or not document.protect:
            return None
        addresses = document.node.addresses
        own = tuple(
            prefix
            for prefix in document.protect
            if any(prefix.holds(address) for address in addresses)
        )
        return cls(document.protect, own, frozenset(document.protect_except))

    def sets(self, abilities: model.Abilities) -> model.Sets:
        # Those that count pods are the policy's.
        sets: model.Sets = {}
        for hook, family in product(_HOOKS, Family):
            name, prefixes = self._protected(hook)
            members = model.of_family(prefixes, family)
            if len(members) > abilities.compares:
                sets[model.SetSpec.of_prefixes(name, family)] = frozenset(members)
        return sets

    def rules(
        self, hook: model.Hook, family: Family, abilities: model.Abilities
    ) -> Iterator[model.Rule]:
        # Behind all translation of destinations: an agent of the cloud that redirects such
        # connections to itself, on the node or in a pod, still gets them.
        if hook not in _HOOKS:
            return
        name, prefixes = self._protected(hook)
        from_pods = model.OnLink(model.Side.SOURCE, f"{LINK_PREFIX}*")
        kept_away = model.InSet(model.Side.SOURCE, pod_set(PROTECTED, family).name)
        action = model.Drop(f"protected{family}", reason="protected")
        members, side = model.of_family(prefixes, family), model.Side.DESTINATION
        protected = model.inside(side, f"{name}{family}", members, abilities.compares)
        for suffix, to_protected in protected.items():
            # The pods' set comes last: the look-up in it counts, and only what is dropped may be
            # counted.
            asked = (to_protected, from_pods, model.OriginalDirection(DNS_PORT), kept_away)
            yield model.Rule.named(f"protected{suffix}", family, asked, action)

    def _protected(self, hook: model.Hook) -> tuple[str, tuple[Prefix, ...]]:
        """The name of a hook's sets, and what is protected there."""
        # A protected address that is the node's own is not forwarded to.
        is_input = hook is model.Hook.INPUT
        return ("own_protected", self.own) if is_input else ("protected", self.prefixes)
