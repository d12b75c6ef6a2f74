"""No more of a quota passes when further headers are charged to it as well."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from netmgr.documents.limits import QuotaPeriod
from netmgr.limits.quotas import NodeQuota, QuotaReading, Standing, corrected
from netmgr.model import Traffic

SIZE = 10_000_000
QUOTA = NodeQuota("team", "pod", Traffic.INTERNET_OUT, QuotaPeriod.DAY, SIZE, 0, 0)


class Step(NamedTuple):
    """Bytes between two looks: offered, dropped behind the quota, missed by the ledger; and what a
    wire has beside each thousand.
    """

    offered: int
    dropped: int
    missed: int
    headers: int


STEPS = st.lists(
    st.builds(
        Step,
        st.integers(0, SIZE),
        st.just(0) | st.integers(0, SIZE // 10),
        st.just(0) | st.integers(0, SIZE // 10),
        st.just(0) | st.integers(0, 700),
    ),
    max_size=30,
)


@given(STEPS)
def test_no_more_bytes_pass_than_there_are(steps: list[Step]) -> None:
    bound, counted, passed, used = SIZE, 0, 0, 0
    standing: Standing | None = None
    for step in steps:
        admitted = min(step.offered, max(0, bound - counted))
        delivered = max(0, admitted - step.dropped)
        seen = max(0, delivered - step.missed)
        counted, passed = counted + admitted, passed + delivered
        used += seen + seen * step.headers // 1000
        assert passed <= SIZE
        look = QuotaReading(bound, counted, counted, 0, used, SIZE)
        standing = corrected(QUOTA, look, standing, is_whole=seen == delivered)
        bound = standing.bound
