"""The buddy tree of free space says what netaddr's sets say, and its choices are what they claim to
be.
"""

from __future__ import annotations

import hypothesis.strategies as st
import netaddr
from hypothesis import given

from netmgr.plan.allocate.space import Space, enclosing, subtract
from netmgr.prefixes import Family, Prefix

ROOT = Prefix.parse("10.0.0.0/24")
SMALLEST = 30

blocks = st.builds(
    lambda offset, length: enclosing(Prefix(Family.V4, ROOT.value + offset, 32), length),
    st.integers(0, 255),
    st.integers(ROOT.length, SMALLEST),
)
steps = st.lists(st.tuples(st.sampled_from(["take", "withdraw", "give"]), blocks), max_size=25)


def played(moves: list[tuple[str, Prefix]]) -> tuple[Space, netaddr.IPSet]:
    space, peer = Space(Family.V4, [ROOT]), netaddr.IPSet([str(ROOT)])
    for move, block in moves:
        text = netaddr.IPNetwork(str(block))
        if move == "withdraw" or (move == "take" and text in peer):
            space.withdraw(block) if move == "withdraw" else space.take(block)
            peer.remove(text)
        elif move == "give" and not peer & netaddr.IPSet([text]):
            space.give(block)
            peer.add(text)
    return space, peer


@given(steps)
def test_free_blocks_are_those_of_an_ipset(moves):
    space, peer = played(moves)
    assert sorted(map(str, space.blocks())) == sorted(str(block) for block in peer.iter_cidrs())
    assert space.size == peer.size


@given(steps, blocks)
def test_free_is_what_an_ipset_contains(moves, block):
    space, peer = played(moves)
    assert space.is_free(block) == (netaddr.IPNetwork(str(block)) in peer)


@given(steps, st.integers(ROOT.length, SMALLEST))
def test_every_choice_finds_room_when_there_is_some(moves, length):
    space, peer = played(moves)
    fitting = [block for block in peer.iter_cidrs() if block.prefixlen <= length]
    for choice in (space.packed(length), space.sparse(length), space.topmost(length)):
        assert (choice is not None) == bool(fitting)
        assert choice is None or netaddr.IPNetwork(str(choice)) in peer
    if fitting:
        widest = min(block.prefixlen for block in fitting)
        assert space.is_free(enclosing(space.sparse(length), widest))
        assert space.topmost(length).last == max(block.last for block in fitting)
        assert not any(
            space.is_free(enclosing(space.packed(length), near)) for near in _shorter(fitting)
        )


def _shorter(fitting: list[netaddr.IPNetwork]) -> list[int]:
    tightest = max(block.prefixlen for block in fitting)
    return [tightest - 1] if tightest else []


@given(steps, blocks, st.integers(0, SMALLEST))
def test_growth_takes_only_what_is_free(moves, block, length):
    space, peer = played(moves)
    grown = space.grown(block, length)
    if grown is not None and length <= block.length:
        assert grown.length == length
        assert all(netaddr.IPNetwork(str(part)) in peer for part in subtract(grown, block))
    doublings = space.room(block)
    assert space.grown(block, block.length - doublings) is not None
    assert block.length == doublings or space.grown(block, block.length - doublings - 1) is None
