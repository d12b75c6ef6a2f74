"""Containers that are no pods, behind a node that forwards for them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from netmgr.prefixes import Family
from tests.kernel.namespaces import inside
from tests.lab import named_netns, wiring
from tests.lab.exchange import open_socket
from tests.lab.nodes import LabNode
from tests.lab.topology import INTERNET, Host
from tests.waiting import eventually

GUEST = "10.99.0.2"


def wait_until_it_sends(namespace: Path, link: str) -> None:
    """A link that was just raised drops packets until it has learnt of its carrier."""
    with wiring.inside(namespace), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        eventually(lambda: wiring.sends(handle, link), every=0.02)


@contextmanager
def guest(node: LabNode) -> Iterator[Callable[[int], None]]:
    """A container that is no pod, behind the node;
    calling it sends so many bytes to the internet."""
    path = node.pods_dir / "guest"
    wiring.make_host(Host("guest"), path)
    try:
        for namespace, words in (
            (node.namespace, f"link add guest0 type veth peer name eth0 netns {path}"),
            (node.namespace, "address add 10.99.0.1/24 dev guest0"),
            (node.namespace, "link set guest0 up"),
            (path, f"address add {GUEST}/24 dev eth0"),
            (path, "link set eth0 up"),
            (path, "route add default via 10.99.0.1"),
        ):
            inside(namespace, "ip", *words.split())
        for place, name in ((node.namespace, "guest0"), (path, "eth0")):
            wait_until_it_sends(place, name)
        internet = node.namespace.with_name("internet")
        with (
            open_socket(path, Family.V4, socket.SOCK_DGRAM) as near,
            open_socket(internet, Family.V4, socket.SOCK_DGRAM) as far,
        ):
            far.bind((str(INTERNET[Family.V4]), 0))

            def send(size: int) -> None:
                near.sendto(bytes(size - 28), far.getsockname())
                # A busy machine may forward it later.
                assert len(far.recv(size)) == size - 28

            yield send
    finally:
        inside(node.namespace, "ip", "link", "del", "guest0")
        named_netns.delete(path)
