"""The client of `netmgr connectivity-test` in a pod: `python3 -m netmgr.preflight.pod_probes TASK`.

It probes everything in the cluster at once, then what should be unreachable, then the internet.
Before and after each of the latter it waits until its pod's counters stay the same, so that what a
phase sent and received is known to the byte. The kernel counts IP bytes for the pod's namespace
(proc_net(5): netstat, snmp6), without Ethernet's headers and without ARP.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from netmgr.api import connectivity
from netmgr.errors import Exit

Value = TypeVar("Value")
Attempt = Callable[[], tuple[str, ...]]

_PAUSE_SECONDS, _QUIET_SECONDS, _NOISY_SECONDS = 0.2, 0.6, 6.0
_LONGEST_SECONDS = 2 * connectivity.PATIENCE_SECONDS
_AT_ONCE = 64
# Bytes of a datagram whose size does not matter; an address fits in.
_SMALL = 64

_LARGEST_GREETING = 64 * 1024
_NET = Path("/proc/thread-self/net")
# linux/in.h, linux/in6.h: the path's MTU, and datagrams that are never fragmented.
_IP_MTU = {socket.AF_INET: (socket.IPPROTO_IP, 14), socket.AF_INET6: (socket.IPPROTO_IPV6, 24)}
_DISCOVER = {socket.AF_INET: (socket.IPPROTO_IP, 10), socket.AF_INET6: (socket.IPPROTO_IPV6, 23)}
_DO = 2
_HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}


class _Failed(Exception):
    def __init__(self, result: connectivity.Result, reason: str = "") -> None:
        super().__init__(result)
        self.result, self.reason = result, reason[:200]


class _Destination(NamedTuple):
    """An address to connect to, as the standard library has it."""

    family: socket.AddressFamily
    address: tuple[str, int]


def run(task: connectivity.ProbeTask) -> connectivity.ProbeAnswer:
    # Not a context manager: that would wait for a resolver that does not answer.
    pool = ThreadPoolExecutor(_AT_ONCE)
    targets = (*task.internet, *task.unreachable)
    resolving = [pool.submit(_routed, target) for target in targets]
    probes = _endings(pool.submit(_retry, partial(_probe, probe)) for probe in task.probes)
    # Before the counters are read: what the resolver sends is no part of a phase.
    resolved = [_result(future, []) for future in resolving]
    internet, forbidden = resolved[: len(task.internet)], resolved[len(task.internet) :]
    before = _settled_counters() if targets else connectivity.Sent()
    unreachable = _endings(
        pool.submit(_attempt, partial(_reach_any, destinations)) for destinations in forbidden
    )
    between = _settled_counters() if forbidden else before
    reached = _endings(
        pool.submit(_retry, partial(_connect_all, destinations)) for destinations in internet
    )
    after = _settled_counters() if internet else between
    return connectivity.ProbeAnswer(
        probes=probes,
        internet=reached,
        unreachable=unreachable,
        to_internet=_difference(between, after),
        to_unreachable=_difference(before, between),
    )


def _endings(submitted: Iterable[Future[connectivity.Ending]]) -> tuple[connectivity.Ending, ...]:
    late = connectivity.Ending(result=connectivity.Result.NO_ANSWER)
    # All are submitted before the first is waited for.
    return tuple(_result(future, late) for future in list(submitted))


def _result(waiting: Future[Value], otherwise: Value) -> Value:
    try:
        return waiting.result(_LONGEST_SECONDS)
    except TimeoutError:  # the C library's resolver has no time limit of its own
        return otherwise


def _retry(attempt: Attempt) -> connectivity.Ending:
    """Try until it succeeds: servers start and Services are wired meanwhile."""
    deadline = time.monotonic() + connectivity.PATIENCE_SECONDS
    while True:
        ending = _attempt(attempt)
        if ending.result is connectivity.Result.OK or time.monotonic() > deadline:
            return ending
        time.sleep(_PAUSE_SECONDS)


def _attempt(attempt: Attempt) -> connectivity.Ending:
    try:
        return connectivity.Ending(result=connectivity.Result.OK, seen=attempt())
    except _Failed as failed:
        return connectivity.Ending(result=failed.result, reason=failed.reason)


def _probe(probe: connectivity.Probe) -> tuple[str, ...]:
    destinations = _resolved(probe.host, probe.port)
    match probe.by:
        case "dns":
            return tuple(sorted({destination.address[0] for destination in destinations}))
        case "tcp":
            return (_stream(destinations[0]),)
        case "udp":
            return (_datagrams(destinations[0]),)
        case "reach":
            return _reach_any(destinations)
        case "connect":
            return _connect_all(list(filter(_has_route, destinations)))


def _resolved(host: str, port: int) -> list[_Destination]:
    """One for each family in which the name has an address."""
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise _Failed(connectivity.Result.NO_NAME, str(error)) from None
    # Reversed, so that the first address of each family remains.
    addresses = {family: (str(at[0]), int(at[1])) for family, _, _, _, at in reversed(infos)}
    return [_Destination(family, address) for family, address in addresses.items()]


def _routed(target: connectivity.ProbeTarget) -> list[_Destination]:
    """Those that the pod has a route for; none if there is no such name."""
    with suppress(_Failed):
        return list(filter(_has_route, _resolved(*target)))
    return []


def _has_route(destination: _Destination) -> bool:
    with suppress(OSError), socket.socket(destination.family, socket.SOCK_DGRAM) as opened:
        opened.connect(destination.address)  # sends nothing
        return True
    return False


def _connected(destination: _Destination) -> socket.socket:
    try:
        return socket.create_connection(destination.address, timeout=connectivity.TRY_SECONDS)
    except TimeoutError:
        raise _Failed(connectivity.Result.NO_ANSWER) from None
    except ConnectionRefusedError:
        raise _Failed(connectivity.Result.REFUSED) from None
    except OSError as error:
        raise _Failed(connectivity.Result.NO_ANSWER, error.strerror or str(error)) from None


def _stream(destination: _Destination) -> str:
    """The pod's address as a server saw it, once a stream of full packets came back."""
    payload, taken = bytes(connectivity.STREAM_BYTES), b""
    deadline = time.monotonic() + connectivity.TRY_SECONDS
    with _connected(destination) as opened:
        try:
            opened.sendall(payload)
            opened.shutdown(socket.SHUT_WR)
            while (piece := opened.recv(1 << 16)) and time.monotonic() < deadline:
                taken += piece
        except OSError as error:
            raise _Failed(connectivity.Result.STALLED, error.strerror or str(error)) from None
    seen, _, rest = taken.partition(b"\n")
    if rest != payload:
        raise _Failed(connectivity.Result.STALLED, f"{len(rest)} of {len(payload)} bytes came back")
    return seen.decode(errors="replace")


def _datagrams(destination: _Destination) -> str:
    """The same by a small datagram, and by one of the path's MTU that is not fragmented."""
    family, address = destination
    with socket.socket(family, socket.SOCK_DGRAM) as opened:
        opened.settimeout(connectivity.TRY_SECONDS / 4)
        opened.setsockopt(*_DISCOVER[family], _DO)
        try:
            opened.connect(address)
        except OSError as error:
            raise _Failed(connectivity.Result.NO_ANSWER, error.strerror or str(error)) from None
        seen = _exchanged(opened, lambda: _SMALL, connectivity.Result.NO_ANSWER)

        def largest() -> int:
            # Asked again at each try: where the path has less than the interface, the kernel learns
            # that from what was too large.
            return min(opened.getsockopt(*_IP_MTU[family]), 1 << 15) - _HEADERS[family]

        _exchanged(opened, largest, connectivity.Result.STALLED)
    return seen.decode(errors="replace")


def _exchanged(
    opened: socket.socket, size: Callable[[], int], otherwise: connectivity.Result
) -> bytes:
    """The first line of the answer to a datagram of this size, which may get lost three times."""
    reason = ""
    for _ in range(4):
        try:
            length = size()
            opened.send(struct.pack(f"!{length}x"))
            answer = opened.recv(1 << 16)
            if len(answer) == length:
                return answer.partition(b"\n")[0]
        except TimeoutError:
            reason = ""
        except OSError as error:
            reason = error.strerror or str(error)
    raise _Failed(otherwise, reason)


def _reach_any(destinations: Sequence[_Destination]) -> tuple[str, ...]:
    """Fails with NO_ANSWER unless one of these answers; a refusal is an answer, too."""
    for destination in _not_empty(destinations):
        try:
            _connected(destination).close()
        except _Failed as failed:
            if failed.result is connectivity.Result.NO_ANSWER:
                continue
        return (destination.address[0],)
    raise _Failed(connectivity.Result.NO_ANSWER)


def _connect_all(destinations: Sequence[_Destination]) -> tuple[str, ...]:
    for destination in _not_empty(destinations):
        with _connected(destination) as opened:
            # Closing resets a peer that goes on, so that nothing is counted later.
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            opened.settimeout(connectivity.TRY_SECONDS / 2)
            taken = 0
            with suppress(OSError):
                opened.shutdown(socket.SHUT_WR)
                while taken < _LARGEST_GREETING and (piece := opened.recv(1 << 12)):
                    taken += len(piece)
    return tuple(destination.address[0] for destination in destinations)


def _not_empty(destinations: Sequence[_Destination]) -> Sequence[_Destination]:
    if not destinations:
        raise _Failed(connectivity.Result.NO_NAME, "or no route to it")
    return destinations


def _settled_counters() -> connectivity.Sent:
    """The counters, once they have been the same for a while; or after some seconds as they are."""
    begin = since = time.monotonic()
    counters = _counters()
    while (now := time.monotonic()) - since < _QUIET_SECONDS and now - begin < _NOISY_SECONDS:
        time.sleep(_PAUSE_SECONDS / 4)
        if (newer := _counters()) != counters:
            counters, since = newer, time.monotonic()
    return counters


def _counters() -> connectivity.Sent:
    v4 = _extended((_NET / "netstat").read_text(), "IpExt")
    try:
        lines = (_NET / "snmp6").read_text().splitlines()
    except FileNotFoundError:  # a kernel without IPv6
        lines = []
    v6 = {name: int(value) for name, value in map(str.split, lines)}
    # Nothing from the internet comes by multicast or broadcast. Of IPv4 groups that the pod is not
    # in, the kernel does not count the bytes apart: these stay.
    # The node's end of the pod's link, and other pods on a bridge, report the groups that they are
    # in (MLD). The pod receives that; it is in none of them, so it is no ICMPv6 message to the pod.
    to_many = v4["InMcastOctets"] + v4["InBcastOctets"] + v6.get("Ip6InMcastOctets", 0)
    return connectivity.Sent(
        bytes_out=v4["OutOctets"] + v6.get("Ip6OutOctets", 0),
        bytes_in=v4["InOctets"] + v6.get("Ip6InOctets", 0) - to_many,
        icmpv6_out=v6.get("Icmp6OutMsgs", 0),
        icmpv6_in=v6.get("Icmp6InMsgs", 0),
    )


def _extended(text: str, name: str) -> dict[str, int]:
    """A table of netstat's: a line of names, and one of values."""
    names, values = (line.split() for line in text.splitlines() if line.startswith(f"{name}: "))
    return dict(zip(names[1:], map(int, values[1:]), strict=True))


def _difference(before: connectivity.Sent, after: connectivity.Sent) -> connectivity.Sent:
    later, earlier = after.model_dump(), before.model_dump()
    return connectivity.Sent(**{key: later[key] - earlier[key] for key in later})


def main() -> None:
    """Print what came of the task that is the one argument."""
    answer = run(connectivity.ProbeTask.model_validate_json(sys.argv[1]))
    sys.stdout.write(answer.model_dump_json() + "\n")
    sys.stdout.flush()
    # A thread that still waits for the resolver would keep the process.
    os._exit(Exit.SUCCESS)


if __name__ == "__main__":
    main()
