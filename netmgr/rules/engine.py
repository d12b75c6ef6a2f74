"""The rules room's facade: one backend, one policy.

Everything slow or surprising happens in plan and apply; admit, expel and read_pods are the
paths of ADD and DEL and touch only the elements of the pod at hand. Thread-safe as far as
the kernel's own atomicity goes. A caller that admits a pod between a plan and its apply must
keep the two apart itself, or the apply may take the newcomer for a leftover.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from netmgr.errors import KernelError
from netmgr.model import Counter, Sample
from netmgr.prefixes import Address, Family, Prefix
from netmgr.rules import tagged
from netmgr.rules.backend import RuleBackend
from netmgr.rules.diff import diff, faults
from netmgr.rules.model import Drop, Element, Observed, Ruleset, SetSpec
from netmgr.rules.policy import PodSets, Policy, desired, pod_sets
from netmgr.rules.readings import Dropped, Drops, Refused, Translated
from netmgr.rules.sorting import pod_set
from netmgr.rules.tagged import Tagged
from netmgr.rules.transaction import AddElements, Operation, RemoveElements, ReplaceElements, Transaction

MARK = SetSpec("ledger_mark6", Family.V6)
"""Holds one address, by which the ledger knows what it has seen of these counters (`ledger/mark.py`).

A set, since both backends have those, change them in the step that changes counters, and look
nothing up in one that no rule names.
"""


class Rules:
    """Brings the kernel to the policy and reads its counters. All methods raise KernelError."""

    def __init__(self, backend: RuleBackend, policy: Policy) -> None:
        self.backend = backend
        self.policy = policy
        self._mark: Prefix | None = None
        self._excepted: set[Address] = set()
        self._skeleton = self._desired(())

    def know(self, addresses: Iterable[Address], namespace: str) -> None:
        """Say whose these addresses are, before anything is planned or counted for them."""
        protection = self.policy.protection
        if protection and namespace in protection.excepted:
            self._excepted.update(addresses)
        else:
            self._excepted.difference_update(addresses)

    def marks(self) -> list[Address]:
        """The mark that the kernel has; two if a process was killed while it wrote one, none if there is none."""
        wanted = _with_mark(desired(self.policy, (), self.backend.abilities), ())
        found = self.backend.observe(wanted).members.get(MARK.name, frozenset())
        return [Address(Family.V6, one.value) for one in found]

    def mark(self, mark: Address) -> None:
        """Have the kernel keep this mark from now on; where there is no set for it yet, the next plan makes one."""
        if mark.prefix != self._mark:
            self._mark = mark.prefix
            self._skeleton = self._desired(())
            self._applied([ReplaceElements(MARK, frozenset([mark.prefix]))])

    def change_policy(self, policy: Policy) -> None:
        """Want another policy from the next plan on; changes nothing yet."""
        self.policy = policy
        self._skeleton = self._desired(())

    def plan(self, pods: Collection[Address]) -> Transaction:
        """What must be done so that the kernel holds the policy for these pods; changes nothing."""
        wanted = self._desired(pods)
        observed = self.backend.observe(wanted)
        transaction = diff(_marked_as(observed, wanted), observed)
        return replace(transaction, text=self.backend.render(transaction.operations))

    def apply(self, transaction: Transaction, before_removals: Callable[[], object] = lambda: None) -> None:
        """Carry a plan out; atomically where the kernel allows it, but for leftovers, which go last.

        Args:
            transaction: the plan.
            before_removals: called when no rule uses the leftovers any more and they are still there to be read.

        Raises:
            TryAgainLater: another program holds the kernel's rule lock; nothing more was changed.
        """
        changes, removals = transaction.split()
        self.backend.apply(changes)
        if removals:
            before_removals()
            self.backend.apply(removals)

    def admit(self, addresses: Iterable[Address]) -> None:
        """Have these pods counted from now on; a counter that exists goes on counting."""
        self.backend.apply([AddElements(spec, members) for spec, members in self._pod_sets(addresses).items()])

    def expel(self, addresses: Iterable[Address], mark: Address | None = None) -> None:
        """Stop counting these pods and forget their counters, with a new mark; those not counted are no error."""
        operations: list[Operation] = []
        if mark and self._mark and mark.prefix != self._mark:
            # Not replaced, which would look first: a pod's end costs as little as can be.
            operations += [
                AddElements(MARK, frozenset([mark.prefix])),
                RemoveElements(MARK, frozenset([self._mark])),
            ]
            self._mark = mark.prefix
        operations += [RemoveElements(spec, members) for spec, members in self._pod_sets(addresses).items()]
        if not self._applied(operations):
            # A set is gone, by somebody else's hand: there is nothing to leave in that one, but in the others.
            for operation in operations:
                self._applied([operation])

    def counters(self, addresses: Iterable[Address]) -> list[Counter]:
        """The counters that these pods should have: one for each address and kind of traffic."""
        return [spec.counter(address) for spec, members in self._pod_sets(addresses).items() for address in members]

    def _pod_sets(self, addresses: Iterable[Address]) -> PodSets:
        return pod_sets(addresses, self.policy.traffics, self._excepted)

    def _desired(self, pods: Collection[Address]) -> Ruleset:
        wanted = desired(self.policy, pods, self.backend.abilities, self._excepted)
        return _with_mark(wanted, [self._mark]) if self._mark else wanted

    def _applied(self, operations: Sequence[Operation]) -> bool:
        """Whether there was something to apply them to."""
        try:
            self.backend.apply(operations)
        except KernelError as error:
            if error.errno != errno.ENOENT:
                raise
            return False
        return True

    def read(self) -> list[Sample]:
        """Every counter of ours: the pods' and the node's."""
        return self.backend.read(self._skeleton)

    def read_pods(self, addresses: Iterable[Address]) -> list[Sample]:
        """The counters of these pods; one that does not exist is left out."""
        return self.backend.read_pods(self._pod_sets(addresses))

    def former(self, counters: Iterable[Counter]) -> list[Counter]:
        """Those of these counters that are pods' and of classes of traffic that the policy does not have."""
        known = frozenset(self.policy.traffics)
        return [one for one in counters if isinstance(one.subject, Address) and one.traffic not in known]

    def read_former(self, counters: Iterable[Counter]) -> list[Sample]:
        """What such counters show, as far as they are still there."""
        members: dict[SetSpec, set[Element]] = {}
        for one in self.former(counters):
            if isinstance(one.subject, Address):
                members.setdefault(pod_set(one.traffic, one.family), set()).add(one.subject)
        return self.backend.read_pods({spec: frozenset(addresses) for spec, addresses in members.items()})

    def drops(self) -> Drops:
        """What was dropped here: an entry for each ordered pair of sites and each reason that the rules have."""
        isolation = self.policy.isolation
        pairs: dict[tuple[str, str], set[str]] = {pair: set() for pair in isolation.pairs()} if isolation else {}
        reasons: dict[str, set[str]] = {}
        for action in (rule.action for rule in self._skeleton.rules() if isinstance(rule.action, Drop)):
            if action.between:
                pairs[action.between].add(action.name)
            elif action.reason:
                reasons.setdefault(action.reason, set()).add(action.name)
        if not pairs and not reasons:
            return Drops()
        found = self.backend.tallies(self._skeleton)
        return Drops(
            tuple(Dropped(*pair, *_sum(found.get(name, (0, 0)) for name in its)) for pair, its in pairs.items()),
            tuple(Refused(why, *_sum(found.get(name, (0, 0)) for name in its)) for why, its in reasons.items()),
        )

    def dropped(self) -> list[Dropped]:
        """What was kept apart here."""
        return list(self.drops().between)

    def translated(self) -> list[Translated]:
        """What was translated here, one entry for each Service range."""
        if self.policy.translation is None:
            return []
        found = self.backend.tallies(self._skeleton)
        return [
            Translated(service.seen, service.real, *found.get(service.counter, (0, 0)))
            for service in self.policy.translation.services
        ]

    def tagged(self) -> Tagged:
        """Other people's rules that are tagged for PyPI's iptables-exporter."""
        return tagged.read(self.backend.serving(self._skeleton))

    def check(self, addresses: Iterable[Address]) -> list[str]:
        """Sentences saying what these pods lack in the kernel; other pods are not judged."""
        wanted = self._desired(frozenset(addresses))
        observed = _without_others(self.backend.observe(wanted), frozenset(addresses))
        return list(faults(_marked_as(observed, wanted), observed))

    def remove(self) -> None:
        """Take away everything of ours, and nothing else."""
        self.backend.remove(self._skeleton)

    def close(self) -> None:
        """Give back sockets and threads; the rules stay and count on."""
        self.backend.close()


def _with_mark(wanted: Ruleset, members: Iterable[Prefix]) -> Ruleset:
    return replace(wanted, sets=(*wanted.sets, MARK), members={**wanted.members, MARK.name: frozenset(members)})


def _marked_as(observed: Observed, wanted: Ruleset) -> Ruleset:
    """What is wanted, with the mark that was found: an old one is no drift, and none is."""
    found = observed.members.get(MARK.name)
    return replace(wanted, members={**wanted.members, MARK.name: found}) if found else wanted


def _without_others(observed: Observed, addresses: frozenset[Address]) -> Observed:
    members = {
        name: frozenset(one for one in elements if not isinstance(one, Address) or one in addresses)
        for name, elements in observed.members.items()
    }
    return replace(observed, members=members)


def _sum(counts: Iterable[tuple[int, int]]) -> tuple[int, int]:
    listed = list(counts)
    return sum(packets for packets, _ in listed), sum(octets for _, octets in listed)
