"""A limit of connections, while established ones skip the rules. `test_flowtable.py` runs it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kernel.flowtable_promises import WATCH, connection, met_the_rules, nft, wait_for_links
from tests.lab.topology import cluster
from tests.lab.world import World

pytestmark = pytest.mark.root

AT_ONCE = 4
LIMITS = [{"pods": "*/*", "connections": {"at-once": AT_ONCE, "new-per-second": 1000}}]


@pytest.fixture
def world() -> Iterator[World]:
    room = replace(cluster(pods=4), pods=())
    name = f"flow-limits-{os.getpid()}"
    with World(room, backend=Backend.NFTABLES, name=name, settings={"limits": LIMITS}) as made:
        yield made


@pytest.mark.parametrize("family", Family)
def test_a_limit_of_connections_holds_and_those_that_are_there_skip_the_rules(
    world: World, family: Family
) -> None:
    node = world.nodes[0]
    nft(node, WATCH)
    client, server = node.add("client"), world.nodes[1].add("server")
    wait_for_links(node)
    with ExitStack() as stack:
        held = [stack.enter_context(connection(client, server, family)) for _ in range(AT_ONCE + 1)]
        *allowed, refused = held
        for one in allowed:
            one.exchange()
        before = met_the_rules(node)
        for one in allowed:
            one.exchange()
        assert met_the_rules(node) == before
        refused.near.send(b"?")
        refused.far.settimeout(0.5)
        with pytest.raises(TimeoutError):
            refused.far.recv(1)
        for one in allowed:
            one.exchange()
        assert met_the_rules(node) == before
