"""An agent that runs no pods: what it sets up where sites meet, keeps, and leaves alone."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kernel.joined import HUB_ROUTER, SITES, Joined, joined, own

pytestmark = pytest.mark.root

BACK = {"to": "192.0.2.0/24", "via": str(own("researcher", Family.V4))}
BACK6 = {"to": "2001:db8:7::/48", "via": str(own("researcher", Family.V6))}
SWITCHES = {Family.V4: "net.ipv4.ip_forward", Family.V6: "net.ipv6.conf.all.forwarding"}


@pytest.fixture(scope="module")
def world() -> Iterator[Joined]:
    with joined(Backend.NFTABLES, f"test-{os.getpid()}-gateway") as made:
        yield made


@pytest.fixture
def router(world: Joined) -> Iterator[Joined]:
    world.start(HUB_ROUTER | {"routes": [BACK, BACK6]})
    yield world
    world.stop()


def routes(world: Joined) -> str:
    return world.run("ip", "route") + world.run("ip", "-6", "route")


def test_a_hub_router_forwards_as_soon_as_it_is_ready(router: Joined) -> None:
    for family in Family:
        assert router.send("researcher", "a", family) == str(own("researcher", family))
    snapshot = router.agent.snapshot()
    assert {item["reason"]: item["count"] for item in snapshot["drift_repaired"]}.keys() >= {
        "rules",
        "routes",
    }
    assert not any(item["count"] for item in snapshot["drift_repaired"])
    assert (snapshot["role"], snapshot["pool"], snapshot["pods"]) == ("hub-router", [], [])


def test_forwarding_that_somebody_switched_off_is_put_back_and_told(router: Joined) -> None:
    for times, family in enumerate(Family):
        router.run("sysctl", "-w", f"{SWITCHES[family]}=0")
        router.wait_until(lambda times=times: router.repaired("forwarding") > times)
        assert router.send("researcher", "a", family)
        assert f"forwarding of IPv{family.value} was switched off" in router.log()


def test_a_route_of_the_document_is_put_back(router: Joined) -> None:
    before = routes(router)
    for times, route in enumerate((BACK, BACK6)):
        assert f"{route['to']} via {route['via']}" in before
        router.run("ip", "route", "del", route["to"])
        router.wait_until(lambda times=times: router.repaired("routes") > times)
        assert routes(router) == before
        assert f"route to {route['to']} via {route['via']} was missing" in router.log()


def test_a_route_of_ours_that_no_document_lists_goes_and_foreign_ones_stay(router: Joined) -> None:
    via = BACK["via"]
    router.run("ip", "route", "add", "198.51.100.0/25", "via", via, "proto", "static")
    router.run("ip", "route", "add", "198.51.100.128/25", "via", via, "proto", "110")
    router.wait_until(lambda: router.repaired("routes") > 0)
    assert "198.51.100.0/25" in routes(router)
    assert "198.51.100.128/25" not in routes(router)
    router.run("ip", "route", "del", "198.51.100.0/25")


def test_a_route_that_changed_hands_is_told_and_not_taken(router: Joined) -> None:
    foreign = ["192.0.2.0/24", "via", str(own("b", Family.V4))]
    router.run("ip", "route", "replace", *foreign, "proto", "static")
    router.wait_until(lambda: not router.agent.snapshot()["ready"])
    assert "a route that is not netmgr's goes there already" in router.agent.snapshot()["reason"]
    assert " ".join(foreign) in routes(router)
    router.run("ip", "route", "del", *foreign)
    router.wait_until(lambda: router.agent.snapshot()["ready"])


def test_routes_that_a_document_no_longer_lists_go_with_the_next_start(router: Joined) -> None:
    router.agent.stop_agent()
    assert BACK["to"] in routes(router)
    router.start(HUB_ROUTER | {"routes": [BACK6]})
    assert BACK["to"] not in routes(router)
    assert BACK6["to"] in routes(router)


def test_a_node_keeps_routes_and_spokes_apart_as_a_router_does(world: Joined) -> None:
    world.start({"site": "a", "sites": SITES, "ranges": ["10.1.0.128/28"], "routes": [BACK]})
    try:
        assert f"{BACK['to']} via {BACK['via']}" in routes(world)
        world.run("ip", "route", "del", BACK["to"])
        world.wait_until(lambda: world.repaired("routes") > 0)
        world.run("sysctl", "-w", f"{SWITCHES[Family.V4]}=0")
        world.wait_until(lambda: world.repaired("forwarding") > 0)
        assert world.agent.snapshot()["role"] == "node"
        assert world.drops() == {("a", "b"): 0, ("b", "a"): 0}
        assert world.send("a", "b", Family.V4) == ""
        world.wait_until(lambda: world.drops() == {("a", "b"): 1, ("b", "a"): 0})
    finally:
        world.stop()
