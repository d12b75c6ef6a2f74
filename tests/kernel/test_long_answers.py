"""Long answers of the kernel: of pods, which make them as long as they like, and of many routes."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from errno import ENOBUFS
from pathlib import Path

import pytest

from netmgr.dataplane import desired
from netmgr.dataplane.neighbours import Neighbours
from netmgr.errors import KernelError
from netmgr.kernel import links
from netmgr.kernel.links import VethEnd
from netmgr.kernel.netlink import Netlink, Operation, Reader
from netmgr.kernel.routes import read_routes
from netmgr.model import AttachmentKey, PodRef
from tests.lab import named_netns, wiring

pytestmark = pytest.mark.root

PAIRS = 40
MOST_NAMES, LONGEST_NAME = 495, 127


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Netlink]:
    """A socket in a node's namespace with pods' links; two pods named their ends at length."""
    node, sandbox = tmp_path / "node", tmp_path / "sandbox"
    named_netns.create(node)
    named_netns.create(sandbox)
    try:
        with wiring.inside(sandbox):
            pods = Netlink()
        with wiring.inside(node):
            channel = Netlink()
        with channel, pods:
            descriptor = os.open(sandbox, os.O_RDONLY)
            for number in range(PAIRS):
                _make_pod(channel, pods, number, descriptor)
            os.close(descriptor)
            for number in range(2):
                names = [f"{number}-{each}".ljust(LONGEST_NAME, "x") for each in range(MOST_NAMES)]
                pods.transact([links.add_alternative_names(f"pod{number}", names)])
            yield channel
    finally:
        named_netns.delete(sandbox)
        named_netns.delete(node)


def _make_pod(host: Netlink, pods: Netlink, number: int, sandbox: int) -> None:
    key = AttachmentKey(f"c{number}", "eth0")
    name = desired.host_link_name(key)
    alias = desired.identity_text(key, PodRef("team", f"pod{number}"))
    outer = VethEnd(name, bytes([2, 0, 0, 0, 0, number]), 1500)
    inner = VethEnd(f"pod{number}", bytes([2, 1, 0, 0, 0, number]), 1500)
    host.transact([links.create_veth(outer, inner, sandbox), links.mark(name, alias, 0)])
    (index,) = (link.number for link in links.read_links(pods) if link.name == f"pod{number}")
    pods.transact([links.raise_index(index)])


def _ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True)


def questions(host: Netlink) -> list[Operation]:
    return [
        links.show_link_in(link.peer_netns, link.peer)
        for link in links.read_links(host)
        if desired.identity_of(link)
    ]


def test_links_of_many_names_keep_no_look_at_the_others_from_its_end(host: Netlink) -> None:
    assert not Neighbours(host).outdated(tuple)
    ends = host.query_each(questions(host), links.link_of)
    counts = sorted(len(end.alternative_names) for end in ends if end)
    assert counts == [0] * (PAIRS - 2) + [MOST_NAMES] * 2


def test_what_found_no_room_keeps_the_next_question_from_no_answer(host: Netlink) -> None:
    asked = questions(host)
    host._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    for _ in range(2):
        with pytest.raises(KernelError) as refused:
            host.query_each(asked, links.link_of)
        assert refused.value.errno == ENOBUFS
        assert host.query(links.show_link("lo"), links.link_of).name == "lo"


def test_the_first_list_of_a_socket_has_what_is_longer_than_a_page(tmp_path: Path) -> None:
    namespace = tmp_path / "node"
    hops = " ".join(f"nexthop via 10.0.0.{number} dev many onlink" for number in range(2, 252))
    named_netns.create(namespace)
    try:
        with wiring.inside(namespace):
            # A bridge has attributes enough to make the buffer longer.
            _ip("link add many type veth peer other")
            _ip("address add 10.0.0.1/16 dev many")
            _ip("link set many up")
            _ip(f"route add 1.0.0.0/24 {hops}")
            with Reader() as channel:
                shown = [route for route in read_routes(channel) if route.destination.length == 24]
    finally:
        named_netns.delete(namespace)
    assert len(shown) == 1


def test_a_socket_outlives_four_thousand_million_messages(host: Netlink) -> None:
    host._sequence = 2**32 - 3
    for _ in range(3):
        assert len(host.query_each([links.show_link("lo")] * 5, links.link_of)) == 5
