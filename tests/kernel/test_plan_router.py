"""The rendered rules of the hub's routers on a real kernel: spokes stay apart, and counting outlives a reload."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from netmgr import plan_files
from netmgr.lab.exchange import open_socket
from netmgr.lab.topology import EVERYTHING, INTERNET, Host, Interface, InterfaceAddress, Link, Route, Topology
from netmgr.lab.world import World
from netmgr.plan.derive import network
from netmgr.plan.lock import LockDocument
from netmgr.prefixes import Address, Family, Prefix
from netmgr.render.node import internal
from netmgr.render.router import TABLE, router

pytestmark = pytest.mark.root

PLAN = Path(__file__).parent.parent / "golden" / "render" / "plan.yaml"
LENGTH = {Family.V4: 24, Family.V6: 64}
FAMILIES = pytest.mark.parametrize("family", list(Family), ids=["v4", "v6"])
PORT = 4000
PATIENCE = 0.4


def locked() -> LockDocument:
    lock = plan_files.load_lock(plan_files.lock_path(PLAN))
    assert lock is not None
    return lock


def subnets(lock: LockDocument) -> dict[str, dict[Family, Prefix]]:
    """One subnet of each party, by family."""
    found = {"internet": {family: address.prefix for family, address in INTERNET.items()}}
    for name, pool in (("evals", "cpu"), ("training", "gpu")):
        layouts = lock.clusters[name].node_pools[pool].segments[0].layouts
        found[name] = {layout.hosts.family: layout.hosts for layout in layouts}
    found["researcher"] = {Family.V4: lock.hub.researchers[0].prefix}
    return found


def at(prefix: Prefix, place: int) -> Address:
    """An address near the beginning of the /24 or /64 that `prefix` begins or lies in."""
    length = LENGTH[prefix.family]
    first = prefix.value >> (prefix.family.width - length) << (prefix.family.width - length)
    return Address(prefix.family, first + place)


def topology() -> Topology:
    """Everybody beside one router, which is `.254` to each."""
    places = subnets(locked())
    hosts = [
        Host(name, tuple(Route(all_, at(own[all_.family], 254)) for all_ in EVERYTHING if all_.family in own))
        for name, own in places.items()
        if name != "internet"
    ]
    links = []
    for name, own in places.items():
        ends = (
            Interface(
                host, link, tuple(InterfaceAddress(at(prefix, place), LENGTH[family]) for family, prefix in own.items())
            )
            for host, link, place in ((name, "eth0", 4 if name != "internet" else 1), ("router", name, 254))
        )
        near, far = ends
        links.append(Link((near, far)))
    return Topology("internet", (Host("internet"), Host("router", forwards=True), *hosts), tuple(links))


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(topology(), name=f"test-{os.getpid()}-hub") as made:
        yield made


def in_router(world: World, *command: str, text: str = "") -> str:
    whole = ["nsenter", f"--net={world.namespace('router')}", *command]
    return subprocess.run(whole, input=text, check=True, capture_output=True, text=True, timeout=20).stdout


@pytest.fixture
def rules(world: World) -> Iterator[str]:
    plan = plan_files.load_plan(PLAN)
    text = router(network(plan, locked()), internal(plan))
    in_router(world, "nft", "-f", "-", text=text)
    yield text
    in_router(world, "nft", "delete", "table", *TABLE.split())


def send(world: World, source: str, target: str, family: Family) -> str:
    """Send one datagram; the address that the target saw it come from, or nothing."""
    own = subnets(locked())[target][family]
    address = str(at(own, 4 if target != "internet" else 1))
    with (
        open_socket(world.namespace(target), family, socket.SOCK_DGRAM) as far,
        open_socket(world.namespace(source), family, socket.SOCK_DGRAM) as near,
    ):
        far.bind((address, PORT))
        far.settimeout(PATIENCE)
        near.sendto(b"hello", (address, PORT))
        try:
            return str(far.recvfrom(100)[1][0])
        except TimeoutError:
            return ""


def counted(world: World, family: Family) -> int:
    listed = in_router(world, "nft", "list", "counter", *TABLE.split(), f"spoke_to_spoke{family}")
    return int(re.findall(r"packets (\d+)", listed)[0])


@FAMILIES
def test_without_rules_a_router_joins_the_spokes(world: World, family: Family) -> None:
    assert send(world, "evals", "training", family)


@FAMILIES
def test_packets_from_spoke_to_spoke_are_dropped_and_counted(world: World, rules: str, family: Family) -> None:
    assert rules
    for number, (source, target) in enumerate((("evals", "training"), ("training", "evals")), start=1):
        assert send(world, source, target, family) == ""
        assert counted(world, family) == number


def test_hub_and_spokes_see_each_other_as_they_are(world: World, rules: str) -> None:
    places = subnets(locked())
    assert rules
    for spoke in ("evals", "training"):
        assert send(world, "researcher", spoke, Family.V4) == str(at(places["researcher"][Family.V4], 4))
        assert send(world, spoke, "researcher", Family.V4) == str(at(places[spoke][Family.V4], 4))


@FAMILIES
def test_a_spoke_reaches_the_internet_as_the_router(world: World, rules: str, family: Family) -> None:
    assert rules
    assert send(world, "evals", "internet", family) == str(at(INTERNET[family].prefix, 254))


def test_loading_the_rules_again_keeps_what_was_counted(world: World, rules: str) -> None:
    before = in_router(world, "nft", "list", "table", *TABLE.split())
    send(world, "evals", "training", Family.V4)
    in_router(world, "nft", "-f", "-", text=rules)
    assert counted(world, Family.V4) == 1
    after = in_router(world, "nft", "list", "table", *TABLE.split())
    assert re.sub(r"packets \d+ bytes \d+", "", after) == re.sub(r"packets \d+ bytes \d+", "", before)
