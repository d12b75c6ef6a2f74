"""Peers that answer a preflight's echoes with what is no answer, or with far too much."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from netmgr.prefixes import Family
from tests.kernel.fabric import PEER, Fabric, changed, filtering, serving
from tests.lab import wiring
from tests.waiting import PATIENCE

pytestmark = pytest.mark.root


def forged(change: Callable[[bytes], bytes], times: int, opened: socket.socket) -> Any:
    """Answers echoes with what `change` makes of them, so many times."""

    def serve(packet: bytes, who: Any) -> None:
        request = packet[(packet[0] & 0xF) * 4 :]
        if request[:1] == b"\x08":
            made = change(b"\x00" + request[1:])
            # Raw sockets get what comes, whatever its checksum.
            for _ in range(times):
                opened.sendto(made, who)

    return serve


@pytest.mark.parametrize(
    ("change", "times"),
    [
        (lambda reply: reply[:-1] + b"\xff", 1),
        (lambda reply: reply[:6] + b"\x7f\x7f" + reply[8:], 1),
        (lambda reply: reply[:4] + b"\x00\x00" + reply[6:], 1),
        (lambda reply: reply[:20], 1),
        (lambda reply: b"\x08" + reply[1:], 1),
        (lambda reply: reply[:8] + bytes(56), 300),
    ],
    ids=["payload", "number", "identifier", "cut", "request", "flood"],
)
def test_answers_that_are_no_echo_are_not_believed_and_keep_nobody_busy(
    fabric: Fabric, change: Callable[[bytes], bytes], times: int
) -> None:
    quiet = "sysctl -qw net.ipv4.icmp_echo_ignore_all={}".format
    peer = fabric.directory / PEER.host
    with ExitStack() as stack:
        stack.enter_context(changed(fabric, PEER.host, quiet(1), quiet(0)))
        stack.enter_context(filtering(fabric, PEER.host, "input", "meta l4proto tcp drop"))
        with wiring.inside(peer):
            raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        stack.enter_context(raw)
        stack.enter_context(serving(raw, forged(change, times, raw)))
        began = time.monotonic()
        said = fabric.failed(preflight={"peers": [str(PEER.address(Family.V4))]})
        assert set(said) == {"reach"}
        assert time.monotonic() - began < PATIENCE


def test_a_true_answer_among_many_wrong_and_double_ones_counts_once(fabric: Fabric) -> None:
    peer = fabric.directory / PEER.host
    with wiring.inside(peer):
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    with raw, serving(raw, forged(lambda reply: reply, 3, raw)):
        assert fabric.failed(preflight={"peers": [str(PEER.address(Family.V4))]}) == {}
