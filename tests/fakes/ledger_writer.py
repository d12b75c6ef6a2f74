"""A process that posts readings without end, to be killed: ledger_writer.py FILE ROUNDS-DONE.

It prints the number of each round after the ledger has taken it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from netmgr.ledger.ledger import Ledger
from netmgr.model import Counter, PodRef, Sample, Traffic
from netmgr.prefixes import Address, Family
from tests.fakes import ledger_tools

PODS = 50


def opened(path: Path) -> Ledger:
    return ledger_tools.opened(path, ledger_tools.Clock())


def counters(pod: int) -> list[Counter]:
    return [Counter.of_pod(Address(Family.V4, pod), traffic) for traffic in Traffic]


def begin_pods(ledger: Ledger) -> None:
    for pod in range(PODS):
        ledger.begin(counters(pod), PodRef(f"team-{pod % 5}", f"pod-{pod}"))


def round_of(number: int, pods: range = range(PODS)) -> list[Sample]:
    """Reading `number` of a kernel whose every counter grows by 1000 bytes and 2 packets a
    round."""
    return [Sample(counter, 1000 * number, 2 * number) for pod in pods for counter in counters(pod)]


def main(path: str, done: str) -> None:
    ledger, number = opened(Path(path)), int(done)
    while True:
        number += 1
        ledger.post(round_of(number))
        print(number, flush=True)  # noqa: T201  the pipe is how the test hears of it


if __name__ == "__main__":
    main(*sys.argv[1:])
