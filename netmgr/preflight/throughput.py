"""Measures throughput by the streams of peers' exporters, few at a time in the whole cluster.

An exporter serves one stream at a time, so that a thousand nodes that start together measure as
many times at once as they have peers, at most. A node that finds all busy waits with jitter, and
finally does without.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from netmgr.api.throughput import PATH, RETRY_SECONDS, STREAM_BYTES, STREAM_SECONDS, TAKING_SECONDS
from netmgr.backoff import Backoff
from netmgr.documents.preflight import Endpoint
from netmgr.receiving import received

MOST_MEASURED = 3
"""Peers whose streams are measured before it is this node that is slow."""

LEAST_BYTES = 1 << 20
"""A stream that ends with less, long before its time is over, does not count."""

_HEAD_BYTES = 16 * 1024
_PIECE = 256 * 1024
_CONNECT_SECONDS = 2.0
# Where this end stops listening to an exporter that knows no bounds.
_MOST_BYTES = 2 * STREAM_BYTES
_MOST_SECONDS = STREAM_SECONDS + TAKING_SECONDS

_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3}) ")
_OK, _BUSY = 200, 503


class PeerStream(NamedTuple):
    rate: float = 0.0
    """Bits a second; 0 where nothing was measured."""
    is_busy: bool = False
    """Whether it may be there later."""
    fault: str = ""
    """Why nothing was measured."""


@dataclass(slots=True)
class Throughput:
    rates: dict[Endpoint, float] = field(default_factory=dict)
    """Bits a second from each peer that was measured."""
    faults: dict[Endpoint, str] = field(default_factory=dict)
    """Why others were not."""


def measure(peers: Iterable[Endpoint], floor: float, patience: float, random: Random) -> Throughput:
    """Measure until one peer sends `floor` bits a second, a few do not, or nobody has time.

    Busy peers are asked again for `patience` seconds.
    """
    throughput = Throughput()
    backoff = Backoff(first=1, most=8, chance=random.random)
    deadline = time.monotonic() + patience
    waiting = list(peers)
    while waiting:
        random.shuffle(waiting)
        waiting = _ask_each(waiting, floor, throughput)
        pause = backoff.next(RETRY_SECONDS)
        if not waiting or time.monotonic() + pause > deadline:
            break
        time.sleep(pause)
    return throughput


def _ask_each(peers: Sequence[Endpoint], floor: float, throughput: Throughput) -> list[Endpoint]:
    """Those that were busy; none once it is known how fast this node is."""
    busy = []
    for peer in peers:
        stream = read(peer)
        if stream.rate:
            throughput.rates[peer] = stream.rate
            throughput.faults.pop(peer, None)
            if stream.rate >= floor or len(throughput.rates) >= MOST_MEASURED:
                return []
        else:
            throughput.faults[peer] = stream.fault
        if stream.is_busy:
            busy.append(peer)
    return busy


def read(peer: Endpoint) -> PeerStream:
    """Measure one peer's stream, whatever it sends and however long it takes."""
    deadline = time.monotonic() + _CONNECT_SECONDS + _MOST_SECONDS
    try:
        with socket.create_connection(
            (str(peer.address), peer.port), timeout=_CONNECT_SECONDS
        ) as opened:
            opened.sendall(f"GET {PATH} HTTP/1.0\r\nHost: {peer}\r\n\r\n".encode("ascii"))
            return _measured(opened, deadline)
    except TimeoutError:
        return PeerStream(fault="its exporter does not answer in time")
    except OSError as error:
        return PeerStream(fault=f"its exporter is not reached: {error.strerror or error}")


def _measured(opened: socket.socket, deadline: float) -> PeerStream:
    status, rest = _head(opened, deadline)
    if status == _BUSY:
        return PeerStream(is_busy=True, fault="its exporter was busy with other nodes' tests")
    if status != _OK:
        shown = f"answers {status}" if status else "does not answer as one"
        return PeerStream(
            fault=f"its exporter {shown}; it needs --throughput-test, and neither TLS nor a secret"
        )
    begin = time.monotonic()
    more, has_ended = _counted(opened, min(deadline, begin + _MOST_SECONDS))
    size, seconds = rest + more, max(time.monotonic() - begin, 1e-3)
    if has_ended and size < LEAST_BYTES and seconds < STREAM_SECONDS / 2:
        return PeerStream(fault=f"its stream ended after {size} bytes")
    return PeerStream(rate=8 * size / seconds)


def _counted(opened: socket.socket, until: float) -> tuple[int, bool]:
    """How many bytes come, and whether their end came, too."""
    buffer, size = memoryview(bytearray(_PIECE)), 0
    while size < _MOST_BYTES and (left := until - time.monotonic()) > 0:
        opened.settimeout(left)
        try:
            more = opened.recv_into(buffer)
        except TimeoutError:
            break
        if not more:
            return size, True
        size += more
    return size, False


def _head(opened: socket.socket, deadline: float) -> tuple[int, int]:
    """The status of an answer, 0 if it is none, and how many bytes of its body came with it."""
    head = b""
    for part in received(opened, deadline):
        head += part
        if b"\r\n\r\n" in head or len(head) >= _HEAD_BYTES:
            break
    match = _STATUS.match(head)
    rest = head.partition(b"\r\n\r\n")[2]
    return int(match[1]) if match else 0, len(rest)
