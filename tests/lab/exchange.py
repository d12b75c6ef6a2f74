"""Traffic between sockets of two namespaces: datagrams in lockstep, streams both ways.

A socket stays in the namespace it was opened in, so one process can hold both ends. Nothing
is retried: each datagram is received before the next is sent, so that no datagram is lost
to a full buffer, and every byte that arrives is compared with what was sent.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from netmgr.prefixes import Address, Family
from tests.lab import wiring
from tests.lab.capture import Tally
from tests.lab.errors import LabError

PATIENCE = 5.0
"""Seconds until a packet that has not arrived counts as lost."""

CHUNK = 1 << 16
IP_HEADER = {Family.V4: 20, Family.V6: 40}
UDP_HEADER = 8
_SOCKET_FAMILY = {Family.V4: socket.AF_INET, Family.V6: socket.AF_INET6}


@dataclass(frozen=True, slots=True)
class End:
    """Where one side of a conversation lives."""

    namespace: Path
    address: Address


class Frontend(NamedTuple):
    """What a client connects to instead of the server: a Service's address and port."""

    address: Address
    port: int


@dataclass(frozen=True, slots=True)
class Heard:
    """A conversation's result: whom the server saw, and what went each way.

    For datagrams the tallies are whole IP packets; for streams, `bytes` is payload and
    `packets` is unknown, 0.
    """

    peer: Address
    port: int
    server_port: int
    forth: Tally
    back: Tally


def open_socket(namespace: Path, family: Family, kind: socket.SocketKind) -> socket.socket:
    """A socket in the namespace pinned at `namespace`, with a timeout."""
    with wiring.inside(namespace):
        opened = socket.socket(_SOCKET_FAMILY[family], kind)
    opened.settimeout(PATIENCE)
    return opened


def datagram_bytes(family: Family, payload: int) -> int:
    """Length of the IP packet that carries `payload` bytes of UDP."""
    return IP_HEADER[family] + UDP_HEADER + payload


def datagrams(
    client: End,
    server: End,
    forth: Sequence[int],
    back: Sequence[int],
    *,
    port: int = 0,
    frontend: Frontend | None = None,
) -> Heard:
    """Send datagrams with `forth` bytes of payload each, each answered by one of `back` bytes.

    The server receives at `port`; 0 leaves the choice to the kernel. The client sends to
    `frontend`; by default, to the server itself.
    """
    family = server.address.family
    with (
        open_socket(client.namespace, family, socket.SOCK_DGRAM) as near,
        open_socket(server.namespace, family, socket.SOCK_DGRAM) as far,
    ):
        far.bind((str(server.address), port))
        server_port = far.getsockname()[1]
        reached = frontend or Frontend(server.address, server_port)
        near.connect((str(reached.address), reached.port))
        peer = near.getsockname()
        for number, (out, home) in enumerate(zip(forth, back, strict=True)):
            try:
                near.send(_payload(out, number))
                request, peer = far.recvfrom(CHUNK)
                far.sendto(_payload(home, number), peer)
                answer = near.recv(CHUNK)
            except OSError as error:
                raise _lost("a datagram", client, server) from error
            if request != _payload(out, number) or answer != _payload(home, number):
                raise LabError(
                    f"a datagram between {client.address} and {server.address} arrived changed"
                )
    return Heard(
        Address.parse(peer[0]), peer[1], server_port, _tally(family, forth), _tally(family, back)
    )


def seen_from(client: End, server: End, port: int = 0, seconds: float = PATIENCE) -> Address | None:
    """Send one datagram; who it comes from, or None if it does not arrive in so many seconds."""
    family = server.address.family
    with (
        open_socket(client.namespace, family, socket.SOCK_DGRAM) as near,
        open_socket(server.namespace, family, socket.SOCK_DGRAM) as far,
    ):
        far.bind((str(server.address), port))
        far.settimeout(seconds)
        near.sendto(b"who am I?", far.getsockname())
        try:
            return Address.parse(far.recvfrom(100)[1][0])
        except TimeoutError:
            return None


def stream(
    client: End,
    server: End,
    forth: int,
    back: int,
    *,
    port: int = 0,
    frontend: Frontend | None = None,
) -> Heard:
    """Send `forth` bytes over TCP to the server while it sends `back` bytes, then close both ways.

    `port` and `frontend` are as for `datagrams`.
    """
    family = server.address.family
    with ExitStack() as closing:
        listener = closing.enter_context(open_socket(server.namespace, family, socket.SOCK_STREAM))
        near = closing.enter_context(open_socket(client.namespace, family, socket.SOCK_STREAM))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((str(server.address), port))
        listener.listen(1)
        server_port = listener.getsockname()[1]
        reached = frontend or Frontend(server.address, server_port)
        try:
            near.connect((str(reached.address), reached.port))
            accepted, peer = listener.accept()
            far = closing.enter_context(accepted)
            received = _pump({near: forth, far: back})
        except OSError as error:
            raise _lost("a stream", client, server) from error
    if received != {near: back, far: forth}:
        raise LabError(f"a stream between {client.address} and {server.address} lost bytes")
    return Heard(Address.parse(peer[0]), peer[1], server_port, Tally(forth), Tally(back))


def _pump(to_send: dict[socket.socket, int]) -> dict[socket.socket, int]:
    """Have both ends send and receive at once; returns what each received."""
    left = dict(to_send)
    received = dict.fromkeys(to_send, 0)
    with selectors.DefaultSelector() as selector:
        for end in to_send:
            # Non-blocking: both ends are in this process, and a blocking send would wait for a read
            # that only this process can do.
            end.settimeout(0)
            selector.register(end, selectors.EVENT_READ | selectors.EVENT_WRITE, end)
        while selector.get_map():
            ready = selector.select(PATIENCE)
            if not ready:
                raise TimeoutError
            for key, events in ready:
                if events & selectors.EVENT_WRITE:
                    _send_some(key.data, left, selector)
                if events & selectors.EVENT_READ:
                    _receive_some(key.data, received, selector)
    return received


def _send_some(
    end: socket.socket, left: dict[socket.socket, int], selector: selectors.BaseSelector
) -> None:
    left[end] -= end.send(bytes(min(left[end], CHUNK))) if left[end] else 0
    if not left[end]:
        end.shutdown(socket.SHUT_WR)
        _done_with(selectors.EVENT_WRITE, end, selector)


def _receive_some(
    end: socket.socket, received: dict[socket.socket, int], selector: selectors.BaseSelector
) -> None:
    data = end.recv(CHUNK)
    received[end] += len(data)
    if not data:
        _done_with(selectors.EVENT_READ, end, selector)


def _done_with(event: int, end: socket.socket, selector: selectors.BaseSelector) -> None:
    if left := selector.get_key(end).events & ~event:
        selector.modify(end, left, end)
    else:
        selector.unregister(end)


def _payload(length: int, number: int) -> bytes:
    return number.to_bytes(4, "big")[-min(length, 4) :].ljust(length, b"n") if length else b""


def _tally(family: Family, payloads: Sequence[int]) -> Tally:
    return Tally(sum(datagram_bytes(family, length) for length in payloads), len(payloads))


def _lost(what: str, client: End, server: End) -> LabError:
    return LabError(
        f"{what} between {client.address} and {server.address} "
        f"did not arrive within {PATIENCE:.0f} s"
    )
