"""A clock to turn, and short words for counters and readings, for the ledger's tests."""

from __future__ import annotations

import tempfile
from pathlib import Path

from netmgr.ledger.history import Retention
from netmgr.ledger.ledger import Ledger
from netmgr.ledger.store import LedgerStore
from netmgr.ledger.totals import Totals
from netmgr.model import Counter, PodRef, Sample, Traffic
from netmgr.prefixes import Address, Family

IN, OUT = Traffic.INTERNET_IN, Traffic.INTERNET_OUT
WEB = PodRef("team-a", "web-0", "uid-1")
ADDRESS = Address.parse("10.1.0.5")
ADDRESS6 = Address.parse("2001:db8::5")
LINGER = 900.0


class Clock:
    def __init__(self) -> None:
        self.time = 1_000_000.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


class TwoClocks(Clock):
    """The wall clock can be set; the other only goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.uptime = 500.0

    def monotonic(self) -> float:
        return self.uptime

    def pass_time(self, seconds: float) -> None:
        self.time += seconds
        self.uptime += seconds


def folder_in_memory() -> Path:
    """Thousands of syncs to a disk would be slow."""
    memory = "/dev/shm"  # noqa: S108  mkdtemp's names are safe
    return Path(tempfile.mkdtemp(prefix="netmgr-", dir=memory if Path(memory).is_dir() else None))


def counter(traffic: Traffic = OUT, address: Address = ADDRESS) -> Counter:
    return Counter.of_pod(address, traffic)


def hook(chain: str, traffic: Traffic, family: Family = Family.V4) -> Counter:
    return Counter(chain, family, traffic)


def reading(size: int, packets: int | None = None, of: Counter | None = None) -> Sample:
    return Sample(of or counter(), size, size // 100 if packets is None else packets)


def opened(path: Path, clock: Clock, boot_id: str = "boot-1", **options: Retention) -> Ledger:
    store = LedgerStore(path)
    return Ledger(store, clock=clock, linger_seconds=LINGER, boot_id=boot_id, **options)


def pod_bytes(ledger: Ledger, name: str = "web-0") -> int | None:
    """Internet traffic out, as of the namespace."""
    totals = {(total["pod"], total["traffic"]): total["bytes"] for total in ledger.totals().pods}
    return totals.get((name, OUT))


def namespace_bytes(ledger: Ledger) -> int:
    totals = {
        (row["namespace"], row["traffic"]): row["bytes"] for row in ledger.totals().namespaces
    }
    return totals["team-a", OUT]


def gaps(ledger: Ledger) -> dict[str, int]:
    return counts(ledger.totals())


def counts(totals: Totals) -> dict[str, int]:
    """How often each kind of gap was seen, of those that were."""
    return {gap["reason"]: gap["count"] for gap in totals.gaps if gap["count"]}


def gap_seconds(ledger: Ledger, reason: str) -> float:
    return {gap["reason"]: gap["seconds"] for gap in ledger.totals().gaps}[reason]
