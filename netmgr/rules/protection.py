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
from netmgr.rules.classifier import pod_set
from netmgr.rules.model import (
    Abilities,
    Asking,
    Drop,
    Element,
    Hook,
    InPrefix,
    InSet,
    OnLink,
    Rule,
    SetSpec,
    Side,
)

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
            one for one in document.protect if any(one.holds(address) for address in addresses)
        )
        return cls(document.protect, own, frozenset(document.protect_except))

    def sets(self, abilities: Abilities) -> dict[SetSpec, frozenset[Element]]:
        """The sets of the rules, and what is in them; those that count pods are the policy's."""
        chosen = {
            (hook, family): self._at(hook, family)
            for hook in (Hook.FORWARD, Hook.INPUT)
            for family in Family
        }
        return {
            _set(hook, family): frozenset(prefixes)
            for (hook, family), prefixes in chosen.items()
            if len(prefixes) > abilities.compares
        }

    def rules(self, hook: Hook, family: Family, abilities: Abilities) -> Iterator[Rule]:
        """The rules of one hook and family."""
        if hook not in (Hook.FORWARD, Hook.INPUT):
            return
        prefixes = self._at(hook, family)
        if len(prefixes) > abilities.compares:
            yield _drop("protected", family, InSet(Side.DESTINATION, _set(hook, family).name))
        else:
            for one in prefixes:
                yield _drop(f"protected {one}", family, InPrefix(Side.DESTINATION, one))

    def _at(self, hook: Hook, family: Family) -> list[Prefix]:
        return [
            one
            for one in (self.own if hook is Hook.INPUT else self.prefixes)
            if one.family is family
        ]


def _drop(what: str, family: Family, there: InSet | InPrefix) -> Rule:
    from_pods = OnLink(Side.SOURCE, f"{LINK_PREFIX}*")
    kept_away = InSet(Side.SOURCE, pod_set(PROTECTED, family).name)
    # The pods' set comes last: the look-up in it counts, and only what is dropped may be counted.
    action = Drop(f"protected{family.value}", reason="protected")
    return Rule(
        f"{what} v{family.value}", family, (there, from_pods, Asking(DNS_PORT), kept_away), action
    )


def _set(hook: Hook, family: Family) -> SetSpec:
    return SetSpec(f"{'own_' if hook is Hook.INPUT else ''}protected{family.value}", family)
