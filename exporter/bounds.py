"""Scrape size is bounded: the length of label values, and which pods are left out.

When a page would have more series than allowed, pods are left out in this order:

1. lingering pods: they ended, and stay only to be scraped once more;
2. live pods.

Within both, the pod with the least traffic (bytes in and out together) goes first, and of equals
the one whose name sorts last. A pod goes with all its series. Totals only grow, so the order is
stable: a pod comes back only by overtaking another. Figures of limits and quotas are shown as far
as there is room beside pods. Everything else stays, above all the totals of namespaces and the
node, which include pods that are left out.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from netmgr.api.snapshot import LimitState, PodLabels, PodTotals, QuotaState

# Bytes of UTF-8 in a label value. Kubernetes' own names are never longer (RFC 1123 subdomains).
LONGEST_LABEL = 253

# As many as there are families of each.
SERIES_PER_LIMIT, SERIES_PER_QUOTA = 6, 3

_DIGEST_DIGITS = 32

_Pod = tuple[str, str]
Owned = TypeVar("Owned", bound=PodLabels)


@dataclass(frozen=True, slots=True)
class Selection:
    """Totals to show, in their old order, and how many series of which pods are left out."""

    shown: Sequence[PodTotals]
    dropped_lingering: int = 0
    dropped_live: int = 0


def bounded(value: str) -> str:
    """The value itself, or, where it is too long, its beginning, `~` and a digest of the whole.

    Two values never become one: the digest has 128 bits, and a value that only looks shortened is
    shortened as well.

    Raises:
        UnicodeEncodeError: the value is not valid Unicode.
    """
    raw = value.encode()
    tail = 1 + _DIGEST_DIGITS
    if len(raw) <= LONGEST_LABEL and raw[-tail:-_DIGEST_DIGITS] != b"~":
        return value
    # The cut may be in the middle of a character.
    beginning = raw[: LONGEST_LABEL - tail].decode(errors="ignore")
    return f"{beginning}~{hashlib.sha256(raw).hexdigest()[:_DIGEST_DIGITS]}"


def by_size(limits: Iterable[LimitState]) -> list[LimitState]:
    """Limits in the order in which they are shown: namespaces', then those with most traffic."""
    return _ranked(limits, lambda limit: limit["bytes"])


def by_use(quotas: Iterable[QuotaState]) -> list[QuotaState]:
    """Quotas in the order in which they are shown: namespaces', then those that are used most."""
    return _ranked(quotas, lambda quota: quota["used"] / max(1, quota["budget"]))


def _ranked(owned: Iterable[Owned], size: Callable[[Owned], float]) -> list[Owned]:
    return sorted(
        owned, key=lambda own: (bool(own["pod"]), -size(own), own["namespace"], own["pod"])
    )


def series_of(total: PodTotals) -> int:
    """Bytes and packets, and what is known of wires."""
    return 4 if "wire" in total else 2


def select(totals: Sequence[PodTotals], room: int) -> Selection:
    """The totals that fit into `room` series, by the order above."""
    if sum(map(series_of, totals)) <= room:
        return Selection(totals)
    series: defaultdict[_Pod, int] = defaultdict(int)
    size: defaultdict[_Pod, int] = defaultdict(int)
    live: dict[_Pod, bool] = {}
    for total in totals:
        pod = total["namespace"], total["pod"]
        series[pod] += series_of(total)
        size[pod] += total["bytes"]
        live[pod] = total["live"]
    shown: set[_Pod] = set()
    # Stops at the first pod that has no room, rather than going on to a smaller one: the order of
    # what is left out would depend on sizes otherwise.
    for pod in sorted(series, key=lambda pod: (not live[pod], -size[pod], pod)):
        room -= series[pod]
        if room < 0:
            break
        shown.add(pod)
    dropped = {
        state: sum(series[pod] for pod in series.keys() - shown if live[pod] is state)
        for state in (True, False)
    }
    return Selection(
        [total for total in totals if (total["namespace"], total["pod"]) in shown],
        dropped[False],
        dropped[True],
    )
