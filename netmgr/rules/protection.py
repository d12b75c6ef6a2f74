"""Addresses that pods may not reach: a cloud's metadata and platform services, and configured ones.

Whoever reaches a machine's metadata can often act as the machine. So connections from pods to a
protected address are dropped in the forward hook, behind all translation of destinations: an agent
of the cloud that redirects such connections to itself, on the node or in a pod, still gets them.
Some of these addresses also answer DNS, and cluster DNS asks there, so connections to port 53 pass.
A protected address that is the node's own is guarded in the input hook.

The rules apply to the pods in the set that counts them; those of excepted namespaces are not in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from netmgr.documents.node import NodeDocument
from netmgr.model import LINK_PREFIX, PROTECTED
from netmgr.prefixes import Family, Prefix
from netmgr.rules import model
from netmgr.rules.classifier import pod_set

DNS_PORT = 53


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

    def sets(self, abilities: model.Abilities) -> dict[model.SetSpec, frozenset[model.Element]]:
        """The sets of the rules, and what is in them; those that count pods are the policy's."""
        chosen = {
            (hook, family): self._at(hook, family)
            for hook in (model.Hook.FORWARD, model.Hook.INPUT)
            for family in Family
        }
        return {
            _set(hook, family): frozenset(prefixes)
            for (hook, family), prefixes in chosen.items()
            if len(prefixes) > abilities.compares
        }

    def rules(
        self, hook: model.Hook, family: Family, abilities: model.Abilities
    ) -> Iterator[model.Rule]:
        if hook not in (model.Hook.FORWARD, model.Hook.INPUT):
            return
        prefixes = self._at(hook, family)
        if len(prefixes) > abilities.compares:
            yield _drop(
                "protected", family, model.InSet(model.Side.DESTINATION, _set(hook, family).name)
            )
        else:
            for prefix in prefixes:
                yield _drop(
                    f"protected {prefix}", family, model.InPrefix(model.Side.DESTINATION, prefix)
                )

    def _at(self, hook: model.Hook, family: Family) -> list[Prefix]:
        return [
            prefix
            for prefix in (self.own if hook is model.Hook.INPUT else self.prefixes)
            if prefix.family is family
        ]


def _drop(name: str, family: Family, there: model.InSet | model.InPrefix) -> model.Rule:
    from_pods = model.OnLink(model.Side.SOURCE, f"{LINK_PREFIX}*")
    kept_away = model.InSet(model.Side.SOURCE, pod_set(PROTECTED, family).name)
    # The pods' set comes last: the look-up in it counts, and only what is dropped may be counted.
    action = model.Drop(f"protected{family.value}", reason="protected")
    return model.Rule(
        f"{name} v{family.value}",
        family,
        (there, from_pods, model.OriginalDirection(DNS_PORT), kept_away),
        action,
    )


def _set(hook: model.Hook, family: Family) -> model.SetSpec:
    return model.SetSpec(
        f"{'own_' if hook is model.Hook.INPUT else ''}protected{family.value}", family
    )
