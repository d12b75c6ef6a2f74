"""A hub router of nftables, where one rule counts every pair of spokes: what it counts, and what
may happen to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from netmgr.kernel import netns
from netmgr.prefixes import Family
from netmgr.rules.engine import Rules
from netmgr.rules.nftables import NftablesBackend
from netmgr.rules.policy import Policy
from tests.contracts.conftest import put_right, settled
from tests.contracts.star import HEADERS, HOSTS, Star, dropped, star
from tests.fakes.sites import SITES, document
from tests.waiting import PATIENCE

pytestmark = pytest.mark.root

A, B = "spoke-a", "spoke-b"
SIZE = 50
ONE = (1, SIZE + HEADERS[Family.V4])
MORE = [
    {"name": f"spoke-{name}", "prefixes": [f"10.{200 + number}.0.0/16"]}
    for number, name in enumerate("0def")
]


def policy(*more: object) -> Policy:
    return Policy.of(document("hub-router", node={"name": "router"}, sites=[*SITES, *more]))


@pytest.fixture
def world(namespaces, program) -> Iterator[Star]:
    with netns.entered(namespaces("router").descriptor), star(namespaces, program) as made:
        yield made


@pytest.fixture
def router(world) -> Iterator[Rules]:
    """It has counted one packet from the first spoke to the second."""
    rules = settled(NftablesBackend(), policy())
    # So that hosts know their router's MAC, and a packet is counted when it is sent.
    for host in ("own", "foreign"):
        assert passes(world, host, "researcher")
    assert not passes(world, "own", "foreign", seconds=0.15)
    assert dropped(rules) == {(A, B): ONE}
    yield rules
    rules.close()


def passes(world: Star, origin: str, destination: str, *, seconds: float = PATIENCE) -> bool:
    """Whether a datagram arrives within this time."""
    ends = [
        world.socket(name, Family.V4, HOSTS[name][Family.V4], port)
        for name, port in ((origin, 0), (destination, 4000))
    ]
    sender, receiver = ends
    try:
        sender.sendto(b"x" * SIZE, (HOSTS[destination][Family.V4], 4000))
        receiver.settimeout(seconds)
        return len(receiver.recv(SIZE)) == SIZE
    except TimeoutError:
        return False
    finally:
        for end in ends:
            end.close()


def test_counts_stay_those_of_their_pair_when_spokes_come_and_go(router):
    for sites in (MORE, MORE[:1], ()):
        router.change_policy(policy(*sites))
        put_right(router)
        assert dropped(router) == {(A, B): ONE}


@pytest.mark.parametrize(
    ("harm", "lost"),
    [
        ("flush chain inet netmgr between4", "'isolation forward v4' was altered"),
        ("insert rule inet netmgr between4 accept", "'isolation forward v4' was altered"),
        ("flush chain inet netmgr forward", "'isolation forward v4' was missing"),
    ],
)
def test_lost_rules_are_found_and_written_again_without_losing_a_count(
    world, router, program, harm, lost
):
    program(f"nft {harm}")
    assert f"chain forward: rule {lost}" in put_right(router).repairs
    assert dropped(router) == {(A, B): ONE}
    assert not passes(world, "foreign", "own", seconds=0.15)
    assert dropped(router) == {(A, B): ONE, (B, A): ONE}
    assert passes(world, "neighbour", "own")
    assert passes(world, "researcher", "own")


def test_a_rule_that_was_altered_under_its_comment_is_found(router, program):
    listed = program("nft -a list chain inet netmgr between4")
    found = re.search(r'(comment "between4 2 .*") # handle (\d+)', listed)
    program("nft -f -", f"replace rule inet netmgr between4 handle {found[2]} accept {found[1]}\n")
    assert router.plan([]).repairs == ("chain forward: rule 'isolation forward v4' was altered",)


def test_what_it_has_no_room_to_count_is_dropped(world, router, program):
    others = ", ".join(f"{number} . 1:1 counter" for number in range(1, 16_384))
    program("nft -f -", f"add element inet netmgr isolated4 {{ {others} }}\n")
    assert not passes(world, "foreign", "own", seconds=0.15)
    assert dropped(router) == {(A, B): ONE}


def test_elements_of_others_are_no_counts(router, program):
    program("nft add element inet netmgr isolated4 { 1 . 1:1, 2 . none, 3 . root counter }")
    assert not router.plan([])
    assert dropped(router) == {(A, B): ONE}
