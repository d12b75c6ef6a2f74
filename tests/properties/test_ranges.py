"""Of blocks that overlap, in any order, the first one is used."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from netmgr.documents.node import NodeDocument
from netmgr.prefixes import Family, Prefix
from netmgr.ranges.answers import RangeOffer
from netmgr.ranges.sources import validate
from tests.builders import NODE_KEYS

DOCUMENT = NodeDocument.model_validate(
    {**NODE_KEYS, "node": {"name": "worker-0"}, "range_source": "aws"}
)


@st.composite
def blocks(draw: st.DrawFn) -> Prefix:
    family = draw(st.sampled_from(Family))
    free = draw(st.integers(0, 4))
    first = 10 << 24 if family is Family.V4 else 0xFD << 120
    return Prefix(family, first + (draw(st.integers(0, 31)) >> free << free), family.width - free)


@given(st.lists(blocks(), max_size=12))
def test_whatever_the_order_the_first_of_overlapping_blocks_is_used_and_nothing_twice(offered):
    used: list[Prefix] = []
    for block in dict.fromkeys(offered):
        if not any(block.overlaps(earlier) for earlier in used):
            used.append(block)
    valid = validate(RangeOffer(tuple(offered)), DOCUMENT, {})
    assert valid.ranges == tuple(sorted(used))
    assert len(valid.refused) == len(set(offered)) - len(used)
