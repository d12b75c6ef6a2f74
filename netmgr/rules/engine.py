"""The rules room's facade: one backend, one policy.

`admit`, `expel` and `read_pods` are on the path of ADD and DEL and touch only the elements of one
pod. Callers must not admit a pod between a plan and its apply, which would remove the newcomer.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from netmgr.api.snapshot import DroppedTotals, RefusedTotals, TranslatedRange
from netmgr.errors import Ignoring
from netmgr.model import PROTECTED, Counter, Sample, Sender
from netmgr.prefixes import Address, Family, Prefix
from netmgr.rules import model, tagged
from netmgr.rules.classifier import pod_set
from netmgr.rules.diff import diff, faults
from netmgr.rules.isolation import pair_counter
from netmgr.rules.observed import Observed
from netmgr.rules.policy import Policy, desired, pod_sets, senders
from netmgr.rules.tagged import Serving, Tagged
from netmgr.rules.transaction import (
    AddElements,
    DeleteOrphan,
    Operation,
    RemoveElements,
    ReplaceElements,
    Transaction,
    with_lives,
)

# Holds one address, by which the ledger recognises these counters (`ledger/mark.py`). It is a set
# because both backends have sets and change them in the step that changes counters. No rule names
# it, so no packet pays for it.
MARK = model.SetSpec("ledger_mark6", Family.V6)


class RuleBackend(Protocol):
    """One kernel interface that can hold the ruleset: nftables, iptables, the tests' fake.

    Thread-safe. Every method raises KernelError when the kernel refuses, with what and why.
    """

    @property
    def name(self) -> str:
        """`nftables` or `iptables`."""

    @property
    def abilities(self) -> model.Abilities: ...

    def share_table(self, *, shared: bool) -> None:
        """Count, and remove, beside another backend's rules in the same table, or no more."""

    def observe(self, desired: model.Ruleset) -> Observed:
        """Read what the kernel holds, naming the rules of `desired` that are found in it."""

    def apply(self, operations: Sequence[Operation]) -> None:
        """Carry the operations out in order; atomically where the kernel allows it."""

    def read(self, desired: model.Ruleset) -> list[Sample]:
        """Every counter of ours that the kernel has: the node's, and after them the pods'."""

    def read_pods(self, pods: model.Sets) -> list[Sample]:
        """The counters of these elements of pods' sets, as far as they exist."""

    def tallies(self, desired: model.Ruleset) -> dict[str, tuple[int, int]]:
        """Packets and bytes of the existing counters that are neither pods' nor the node's."""

    def dynamic(self, desired: model.Ruleset) -> list[Sample]:
        """The addresses that dynamic sets have, and what was counted for each."""

    def serving(self, desired: model.Ruleset) -> Serving:
        """Which of other programs' rules count in place of rules of `desired`."""

    def remove(self) -> None:
        """Remove everything of ours, but for a table that is shared, and nothing else."""

    def close(self) -> None:
        """Release sockets and threads; the rules stay."""


NOTHING = (0, 0)


class Drops(NamedTuple):
    """All that was dropped here: between sites, and for any other reason.

    Raw readings of the kernel, over all hooks and both families: they grow until another program
    flushes the rules.
    """

    between: list[DroppedTotals]
    refused: list[RefusedTotals]


class Rules:
    """Brings the kernel to the policy and reads its counters. All methods raise KernelError."""

    def __init__(self, backend: RuleBackend, policy: Policy) -> None:
        self.backend = backend
        self.policy = policy
        self._mark: Prefix | None = None
        self._excepted: set[Address] = set()
        self._links: dict[Address, str] = {}
        # For readings, which need to know no pod's elements.
        self._skeleton = self._desired(())

    def know(self, addresses: Collection[Address], namespace: str, link: str) -> None:
        """Say whose these addresses are, before anything is planned or counted for them.

        `link` is the host's end of the pod's; "" for a pod that is gone, or another plugin's.
        """
        for address in addresses:
            if link:
                self._links[address] = link
            else:
                self._links.pop(address, None)
        protection = self.policy.protection
        # An address may pass from a pod of one namespace to one of another, so both ways are
        # handled.
        if protection and namespace in protection.excepted:
            self._excepted.update(addresses)
        else:
            self._excepted.difference_update(addresses)

    def marks(self) -> list[Address]:
        """The mark that the kernel has, if any; two if a process was killed while it wrote one."""
        wanted = _with_mark(desired(self.policy, (), self.backend.abilities), ())
        members = self.backend.observe(wanted).members.get(MARK.name, frozenset())
        return [member.network for member in members if isinstance(member, Prefix)]

    def mark(self, mark: Address) -> None:
        """Have the kernel keep this mark from now on."""
        if mark.prefix != self._mark:
            self._mark = mark.prefix
            self._skeleton = self._desired(())
            # Where there is no set for it yet, the next plan makes one.
            self._applied([ReplaceElements(MARK, frozenset([mark.prefix]))])

    def change_policy(self, policy: Policy) -> None:
        """Use another policy from the next plan on; changes nothing yet."""
        self.policy = policy
        self._skeleton = self._desired(())

    def share_table(self, *, shared: bool) -> None:
        """Whether another backend's rules are in the same table, while one takes over."""
        self.backend.share_table(shared=shared)
        self._skeleton = self._desired(())

    def plan(self, pods: Collection[Address]) -> Transaction:
        """What must be done so that the kernel holds the policy for these pods; changes nothing."""
        wanted = self._desired(pods)
        observed = self.backend.observe(wanted)
        return diff(_marked_as(observed, wanted), observed)

    def apply(
        self, transaction: Transaction, before_removals: Callable[[], object] = lambda: None
    ) -> None:
        """Carry a plan out; atomically where the kernel allows it, but for orphans, which go last.

        `before_removals` is called when no rule uses the orphans any more, while they can be read.

        Raises:
            TryAgainLater: another program holds the kernel's rule lock; nothing more was changed.
        """
        # Apart from the rest, since the ledger reads an orphan's counters before they go.
        removals = [part for part in transaction.operations if isinstance(part, DeleteOrphan)]
        changes = [part for part in transaction.operations if not isinstance(part, DeleteOrphan)]
        self.backend.apply(with_lives(changes))
        if removals:
            before_removals()
            self.backend.apply(removals)

    def admit(self, addresses: Collection[Address]) -> None:
        """Count these pods from now on; an existing counter goes on counting."""
        added = [AddElements(spec, members) for spec, members in self._every_set(addresses).items()]
        self.backend.apply(with_lives(added))

    def expel(self, addresses: Collection[Address], mark: Address | None = None) -> None:
        """Stop counting these pods and forget their counters, with a new mark.

        Those not counted are no error.
        """
        operations: list[Operation] = []
        if mark and self._mark and mark.prefix != self._mark:
            # Not replaced, which would look first: a pod's end costs as little as can be.
            operations += [
                AddElements(MARK, frozenset([mark.prefix])),
                RemoveElements(MARK, frozenset([self._mark])),
            ]
            self._mark = mark.prefix
        operations += [
            RemoveElements(spec, members) for spec, members in self._every_set(addresses).items()
        ]
        if not self._applied(operations):
            # Another program removed a set, and the whole transaction failed with it. The pods
            # still have to leave the other sets.
            for operation in operations:
                self._applied([operation])

    def counters(self, addresses: Iterable[Address]) -> list[Counter]:
        """The counters that these pods should have: one for each address and kind of traffic."""
        counters = (
            spec.counter(address)
            for spec, members in self._pod_sets(addresses).items()
            for address in members
        )
        # While one way of counting takes over from the other, both have each.
        return list(dict.fromkeys(counters))

    def _pod_sets(self, addresses: Iterable[Address]) -> model.Sets:
        abilities = self.backend.abilities
        traffics = self.policy.traffics
        return pod_sets(tuple(addresses), traffics, abilities, self._excepted)

    def _every_set(self, addresses: Collection[Address]) -> model.Sets:
        """Those that count, and those that know their links."""
        known = senders(addresses, self._links).items()
        present = self._skeleton.members
        return self._pod_sets(addresses) | {
            spec: members for spec, members in known if spec.name in present
        }

    def _desired(self, pods: Collection[Address]) -> model.Ruleset:
        abilities = self.backend.abilities
        wanted = desired(self.policy, pods, abilities, self._excepted, self._links)
        return _with_mark(wanted, [self._mark]) if self._mark else wanted

    def _applied(self, operations: Sequence[Operation]) -> bool:
        """Whether there was something to apply them to."""
        with Ignoring(errno.ENOENT):
            self.backend.apply(operations)
            return True
        return False

    def read(self) -> list[Sample]:
        return self.backend.read(self._skeleton)

    def read_pods(self, addresses: Iterable[Address]) -> list[Sample]:
        """The counters of these pods; one that does not exist is left out."""
        return self.backend.read_pods(self._pod_sets(addresses))

    def former(self, counters: Iterable[Counter]) -> list[Counter]:
        """The pods' counters among these whose class of traffic the policy does not have."""
        known = frozenset(self.policy.traffics)
        return [counter for counter in counters if counter.is_pod and counter.traffic not in known]

    def read_former(self, counters: Iterable[Counter]) -> list[Sample]:
        """What such counters show, as far as they are still there."""
        sets: model.Sets = {}
        at_links = self.backend.abilities.counts_at_links
        for counter in self.former(counters):
            if isinstance(counter.subject, Address):
                # What is kept away is counted by the rule that drops it, wherever the rest is.
                there = at_links and counter.traffic is not PROTECTED
                spec = pod_set(counter.traffic, counter.family, at_links=there)
                sets[spec] = sets.get(spec, frozenset()) | {counter.subject}
        return self.backend.read_pods(sets)

    def drops(self) -> Drops:
        """What was dropped here: an entry for each ordered pair of sites and for each reason."""
        isolation = self.policy.isolation
        pairs = isolation.pairs() if isolation else []
        names_by_reason: dict[str, set[str]] = {}
        for drop in self._skeleton.actions(model.Drop):
            if drop.reason:
                names_by_reason.setdefault(drop.reason, set()).add(drop.name)
        if not pairs and not names_by_reason:
            return Drops([], [])
        tallies = self.backend.tallies(self._skeleton)
        drops = Drops([], [])
        for origin, destination in pairs:
            names = {pair_counter(origin, destination, family) for family in Family}
            packets, size = _sum(tallies, names)
            drops.between.append(
                {
                    "origin": origin,
                    "destination": destination,
                    "bytes": size,
                    "packets": packets,
                }
            )
        for reason, names in names_by_reason.items():
            packets, size = _sum(tallies, names)
            drops.refused.append({"reason": reason, "bytes": size, "packets": packets})
        return drops

    def translated(self) -> list[TranslatedRange]:
        """What was translated here, both directions together, for each Service range."""
        if self.policy.translation is None:
            return []
        tallies = self.backend.tallies(self._skeleton)
        ranges: list[TranslatedRange] = []
        for service in self.policy.translation.services:
            packets, size = tallies.get(service.counter, NOTHING)
            ranges.append(
                {
                    "vip_range": str(service.vip_range),
                    "service_cidr": str(service.service_cidr),
                    "bytes": size,
                    "packets": packets,
                }
            )
        return ranges

    def remote_pods(self) -> list[Sample]:
        """What was counted here for each address of other nodes' pods, since its first packet."""
        return self.backend.dynamic(self._skeleton)

    def tagged(self) -> Tagged:
        """Others' rules that are tagged for PyPI's iptables-exporter."""
        return tagged.read(self.backend.serving(self._skeleton))

    def check(self, addresses: Iterable[Address]) -> list[str]:
        """Messages about what these pods lack in the kernel; other pods are not checked."""
        checked = frozenset(addresses)
        wanted = self._desired(checked)
        observed = self.backend.observe(wanted)
        members = {
            name: frozenset(element for element in elements if not _is_of_others(element, checked))
            for name, elements in observed.members.items()
        }
        observed = replace(observed, members=members)
        return list(faults(_marked_as(observed, wanted), observed))

    def remove(self) -> None:
        self.backend.remove()

    def close(self) -> None:
        self.backend.close()


def _with_mark(wanted: model.Ruleset, members: Iterable[Prefix]) -> model.Ruleset:
    return replace(
        wanted, sets=(*wanted.sets, MARK), members={**wanted.members, MARK.name: frozenset(members)}
    )


def _marked_as(observed: Observed, wanted: model.Ruleset) -> model.Ruleset:
    """What is wanted, with the mark that was found: an old one is no drift, nor is none."""
    marks = observed.members.get(MARK.name)
    return replace(wanted, members={**wanted.members, MARK.name: marks}) if marks else wanted


def _is_of_others(element: model.Element, addresses: frozenset[Address]) -> bool:
    address = element.address if isinstance(element, Sender) else element
    return isinstance(address, Address) and address not in addresses


def _sum(tallies: Mapping[str, tuple[int, int]], counters: Iterable[str]) -> tuple[int, int]:
    """Packets and bytes of several counters; one that the kernel lacks has counted nothing."""
    listed = [tallies.get(name, NOTHING) for name in counters]
    return sum(packets for packets, _ in listed), sum(size for _, size in listed)
