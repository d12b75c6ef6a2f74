"""Whatever passes while a reading is taken, and whoever zeroes a rule: unattributed bytes are never
overstated.
"""

from __future__ import annotations

import shutil

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from netmgr.ledger.ledger import Ledger
from netmgr.model import Counter, PodRef, Sample, Traffic
from netmgr.prefixes import Address, Family
from tests.fakes.ledger_tools import Clock, folder_in_memory, opened

OUT = Traffic.INTERNET_OUT
POD = Counter.of_pod(Address(Family.V4, 1), OUT)
RULES = [Counter("FORWARD", family, OUT) for family in Family]
SIZE = st.integers(0, 5000)


class Node(RuleBasedStateMachine):
    """`hidden` is what zeroed rules can at most hide: what pods sent before, others until the audit
    is settled.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = folder_in_memory()
        self.clock = Clock()
        self.kernel = dict.fromkeys((POD, *RULES), 0)
        self.others = self.shown = self.hidden = self.unsettled = self.unread = 0
        self.start()
        self.ledger.begin([POD], PodRef("team-a", "web-0"))
        self.ledger.begin(RULES, None)

    def start(self) -> None:
        self.ledger: Ledger = opened(self.folder / "ledger.db", self.clock)

    def teardown(self) -> None:
        self.ledger.close()
        shutil.rmtree(self.folder)

    def forward(self, pods: int, others: int) -> None:
        self.kernel[POD] += pods
        self.kernel[RULES[0]] += pods
        self.kernel[RULES[1]] += others
        self.others += others
        self.unread += pods + others
        if self.unsettled:
            self.hidden += others

    @rule(pods=SIZE, others=SIZE)
    def traffic(self, pods: int, others: int) -> None:
        self.forward(pods, others)

    @rule(pods=SIZE, others=SIZE, order=st.permutations([[POD], RULES]))
    def read(self, pods: int, others: int, order: list[list[Counter]]) -> None:
        first, second = order
        samples = self.samples(first)
        self.unread = 0
        self.forward(pods, others)
        if second is RULES:
            self.unread = 0
        self.ledger.post([*samples, *self.samples(second)])
        self.unsettled = max(0, self.unsettled - 1)

    @rule()
    def read_the_pod_alone(self) -> None:
        self.ledger.post(self.samples([POD]))

    def samples(self, counters: list[Counter]) -> list[Sample]:
        return [Sample(counter, self.kernel[counter], self.kernel[counter]) for counter in counters]

    @rule()
    def someone_zeroes_a_rule(self) -> None:
        self.hidden += self.unread
        self.kernel[RULES[0]] = self.kernel[RULES[1]] = 0
        self.unsettled = 3

    @rule()
    def restart(self) -> None:
        self.ledger.close()
        self.start()

    @invariant()
    def never_more_than_passed_and_never_less_than_before(self) -> None:
        (one,) = self.ledger.totals().audits or [None]
        if one is not None:
            assert self.shown <= one.missed.bytes <= self.others
            self.shown = one.missed.bytes

    @rule()
    def be_quiet_for_a_while(self) -> None:
        for _ in range(4):
            self.read(0, 0, [[POD], RULES])
        (one,) = self.ledger.totals().audits
        if not self.hidden:
            assert one.missed.bytes == self.others


Node.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestNode = Node.TestCase
