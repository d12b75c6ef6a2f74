"""A pod that spends bytes, and what its node says of them: to the byte, since the agent reads when
it is asked.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from netmgr.documents.node import Backend
from netmgr.kernel.bpf import BpfMap
from netmgr.model import Traffic
from netmgr.prefixes import Family
from netmgr.rules import link_programs
from netmgr.rules.link_filters import LinkFilters
from netmgr.rules.link_programs import (
    ELEMENT,
    ELEMENT_KEY,
    ONLY_KEY,
    PODS_MAP,
    SUMS_MAP,
    mapped,
    row_of,
)
from tests.lab import wiring
from tests.lab.exchange import open_socket
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET
from tests.lab.world import World

IN, OUT = "internet-in", "internet-out"
HEADERS = 20 + 8


@dataclass
class Spender:
    """A pod, and what the node says of it."""

    world: World
    node: LabNode
    sandbox: Sandbox

    def send(self, size: int = 1000) -> int:
        """Have one packet reach the internet, of so many bytes; it is on its way once, or not at
        all.
        """
        with (
            open_socket(self.sandbox.netns, Family.V4, socket.SOCK_DGRAM) as near,
            open_socket(self.world.internet, Family.V4, socket.SOCK_DGRAM) as far,
        ):
            far.bind((str(INTERNET[Family.V4]), 0))
            near.sendto(bytes(size - HEADERS), far.getsockname())
            assert len(far.recv(size)) == size - HEADERS
        return size

    def counted(self) -> int:
        rows = self.node.snapshot()["pods"]
        (size,) = [
            row["bytes"]
            for row in rows
            if (row["pod"], row["traffic"]) == (self.sandbox.pod.name, OUT)
        ]
        return size

    @property
    def address(self) -> str:
        return str(self.sandbox.address(Family.V4))


def run(node: LabNode, *command: str) -> subprocess.CompletedProcess[str]:
    inside = ["nsenter", f"--net={node.namespace}", *command]
    return subprocess.run(inside, capture_output=True, check=False, text=True)


def gaps(node: LabNode) -> dict[str, tuple[int, float]]:
    return {one["reason"]: (one["count"], one["seconds"]) for one in node.snapshot()["gaps"]}


@contextmanager
def held_at_links(node: LabNode, name: str) -> Iterator[BpfMap]:
    """A map that the node's programs count in."""
    with wiring.inside(node.namespace), closing(LinkFilters()) as filters:
        yield filters.maps[name]


def counter_at_links(pods: BpfMap, sandbox: Sandbox) -> tuple[bytes, list[bytes]]:
    """Where what the pod sends is counted, and what it says whose it is."""
    address = mapped(sandbox.address(Family.V4))
    outward = link_programs.INTERNET, row_of(Family.V4, Traffic.INTERNET_OUT)
    for key, element in pods.listed():
        *_, packed, name = ELEMENT.unpack(element)
        if (packed, ELEMENT_KEY.unpack(key)[1:]) == (address, outward):
            return key, [packed, name]
    raise LookupError(address)


def set_counter(spender: Spender, backend: Backend, packets: int = 0, size: int = 0) -> None:
    """Have what counts what the pod sends show something else."""
    if backend is Backend.LINKS:
        with held_at_links(spender.node, PODS_MAP) as pods:
            key, whose = counter_at_links(pods, spender.sandbox)
            pods.put(key, ELEMENT.pack(packets, size, 0, 0, *whose))
        return
    if backend is Backend.NFTABLES:
        element, shown = f"element inet netmgr pod_out4 {{ {spender.address}", ""
        if packets:
            shown = f" counter packets {packets} bytes {size}"
        done = run(spender.node, "nft", f"delete {element} }}; add {element}{shown} }}")
    else:
        words = f"-exist add netmgr-pod-out4 {spender.address} packets {packets} bytes {size}"
        done = run(spender.node, "ipset", *words.split())
    assert done.returncode == 0, done.stderr


def zero_sums(node: LabNode, backend: Backend) -> None:
    if backend is Backend.LINKS:
        with held_at_links(node, SUMS_MAP) as sums:
            sums.put(ONLY_KEY, bytes(sums.shape.element))
    elif backend is Backend.NFTABLES:
        run(node, "nft", "reset", "counters", "table", "inet", "netmgr")
    else:
        run(node, "iptables-legacy", "-t", "mangle", "-Z")
