"""A reading that many ask for is taken as often as it is cheap, and an old one beats none."""

from __future__ import annotations

from dataclasses import dataclass, field

from netmgr.agent.latest import Latest
from netmgr.errors import KernelError


@dataclass
class Kernel:
    """Counts how often it is read, on a clock that only reading moves."""

    cost: float = 0.0
    time: float = 100.0
    readings: int = 0
    fault: KernelError | None = field(default=None)

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def read(self) -> int:
        self.readings += 1
        self.time += self.cost
        if self.fault:
            raise self.fault
        return self.readings


def test_a_reading_serves_everybody_until_it_is_too_old() -> None:
    kernel = Kernel()
    latest = Latest(kernel.read, kernel, 0.5, 0)
    assert [latest.value(), latest.value()] == [1, 1]
    kernel.time += 0.5
    assert [latest.value(), latest.value()] == [2, 2]


def test_a_reading_that_takes_long_is_taken_less_often() -> None:
    kernel = Kernel(cost=3.0)
    latest = Latest(kernel.read, kernel, 0.5, 0)
    assert latest.value() == 1
    kernel.time += 50
    assert latest.value() == 1
    kernel.time += 10
    assert latest.value() == 2


def test_where_the_kernel_cannot_be_read_the_last_reading_stands() -> None:
    kernel = Kernel(fault=KernelError("list counters"))
    latest = Latest(kernel.read, kernel, 0.0, 0)
    assert latest.value() == 0
    kernel.fault = None
    assert latest.value() == 2
    kernel.fault = KernelError("list counters")
    assert latest.value() == 2
