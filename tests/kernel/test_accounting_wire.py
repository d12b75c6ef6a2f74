"""What is counted beside what a wire carries: the figures that docs/accounting.md gives."""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kernel.common import Ends, counted
from tests.kernel.conftest import EVERY_WAY_OF_COUNTING, one_of
from tests.kernel.namespaces import inside
from tests.kernel.spending import IN, OUT
from tests.lab.exchange import IP_HEADER, UDP_HEADER, datagrams, open_socket
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET
from tests.lab.world import World
from tests.waiting import PATIENCE

pytestmark = pytest.mark.root

MTU = 1500
FRAGMENT_HEADER = {Family.V4: 0, Family.V6: 8}
TCP_HEADER = 20 + 12
"""With timestamps; a SYN has eight bytes of options more."""

UDP_SEGMENT = 103
SEGS_OUT, BYTES_SENT = 136, 200
"""Offsets in struct tcp_info (linux/tcp.h): segments as on a wire, and bytes, repetitions included.
"""

WORLD = {"nodes": 1, "settings": {"accounting": {"min_reading_seconds": 0}}, "exporters": False}


backend = one_of(EVERY_WAY_OF_COUNTING)


NOT_IPTABLES = pytest.mark.parametrize(
    "backend", [Backend.NFTABLES, Backend.LINKS], indirect=True, ids=str
)


def tell(what: str, family: Family, shown: int, wire: int) -> float:
    less = 1 - shown / wire
    sys.stdout.write(
        f"{what} IPv{family.value}: counted {shown:,}, on a wire {wire:,}: {less:.2%} less\n"
    )
    return less


@NOT_IPTABLES
@pytest.mark.parametrize(("family", "share"), [(Family.V4, 0.034), (Family.V6, 0.047)])
def test_tcp_that_is_segmented_later_is_counted_with_one_header_for_many_segments(
    world: World, node: LabNode, pod: Sandbox, family: Family, share: float
) -> None:
    size = 20_000_000
    with (
        open_socket(world.internet, family, socket.SOCK_STREAM) as listening,
        open_socket(pod.netns, family, socket.SOCK_STREAM) as near,
    ):
        listening.bind((str(INTERNET[family]), 0))
        listening.listen()
        near.connect(listening.getsockname()[:2])
        far, _ = listening.accept()
        with far:
            for end in (near, far):
                end.settimeout(PATIENCE)
            sending = threading.Thread(target=near.sendall, args=(bytes(size),))
            sending.start()
            left = size
            while left:
                left -= len(far.recv(1 << 20))
            sending.join()
            time.sleep(0.3)  # for the last acknowledgements
            info = near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
            shown = counted(node, pod.pod.name)[OUT]
    (segments,) = struct.unpack_from("I", info, SEGS_OUT)
    (payload,) = struct.unpack_from("Q", info, BYTES_SENT)
    wire = payload + segments * (IP_HEADER[family] + TCP_HEADER) + 8
    assert tell("TCP", family, shown, wire) == pytest.approx(share, abs=0.003)


@NOT_IPTABLES
@pytest.mark.parametrize(("family", "share"), [(Family.V4, 0.018), (Family.V6, 0.031)])
def test_udp_that_is_segmented_later_is_counted_with_one_header_for_many_datagrams(
    world: World, node: LabNode, pod: Sandbox, family: Family, share: float
) -> None:
    headers = IP_HEADER[family] + UDP_HEADER
    content, many, times = MTU - headers, 40, 20
    with (
        open_socket(world.internet, family, socket.SOCK_DGRAM) as far,
        open_socket(pod.netns, family, socket.SOCK_DGRAM) as near,
    ):
        far.bind((str(INTERNET[family]), 0))
        near.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, content)
        for _ in range(times):
            near.sendto(bytes(content * many), far.getsockname()[:2])
            for _ in range(many):
                assert len(far.recv(MTU)) == content
    shown = counted(node, pod.pod.name)[OUT]
    assert shown == times * (headers + content * many)
    assert tell("UDP GSO", family, shown, times * many * MTU) == pytest.approx(share, abs=0.001)


@pytest.mark.parametrize(("family", "less"), [(Family.V4, 40), (Family.V6, 104)])
def test_fragments_are_counted_as_the_datagram_that_connection_tracking_made_of_them(
    node: LabNode, pod: Sandbox, ends: Ends, backend: Backend, family: Family, less: int
) -> None:
    many, size, fragments = 5, 4000, 3
    datagrams(*ends[family], [size] * many, [0] * many)
    whole = UDP_HEADER + size
    wire = many * (whole + fragments * (IP_HEADER[family] + FRAGMENT_HEADER[family]))
    shown = counted(node, pod.pod.name)[OUT]
    tell("fragments", family, shown, wire)
    if backend is Backend.LINKS:
        assert shown == wire, "behind that, and so in fragments again"
    else:
        assert shown == many * (whole + IP_HEADER[family])
        assert wire - shown == many * less


FORWARD = "type filter hook forward priority 0"
POSTROUTING = "type filter hook postrouting priority 95"
"""Where kube-network-policies has its rules. iptables has no table behind that."""


def test_what_another_filter_drops_is_counted_in_neither_direction(
    world: World, node: LabNode, pod: Sandbox, backend: Backend
) -> None:
    filters = (FORWARD,) if backend is Backend.IPTABLES_LEGACY else (FORWARD, POSTROUTING)
    with (
        open_socket(world.internet, Family.V4, socket.SOCK_DGRAM) as far,
        open_socket(pod.netns, Family.V4, socket.SOCK_DGRAM) as near,
    ):
        far.bind((str(INTERNET[Family.V4]), 0))
        far.settimeout(5)
        near.sendto(bytes(1000), far.getsockname())
        _, source = far.recvfrom(1000)
        far.settimeout(0.5)
        near.settimeout(0.5)
        for place in filters:
            with other_filter(node, place):
                for _ in range(20):
                    near.sendto(bytes(1000), far.getsockname())
                    far.sendto(bytes(500), source)
                for receiver in (far, near):
                    with pytest.raises(TimeoutError):
                        receiver.recv(1000)
            assert counted(node, pod.pod.name) == {OUT: 1028, IN: 0}
            assert not [one for one in node.snapshot()["unattributed"] if one["bytes"]]


@contextmanager
def other_filter(node: LabNode, place: str) -> Iterator[None]:
    chain = f"add chain inet others filter {{ {place}; policy drop; }}"
    inside(node.namespace, "nft", f"add table inet others; {chain}")
    try:
        yield
    finally:
        inside(node.namespace, "nft", "delete table inet others")
