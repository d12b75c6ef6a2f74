"""Fragments of pods: their sources are judged before datagrams are put together, and how many."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from netmgr.prefixes import Address, Family
from netmgr.rules.engine import Rules
from netmgr.rules.policy import Policy
from tests.contracts.routed import (
    FAMILIES,
    INTERNAL,
    LINKS_KNOWN,
    NODE_INTERNAL,
    PODS,
    guarded,
    refused,
    routed,
)
from tests.contracts.star import PORT, SECONDS_TO_BE_LOST, set_kernel
from tests.kernel import forging
from tests.waiting import PATIENCE, eventually

SURROUNDINGS = routed
pytestmark = [
    pytest.mark.root,
    # iptables comes behind the place where datagrams are put together.
    pytest.mark.parametrize("real_kernel", ["nftables"], indirect=True),
]

BOUND, BURST = 10, 200
ENOUGH = 2000
"""More incomplete datagrams than the kernel holds."""


@pytest.fixture
def bounded(policy: Policy) -> Policy:
    return replace(policy, sources=replace(policy.sources, fragments=BOUND))


@pytest.fixture(params=LINKS_KNOWN)
def node(real_kernel, bounded, request) -> Rules:
    return guarded(real_kernel.backend, bounded, knows_links=request.param == "link known")


def halves(source: Address, to: Address, number: int, texts: tuple[bytes, bytes]) -> list[bytes]:
    """Two fragments of a datagram, with the text of each."""
    (first, second), ports = texts, (PORT, PORT)
    whole = forging.udp(source, to, ports, first + second)
    data = whole[-8 - len(first + second) :]
    half = 8 + len(first)
    return [
        forging.fragment(source, to, number, 0, data[:half], more=True),
        forging.fragment(source, to, number, half, data[half:], more=False),
    ]


@FAMILIES
def test_a_planted_fragment_joins_nobody_elses_datagram(world, node, family):
    host, own = (Address.parse(ends[family]) for ends in (INTERNAL, NODE_INTERNAL))
    receiver = world.socket(None, family, str(own), PORT)
    texts = b"h" * 800, b"e" * 800
    first, second = halves(host, own, 77, texts)
    # In this order: a datagram that is put together seems to come in where its last fragment did.
    world.send([second])
    world.send([first], world.host)
    eventually(lambda: refused(node)["spoofed"] == 1)
    receiver.settimeout(SECONDS_TO_BE_LOST)
    with pytest.raises(TimeoutError):
        receiver.recv(65535)
    world.send(halves(host, own, 78, texts), world.host)
    receiver.settimeout(PATIENCE)
    assert receiver.recv(65535) == b"".join(texts)


@FAMILIES
def test_what_a_pod_never_completes_leaves_room_for_others(world, node, family):
    pod, host, own = (Address.parse(ends[family]) for ends in (PODS, INTERNAL, NODE_INTERNAL))
    # The kernel lets go of them after this time, and they are looked at below.
    set_kernel("ipv4/ipfrag_time", 600)
    sent = (
        forging.fragment(pod, host, number, 0, bytes(1400), more=True)
        for number in range(1, ENOUGH + 1)
    )
    world.send(sent)
    eventually(lambda: refused(node)["fragments"] >= ENOUGH / 2)
    receiver = world.socket(None, family, str(own), PORT)
    sender = world.socket(world.host, family, str(host))
    assert world.reaches(sender, receiver, str(own), 4000) == str(host)
    name = {Family.V4: "sockstat", Family.V6: "sockstat6"}[family]
    if family is Family.V4:
        held = re.search(r"FRAG: inuse (\d+)", Path("/proc/net", name).read_text("ascii"))
        assert held is not None
        assert BURST <= int(held[1]) < ENOUGH / 2


@FAMILIES
def test_whole_datagrams_of_a_pod_pass_in_fragments_up_to_its_bound(world, node, family):
    pod = world.socket(world.pod, family, PODS[family], PORT)
    host = world.socket(world.host, family, INTERNAL[family], PORT)
    for size in (2000, 8000, 65_000):
        assert world.reaches(pod, host, INTERNAL[family], size) == PODS[family]
    assert refused(node)["fragments"] == 0


@FAMILIES
def test_without_a_bound_none_is_counted(world, real_kernel, policy, family):
    rules = guarded(real_kernel.backend, policy, knows_links=True)
    pod = world.socket(world.pod, family, PODS[family], PORT)
    host = world.socket(world.host, family, INTERNAL[family], PORT)
    for _ in range(10):
        assert world.reaches(pod, host, INTERNAL[family], 60_000) == PODS[family]
    assert "fragments" not in refused(rules)
