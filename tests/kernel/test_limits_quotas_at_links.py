"""Byte quotas where links count: behind the queue in which limited pods' inward packets wait."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kernel.conftest import one_of
from tests.kernel.limited import NewPod, pods_of
from tests.kernel.quota_traffic import MEGABYTE, PACKET, SETTLED
from tests.lab.exchange import IP_HEADER, UDP_HEADER, open_socket
from tests.lab.nodes import LabNode
from tests.lab.topology import INTERNET
from tests.lab.world import World

pytestmark = [pytest.mark.root, pytest.mark.alone]

WAITING, HEADERS = 60, IP_HEADER[Family.V4] + UDP_HEADER
LIMITS = [{"pods": "*/*", "internet-in": "4M", "per-day": {"internet-in": "1M"}}]


WORLD = {
    "nodes": 1,
    "settings": {"limits": LIMITS, "reconcile_seconds": 0.2, "accounting": {"at": "links"}},
}
backend = one_of([Backend.NFTABLES])


@pytest.fixture
def new_pod(node: LabNode) -> Iterator[NewPod]:
    with pods_of(node) as add:
        yield add


def test_what_comes_in_and_waits_is_charged(world: World, new_pod: NewPod) -> None:
    pod, sent, arrived = new_pod("a"), 0, 0
    with (
        open_socket(world.internet, Family.V4, socket.SOCK_DGRAM) as far,
        open_socket(pod.netns, Family.V4, socket.SOCK_DGRAM) as near,
    ):
        far.bind((str(INTERNET[Family.V4]), 0))
        near.connect(far.getsockname())
        near.send(bytes(1))
        _, peer = far.recvfrom(1)
        near.settimeout(0)
        time.sleep(SETTLED)
        began = last = time.monotonic()
        while time.monotonic() < began + 6:
            # So much of it waits all the while, but for what is lost.
            for _ in range(arrived + WAITING - sent):
                far.sendto(bytes(PACKET - HEADERS), peer)
                sent += 1
            with suppress(BlockingIOError):
                while near.recv(PACKET):
                    arrived, last = arrived + 1, time.monotonic()
            if time.monotonic() > last + 0.5:
                sent, last = arrived, time.monotonic()
            time.sleep(0.001)
    assert 0.9 * MEGABYTE < PACKET * arrived <= MEGABYTE
