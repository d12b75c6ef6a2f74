"""Counts host-network pods: who they are, what their cgroups were counted for, and what was lost.

`Accounts` reads and reconciles them. What a pod exchanged before a look noticed it is the node's
own.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from errno import ENOENT
from itertools import chain
from typing import TYPE_CHECKING, Self

from netmgr.agent.accounting.accounting import NodeAccounting
from netmgr.agent.core.components import Agent, Component, Remnants
from netmgr.errors import KernelError, SetupError
from netmgr.kernel.capabilities import Capability
from netmgr.ledger.book import UNREAD
from netmgr.ledger.ledger import Ledger
from netmgr.model import Counter, Sample, Traffic
from netmgr.prefixes import Family, Prefix

if TYPE_CHECKING:
    from netmgr.observer.host_network import HostPod

log = logging.getLogger(__name__)


class HostPods(Component):
    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        # Loaded only on a node that counts them.
        from netmgr.observer.host_network import HostPodFinder  # noqa: PLC0415  see above
        from netmgr.rules.cgroup_counters import CgroupCounters  # noqa: PLC0415  see above

        settings, accounting = agent.document.accounting, agent.get(NodeAccounting)
        self._finder = HostPodFinder(settings.cgroup_dir, settings.pod_logs_dir)
        self._rules = CgroupCounters(accounting.rules.policy.known, self._finder.depths)
        self._ledger = accounting.ledger
        # By the number of the cgroup, which is never reused.
        self._live: dict[int, HostPod] = {}
        # Begun in the ledger, and still to be admitted.
        self._pending: dict[int, HostPod] = {}
        self._started = False
        if self._ledger.recall(UNREAD):
            # A loss that is still to be settled: these pods may be found after it was, and what
            # they were counted for is part of it.
            self._rules.remove()
        self._counts = settings.host_pods
        if self._counts:
            accounting.accounts.count_host_pods(self)

    @classmethod
    def open(cls, agent: Agent) -> Self | None:
        """None if they are not counted, and an earlier agent counted none."""
        is_needed = agent.document.accounting.host_pods or _open_counters(
            agent.get(NodeAccounting).ledger
        )
        return cls(agent) if is_needed else None

    def capabilities(self) -> Iterable[Capability]:
        # To see which network the processes of other users are in.
        return (Capability.SYS_PTRACE,) if self._counts else ()

    def start(self) -> None:
        if self._counts:
            return
        # The document once counted host-network pods: their table would count on for ever.
        former = _open_counters(self._ledger)
        self._ledger.post(self.samples(), closing=former)
        self._rules.remove()
        self._ledger.end(former)
        self._rules.close()

    def _start(self) -> None:
        """Take over from a predecessor: post what its counters show, and end pods that are gone."""
        made = self._rules.make()
        known = _open_counters(self._ledger)
        # A pod that has no process just now keeps its cgroup, whose counters go on.
        counted = {counter.cgroup for counter in known}
        running = self._finder.find(counted)
        stay = {counter for pod in running for counter in counters_of(pod.cgroup.number)}
        gone = known - stay
        # A table that was just made counts from zero, which would look like zeroed counters. Its
        # pods are begun anew below instead, as one gap.
        self._ledger.post([] if made else self.samples(), closing=gone)
        self._ledger.end(gone)
        if made:
            self._ledger.restart(known & stay)
        self._begin(running, () if made else tuple(self._pending))
        self._started = True

    def look(self) -> None:
        """Begin counting new pods, end those whose cgroup is gone, and restore a lost table.

        Raises:
            KernelError: the kernel refuses; what is not counted stays the node's own until a later
                look, which tries again.
            SetupError: kubelet, which may have started after the agent, keeps its pods elsewhere.
        """
        if fault := self._finder.fault():
            raise SetupError(f"accounting.cgroup_dir: {fault}")
        if not self._started:
            self._start()
            return
        refused = tuple(self._pending)
        if self._rules.make():
            repair = "the table of host-network pods was missing or altered"
            log.warning("repaired area=rules what=%s", repair)
            self._pending |= self._live
            self._live, refused = {}, ()
            self._ledger.restart(chain.from_iterable(map(counters_of, self._pending)))
        running = self._finder.find()
        # By the cgroup and not by `running`: a pod between two containers has no process, and so is
        # not found, but its cgroup stays and counts on.
        gone = [host_pod for host_pod in self._live.values() if not host_pod.cgroup.path.is_dir()]
        if gone:
            self._end(gone)
        self._begin([pod for pod in running if pod.cgroup.number not in self._live], refused)

    def follow(self, internal: Iterable[Prefix]) -> None:
        self._rules.follow(internal)

    def _begin(self, pods: Iterable[HostPod], refused: Collection[int] = ()) -> None:
        """Count these, and those that are pending; the kernel `refused` some in an earlier look."""
        self._pending |= {host_pod.cgroup.number: host_pod for host_pod in pods}
        for number, host_pod in self._pending.items():
            # The ledger before the kernel, as for pods' addresses (`Accounts.begin`).
            self._ledger.begin(counters_of(number), host_pod.pod)
        for number, host_pod in tuple(self._pending.items()):
            if self._admit(host_pod):
                self._live[number] = host_pod
                log.info("host-pod-counted pod=%s cgroup=%s", host_pod.pod, host_pod.cgroup.path)
                if number in refused:
                    # What it exchanged since then was counted for nobody.
                    self._ledger.restart(counters_of(number))
            else:
                self._ledger.end(counters_of(number))
            del self._pending[number]

    def _admit(self, host_pod: HostPod) -> bool:
        """Whether it was still there to be admitted."""
        try:
            self._rules.admit([host_pod.cgroup])
        except KernelError as error:
            # nftables resolves the cgroup when the element is added: this one ended after the look.
            # If it is there, the table is not, which the next look makes again.
            if error.errno != ENOENT or host_pod.cgroup.path.is_dir():
                raise
            return False
        return True

    def _end(self, pods: list[HostPod]) -> None:
        # The counters have outlived their cgroups, so that this reading misses nothing. Before
        # `expel`, which removes the elements together with their counters.
        counters = [counter for pod in pods for counter in counters_of(pod.cgroup.number)]
        self._ledger.post(self.samples(), closing=counters)
        self._rules.expel(host_pod.cgroup for host_pod in pods)
        self._ledger.end(counters)
        for host_pod in pods:
            del self._live[host_pod.cgroup.number]
            log.info("host-pod-ended pod=%s", host_pod.pod)

    def samples(self) -> list[Sample]:
        return self._rules.read()

    def close(self) -> None:
        self._rules.close()

    @classmethod
    def remove(cls, _remnants: Remnants) -> Iterator[str]:
        if _remove_table():
            yield "the table of host-network pods was removed"


def _remove_table() -> bool:
    from netmgr.rules import cgroup_counters, nft_table  # noqa: PLC0415  only where it may be there

    return nft_table.remove(cgroup_counters.TABLE)


def _open_counters(ledger: Ledger) -> set[Counter]:
    # The node's own counters have no owner, and pods' are of an address.
    owned = ledger.counters().items()
    return {counter for counter, owner in owned if owner and not counter.is_pod}


def counters_of(number: int) -> list[Counter]:
    return [
        Counter.of_cgroup(number, family, traffic)
        for family in Family
        for traffic in (Traffic.INTERNET_IN, Traffic.INTERNET_OUT)
    ]
