"""Keeps the books of host-network pods: who they are, what their cgroups were counted for, and what was lost.

Called under the lock that orders readings before postings (`accounts.py`). A pod is noticed by a
look; what it exchanged before is the node's own. Its counter outlives its cgroup, so that the
look that finds it gone misses nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from errno import ENOENT

from netmgr.config import Accounting
from netmgr.errors import KernelError, SetupError
from netmgr.ledger.ledger import Ledger
from netmgr.model import Counter, Sample, Traffic
from netmgr.observer.host_pods import HostPod, HostPodFinder
from netmgr.prefixes import Family, Prefix
from netmgr.rules.host_pods import SYSFS, HostPodRules, Reading

SUBJECT = "cgroup "

log = logging.getLogger(__name__)


class HostPods:
    """The host-network pods of one node."""

    def __init__(self, finder: HostPodFinder, rules: HostPodRules, ledger: Ledger) -> None:
        self._finder = finder
        self._rules = rules
        self._ledger = ledger
        self._live: dict[int, HostPod] = {}
        self._started = False

    def _start(self) -> None:
        """Take over from a predecessor: what its counters show since is posted; pods that are gone end."""
        made = self._rules.make()
        self._live = {one.cgroup.number: one for one in self._finder.find()}
        known = {c for c, owner in self._ledger.counters().items() if owner and not c.is_pod}
        if not made:
            self._ledger.post(self.samples())
        stay = {counter for number in self._live for counter in counters_of(number)}
        self._ledger.end(known - stay)
        if made:
            self._ledger.restart(known & stay)
        self._begin(list(self._live.values()))
        self._started = True

    def look(self) -> None:
        """Begin with pods that came, end those whose cgroup is gone, and make a lost table again.

        Raises:
            KernelError: the kernel cannot do it, or not now; what is not counted stays the node's own.
        """
        if not self._started:
            self._start()
            return
        if self._rules.make():
            log.warning("repaired area=rules what=%s", "the table of host-network pods was missing or altered")
            self._ledger.restart(counter for number in self._live for counter in counters_of(number))
            self._admit(list(self._live.values()))
        found = {one.cgroup.number: one for one in self._finder.find()}
        gone = [one for one in self._live.values() if not one.cgroup.path.is_dir()]
        if gone:
            self._end(gone)
        self._begin([one for number, one in found.items() if number not in self._live])

    def follow(self, internal: Iterable[Prefix]) -> None:
        """Have this be no internet from the next look on, as the node's own rules do."""
        self._rules.follow(internal)

    def _begin(self, pods: list[HostPod]) -> None:
        for one in pods:
            self._ledger.begin(counters_of(one.cgroup.number), one.pod)
        for one in self._admit(pods):
            self._live[one.cgroup.number] = one
            log.info("host-pod-counted pod=%s cgroup=%s", one.pod, one.cgroup.path)

    def _admit(self, pods: Iterable[HostPod]) -> list[HostPod]:
        """Those of the pods that were still there to be admitted; the others end with the next look."""
        admitted = []
        for one in pods:
            try:
                self._rules.admit([one.cgroup])
            except KernelError as error:
                if error.errno != ENOENT:
                    raise
                self._ledger.end(counters_of(one.cgroup.number))
            else:
                admitted.append(one)
        return admitted

    def _end(self, pods: list[HostPod]) -> None:
        self._ledger.post(self.samples())
        self._rules.expel(one.cgroup for one in pods)
        for one in pods:
            self._ledger.end(counters_of(one.cgroup.number))
            del self._live[one.cgroup.number]
            log.info("host-pod-ended pod=%s", one.pod)

    def samples(self) -> list[Sample]:
        """One reading of every counter; none before the first look."""
        numbers = {str(one.cgroup.path.relative_to(SYSFS)): number for number, one in self._live.items()}
        return [_sample(reading) for reading in self._rules.read(numbers)]

    def close(self) -> None:
        """Leave the counters to the next agent."""
        self._rules.close()


def open_host_pods(accounting: Accounting, internal: Iterable[Prefix], ledger: Ledger) -> HostPods:
    """The host-network pods of a node; `internal` is what the node's own rules do not count.

    Raises:
        SetupError: the machine has no libnftables, or no cgroup v2 where the document says.
    """
    if not accounting.cgroup_dir.is_relative_to(SYSFS) or not accounting.cgroup_dir.is_dir():
        raise SetupError(f"accounting.cgroup_dir: {accounting.cgroup_dir} is no directory at or below {SYSFS}")
    finder = HostPodFinder(accounting.cgroup_dir, accounting.pod_logs_dir)
    return HostPods(finder, HostPodRules(internal, finder.depths), ledger)


def retire(counters: Iterable[Counter], ledger: Ledger) -> None:
    """End what an earlier agent counted, where the document no longer asks for it."""
    rules = HostPodRules((), ())
    try:
        rules.remove()
    finally:
        rules.close()
    ledger.end(counters)


def counters_of(number: int) -> list[Counter]:
    """The counters of one cgroup."""
    return [Counter(f"{SUBJECT}{number}", family, traffic) for family in Family for traffic in _WAYS]


_WAYS = (Traffic.INTERNET_IN, Traffic.INTERNET_OUT)


def _sample(reading: Reading) -> Sample:
    counter = Counter(f"{SUBJECT}{reading.number}", reading.family, reading.traffic)
    return Sample(counter, reading.bytes, reading.packets)
