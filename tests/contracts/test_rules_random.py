"""Whatever happened before, a plan leads to the desired state and tells truly which counters it
begins anew.

The ledger believes `Transaction.created`: a counter that began anew without being named would
lose bytes, one named that did not would count them twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netmgr.documents.accounting import NodeRules
from netmgr.model import Counter, Traffic
from netmgr.prefixes import Address, Family, Prefix
from netmgr.rules.classifier import pod_set
from netmgr.rules.engine import Rules
from netmgr.rules.isolation import Isolation
from netmgr.rules.model import Hook, Spoke

PODS = [
    Address.parse(text)
    for text in ("10.1.0.5", "10.1.0.6", "10.1.0.7", "2001:db8:1::5", "2001:db8:1::6")
]
SECOND_THOUGHTS = ["internal", "masquerade", "node_rules", "isolation"]

some_pods = st.frozensets(st.sampled_from(PODS))
a_pod = st.sampled_from(PODS)
a_direction = st.sampled_from(Traffic)
a_step = st.one_of(
    st.tuples(st.just("reconcile"), some_pods, st.frozensets(st.sampled_from(SECOND_THOUGHTS))),
    st.tuples(st.just("admit"), some_pods),
    st.tuples(st.just("expel"), some_pods),
    st.tuples(st.just("traffic"), a_pod, a_direction, st.integers(1, 10**12)),
    st.tuples(st.just("lose_element"), a_pod, a_direction),
    st.tuples(st.just("lose_set"), a_direction, st.sampled_from(Family)),
    st.tuples(st.just("add_rule"), st.sampled_from([Hook.BEFORE_SRCNAT, Hook.PREROUTING])),
    st.tuples(st.just("lose_everything")),
)


@dataclass
class History:
    """Plays steps against a kernel and keeps what every pod's counter should read."""

    kernel: object
    policy: object
    rules: Rules
    readings: dict[Counter, int] = field(default_factory=dict)

    def play(self, step):
        getattr(self, step[0])(*step[1:])
        read = {
            sample.counter: sample.bytes for sample in self.rules.read() if sample.counter.is_pod
        }
        assert read == self.readings, step

    def reconcile(self, pods, changed):
        changes = {
            "internal": (*self.policy.internal, Prefix.parse("198.51.100.0/24")),
            "masquerade": False,
            "node_rules": NodeRules.EXACT,
            "isolation": Isolation(
                (Spoke("a", (PODS[0].prefix,)), Spoke("b", (Prefix.parse("10.2.0.0/16"),))), "a"
            ),
        }
        self.rules = Rules(
            self.kernel.backend, replace(self.policy, **{name: changes[name] for name in changed})
        )
        plan = self.rules.plan(pods)
        self.rules.apply(plan)
        again = self.rules.plan(pods)
        assert not again, again.repairs
        self.readings = {
            counter: self.readings.get(counter, -1) for pod in pods for counter in both(pod)
        }
        self.readings |= dict.fromkeys((counter for counter in plan.created if counter.is_pod), 0)
        for pod in pods:
            assert self.rules.check([pod]) == []

    def sets_are_there(self):
        return all(self.is_there(traffic, family) for traffic in Traffic for family in Family)

    def is_there(self, traffic, family):
        observed = self.kernel.backend.observe(self.rules._skeleton)
        return pod_set(traffic, family).name in observed.members

    def admit(self, pods):
        if self.sets_are_there():
            self.rules.admit(pods)
            self.readings = (
                dict.fromkeys((counter for pod in pods for counter in both(pod)), 0) | self.readings
            )

    def expel(self, pods):
        self.rules.expel(pods)
        for pod in pods:
            for counter in both(pod):
                self.readings.pop(counter, None)

    def traffic(self, pod, direction, octets):
        counter = Counter.of_pod(pod, direction)
        if counter in self.readings:
            self.kernel.set_counts(pod_set(direction, pod.family).name, [pod], 1, octets)
            self.readings[counter] = octets

    def lose_element(self, pod, direction):
        if self.readings.pop(Counter.of_pod(pod, direction), None) is not None:
            self.kernel.lose_element(pod_set(direction, pod.family).name, pod)

    def lose_set(self, direction, family):
        if self.is_there(direction, family):
            self.kernel.lose_set(pod_set(direction, family))
            lost = [
                one for one in self.readings if (one.traffic, one.family) == (direction, family)
            ]
            for counter in lost:
                del self.readings[counter]

    def add_rule(self, hook):
        observed = self.kernel.backend.observe(self.rules._skeleton)
        if observed.chains.get(hook):
            self.kernel.add_rule(hook)

    def lose_everything(self):
        if self.rules.plan([]).repairs != ("the whole ruleset was missing",):
            self.kernel.lose_everything()
            self.readings = {}


def both(pod):
    return [Counter.of_pod(pod, traffic) for traffic in Traffic]


@pytest.mark.slow
@pytest.mark.timeout(900)  # hundreds of programs, each started after the other
@settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(a_step, max_size=12))
def test_any_history_ends_as_desired_with_every_count_accounted_for(kernel, policy, steps):
    history = History(kernel, policy, Rules(kernel.backend, policy))
    try:
        for step in (*steps, ("reconcile", frozenset(PODS), frozenset())):
            history.play(step)
    finally:
        history.rules.remove()
