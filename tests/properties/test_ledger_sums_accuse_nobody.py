"""The sum of pods' counters: undisturbed, it never says that something was lost, however packets
pass between the readings of single counters. And what another program does to pods' counters it
tells to the byte.
"""

from __future__ import annotations

import shutil

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from netmgr.model import PODS, Counter, PodRef, Sample, Traffic
from netmgr.prefixes import Address, Family
from tests.fakes.ledger_tools import Clock, folder_in_memory, opened

OUT = Traffic.INTERNET_OUT
SUM = Counter(PODS, Family.V4, OUT)
TABLE = 7
ADDRESSES = [Address(Family.V4, number) for number in range(1, 5)]
PICK = st.integers(0, 3)
PACKETS = st.lists(st.tuples(PICK, st.integers(1, 1500), st.booleans()), max_size=4)
"""Which pod sends, so many bytes, and whether the sum is raised at once or by the next packet."""


class Undisturbed(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = folder_in_memory()
        self.clock = Clock()
        self.elements: dict[Address, Sample] = {}
        self.sum = self.late = self.passed = self.lives = 0
        self.saved: dict[Address, Sample] = {}
        self.open()
        self.ledger.begin([SUM], None)

    def open(self) -> None:
        self.ledger = opened(self.folder / "ledger.sqlite", self.clock)

    def teardown(self) -> None:
        self.ledger.close()
        shutil.rmtree(self.folder)

    @property
    def told(self) -> int:
        return sum(gap.get("bytes", 0) for gap in self.ledger.totals().gaps)

    @property
    def counted(self) -> int:
        return sum(one["bytes"] for one in self.ledger.totals().namespaces)

    def send(self, packets: list[tuple[int, int, bool]]) -> None:
        for pick, size, at_once in packets:
            if self.elements:
                address = sorted(self.elements)[pick % len(self.elements)]
                _, octets, count, life, *_ = self.elements[address]
                self.elements[address] = Sample(
                    Counter.of_pod(address, OUT), octets + size, count + 1, life
                )
                self.passed += size
                self.sum += self.late
                self.late = size
                if at_once:
                    self.settle()

    def settle(self) -> None:
        """Packets on their way between an element and the sum get there."""
        self.sum, self.late = self.sum + self.late, 0

    @precondition(lambda self: len(self.elements) < len(ADDRESSES))
    @rule()
    def start_pod(self) -> None:
        address = next(one for one in ADDRESSES if one not in self.elements)
        self.lives += 1
        counter = Counter.of_pod(address, OUT)
        self.ledger.begin([counter], PodRef("team", f"pod-{self.lives}"))
        self.elements[address] = Sample(counter, 0, 0, self.lives)

    @precondition(lambda self: self.elements)
    @rule(pick=PICK)
    def stop_pod(self, pick: int) -> None:
        self.settle()
        last = self.elements.pop(sorted(self.elements)[pick % len(self.elements)])
        self.saved.pop(last.counter.subject, None)
        self.ledger.post([last], closing=[last.counter])
        self.ledger.end([last.counter])

    @rule(packets=PACKETS)
    def pass_traffic(self, packets: list[tuple[int, int, bool]]) -> None:
        self.send(packets)

    @rule(meanwhile=st.lists(PACKETS, min_size=5, max_size=5), is_first=st.booleans())
    def read(self, meanwhile: list[list[tuple[int, int, bool]]], *, is_first: bool) -> None:
        """Packets pass between the readings of any two counters."""
        self.clock.time += 1
        # A packet is on its way during one reading, not from one to the next.
        self.settle()
        self.send(meanwhile[-1])
        samples = [Sample(SUM, self.sum, 0, TABLE)]
        for address, packets in zip(sorted(self.elements), meanwhile, strict=False):
            if is_first:
                self.send(packets)
            samples.append(self.elements[address])
            if not is_first:
                self.send(packets)
        self.ledger.post(samples)

    @rule()
    def restart(self) -> None:
        self.ledger.close()
        self.open()

    @rule(meanwhile=PACKETS)
    def go_on_with_another_backend(self, meanwhile: list[tuple[int, int, bool]]) -> None:
        """Or after a loss: counters go on from a reading whose counters are not of one instant."""
        self.settle()
        last = [Sample(SUM, self.sum, 0, TABLE), *self.elements.values()]
        self.send(meanwhile)
        self.ledger.hand_over(last, [last[0], *self.elements.values()], "nftables", 0)

    def read_quietly(self) -> None:
        self.settle()
        self.ledger.post([Sample(SUM, self.sum, 0, TABLE), *self.elements.values()])

    @invariant()
    def nothing_is_said_to_be_lost(self) -> None:
        gaps = self.ledger.totals().gaps
        assert not any(one["count"] or one.get("bytes") for one in gaps), gaps


class Disturbed(Undisturbed):
    """Other programs zero counters, save them and put them back."""

    go_on_with_another_backend = None

    @precondition(lambda self: self.elements)
    @rule(pick=PICK)
    def zero(self, pick: int) -> None:
        address = sorted(self.elements)[pick % len(self.elements)]
        self.elements[address] = Sample(Counter.of_pod(address, OUT), 0, 0)

    @rule()
    def save(self) -> None:
        """A counter that was zeroed is in no life: a copy of it cannot be told from traffic."""
        self.saved = {address: one for address, one in self.elements.items() if one.life}

    @rule()
    def put_back(self) -> None:
        self.elements.update(self.saved)

    @invariant()
    def nothing_is_said_to_be_lost(self) -> None:
        assert self.counted + self.told <= self.passed

    @invariant()
    def every_byte_is_counted_or_told(self) -> None:
        self.read_quietly()
        assert self.counted + self.told == self.passed


Undisturbed.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
Disturbed.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestUndisturbed = Undisturbed.TestCase
TestDisturbed = Disturbed.TestCase
