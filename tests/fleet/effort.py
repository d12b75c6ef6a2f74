"""How much is measured of a fleet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Effort:
    """The defaults are what `make fleet` measures; `SMOKE` only shows that it runs.

    Attributes:
        nodes: of the cluster on a real API server.
        scraped: nodes that a real Prometheus scrapes.
        scrapes: how often it scrapes each of them.
        scrape_seconds: the pause between two scrapes.
        wave: the share of all that is changed at a time in a rolling change.
        idle_seconds: how long nothing happens.
        lease_seconds: how often each kubelet renews its Lease.
        lent: nodes whose budgets are lent in virtual time, and `settled_seconds` for how long;
            a tenth of them where some lie, which more of them would not change.
        paired: nodes under each pair of faults, of which one in `pairs` is tried.
    """

    nodes: int = 7500
    scraped: int = 750
    scrapes: int = 240
    scrape_seconds: int = 5
    wave: float = 0.05
    idle_seconds: int = 60
    lease_seconds: float = 60
    lent: int = 7500
    settled_seconds: int = 120
    paired: int = 100
    pairs: int = 1


SMOKE = Effort(
    nodes=20,
    wave=0.5,
    scraped=10,
    scrapes=3,
    scrape_seconds=1,
    idle_seconds=2,
    lease_seconds=5,
    lent=300,
    settled_seconds=60,
    paired=30,
    pairs=13,
)
