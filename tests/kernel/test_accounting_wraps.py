"""A counter at the end of its 64 bits, in a world of its own: no total there can grow any more."""

from __future__ import annotations

import pytest

from netmgr.documents.node import Backend
from tests.kernel.conftest import EVERY_WAY_OF_COUNTING, one_of
from tests.kernel.spending import Spender, gaps, set_counter
from tests.lab.nodes import LabNode

pytestmark = pytest.mark.root

WORLD = {
    "nodes": 1,
    "settings": {"accounting": {"min_reading_seconds": 0, "reading_seconds": 300}},
    "exporters": False,
}

backend = one_of(EVERY_WAY_OF_COUNTING)


@pytest.mark.parametrize("edge", [1 << 63, 1 << 64], ids=["2**63", "2**64"])
def test_a_counter_that_wraps_loses_nothing(
    node: LabNode, spender: Spender, backend: Backend, edge: int
) -> None:
    spender.send()
    preset = edge - 1500
    set_counter(spender, backend, packets=9, size=preset)
    start, before = spender.counted(), gaps(node)
    sent = spender.send() + spender.send()
    assert sent > 1500
    assert spender.counted() == start + sent
    assert gaps(node)["reset"] == before["reset"]
    assert node.snapshot()["durable"]
