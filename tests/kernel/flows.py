"""TCP connections between namespaces, and how fast they are."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from netmgr.prefixes import Address
from tests.lab.exchange import open_socket

MEGABIT = 1_000_000
SETTLING, MEASURED = 0.5, 2.0
ON_THE_WIRE = 1514 / 1448
"""Bytes that a limit counts for one of payload: Ethernet's, IPv4's and TCP's headers."""


@dataclass(frozen=True)
class Flow:
    """One TCP connection, over which one side sends all it can."""

    sender: socket.socket
    receiver: socket.socket


@contextmanager
def flows(
    client: Path, server: Path, address: Address, many: int = 1, *, to_server: bool = True
) -> Iterator[list[Flow]]:
    family = address.family
    with ExitStack() as stack:
        listener = stack.enter_context(open_socket(server, family, socket.SOCK_STREAM))
        listener.bind((str(address), 0))
        listener.listen(many)
        found: list[Flow] = []
        for _ in range(many):
            near = stack.enter_context(open_socket(client, family, socket.SOCK_STREAM))
            near.connect(listener.getsockname()[:2])
            far = stack.enter_context(listener.accept()[0])
            for end in (near, far):
                end.settimeout(0)
            found.append(Flow(near, far) if to_server else Flow(far, near))
        yield found


def bits_a_second(groups: Sequence[Sequence[Flow]]) -> list[float]:
    """What each group of flows receives while all of them send, once they have settled."""
    payload = bytes(1 << 16)
    received = [0] * len(groups)
    with selectors.DefaultSelector() as selector:
        for number, group in enumerate(groups):
            for flow in group:
                selector.register(flow.sender, selectors.EVENT_WRITE, None)
                selector.register(flow.receiver, selectors.EVENT_READ, number)
        began = time.monotonic()
        before: list[int] = []
        while (passed := time.monotonic() - began) < SETTLING + MEASURED:
            if passed >= SETTLING and not before:
                before, started = received.copy(), time.monotonic()
            for key, events in selector.select(0.1):
                end = key.fileobj
                assert isinstance(end, socket.socket)
                if events & selectors.EVENT_WRITE:
                    end.send(payload)
                else:
                    received[key.data] += len(end.recv(1 << 18))
        lasted = time.monotonic() - started
    return [8 * (now - then) / lasted for now, then in zip(received, before, strict=True)]


def rate(group: Sequence[Flow]) -> float:
    """Megabits a second on the wire."""
    (found,) = rates(group)
    return found


def rates(*groups: Sequence[Flow]) -> list[float]:
    """As `rate`, of groups that send at the same time."""
    return [found * ON_THE_WIRE / MEGABIT for found in bits_a_second(groups)]


def attains(group: Sequence[Flow], megabits: float) -> bool:
    """Whether the flows get this rate, to 5 %, in one of three measurements."""
    return attain(lambda found: found == pytest.approx(megabits, rel=0.05), group)


def attain(expected: Callable[..., bool], *groups: Sequence[Flow]) -> bool:
    """Whether the rates of groups that send at the same time are as expected.

    Measured up to three times: whatever else the machine does makes them slower.
    """
    return any(expected(*rates(*groups)) for _ in range(3))
