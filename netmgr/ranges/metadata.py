"""HTTP requests to a link-local metadata service, bounded in time and size."""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from types import SimpleNamespace
from typing import NoReturn, cast

from netmgr.errors import RangesUnknown
from netmgr.receiving import received

MAX_BYTES = 512 * 1024
"""A network interface of 256 addresses takes some 20 kB."""

MAX_RETRY_AFTER = 300.0
"""Seconds at most that a Retry-After is honoured."""

NO_ANSWER, OK, NOT_FOUND = 0, 200, 404

_FIRST_REDIRECT, _FIRST_CLIENT_ERROR, _TOO_MANY = 300, 400, 429


@dataclass(frozen=True, slots=True)
class MetadataEndpoint:
    """Where to ask, for what, and the timeout in seconds."""

    host: str
    port: int
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 5.0
    method: str = "GET"
    hints: Mapping[int, str] = field(default_factory=dict)
    """What a person can do about a status, or about `NO_ANSWER`."""

    def __str__(self) -> str:
        return f"http://{self.host}{self.target}"


def fetch(
    endpoint: MetadataEndpoint, deadline: float | None = None, expected: Collection[int] = (OK,)
) -> tuple[HTTPResponse, bytes]:
    """An answer with an expected status, and its body.

    `deadline` is a time of the monotonic clock, for requests that share one. RangesUnknown if no
    such answer comes in time, whole and not too long.
    """
    deadline = time.monotonic() + endpoint.seconds if deadline is None else deadline
    try:
        # Whole before it is parsed, so that a server that sends a byte now and then times out like
        # one that sends nothing: http.client would begin its timeout anew with each read.
        answer = _exchange(endpoint, deadline)
    except TimeoutError:
        hint = endpoint.hints.get(NO_ANSWER, "")
        raise RangesUnknown(
            f"{endpoint}: no whole answer within {endpoint.seconds:g} s{hint}"
        ) from None
    except OSError as error:
        raise RangesUnknown(f"{endpoint}: {error.strerror or error}") from None
    try:
        # http.client reads from a socket only through makefile(), which the bytes received can
        # offer, too.
        received_bytes = SimpleNamespace(makefile=lambda _mode: io.BytesIO(answer))
        response = HTTPResponse(cast("socket.socket", received_bytes))
        response.begin()
        body = response.read()
    # OverflowError: a chunk or a body that claims to be longer than any memory.
    except (HTTPException, ValueError, OverflowError) as error:
        raise RangesUnknown(
            f"{endpoint}: is no whole HTTP answer: {type(error).__name__} {error}".rstrip()
        ) from None
    if response.status not in expected:
        _refuse(endpoint, response)
    return response, body


def request_of(endpoint: MetadataEndpoint) -> bytes:
    lines = [
        f"{endpoint.method} {endpoint.target} HTTP/1.1",
        f"Host: {endpoint.host}",
        # So that the end of the connection is the end of the answer, whatever its length is said to
        # be.
        "Connection: close",
    ]
    lines += [f"{name}: {value}" for name, value in endpoint.headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def connected(endpoint: MetadataEndpoint, seconds: float) -> socket.socket:
    # Not by urllib, which obeys the environment's proxies: a proxy would answer for itself, not for
    # this machine.
    return socket.create_connection((endpoint.host, endpoint.port), timeout=seconds)


def _exchange(endpoint: MetadataEndpoint, deadline: float) -> bytes:
    answer = bytearray()
    if (left := deadline - time.monotonic()) <= 0:
        raise TimeoutError
    with connected(endpoint, left) as connection:
        connection.sendall(request_of(endpoint))
        for part in received(connection, deadline):
            answer += part
            if len(answer) > MAX_BYTES:
                raise RangesUnknown(f"{endpoint}: answers with more than {MAX_BYTES // 1024} KiB")
    return bytes(answer)


def _refuse(endpoint: MetadataEndpoint, response: HTTPResponse) -> NoReturn:
    status = response.status
    if _FIRST_REDIRECT <= status < _FIRST_CLIENT_ERROR:
        where = response.getheader("Location", "somewhere")[:100]
        raise RangesUnknown(f"{endpoint}: redirects to {where}, which is not followed")
    wait = _seconds(response.getheader("Retry-After", ""))
    reason = "asks to be asked less often" if status == _TOO_MANY else "answers"
    hint = endpoint.hints.get(status, "")
    raise RangesUnknown(f"{endpoint}: {reason} ({status} {response.reason[:60]}){hint}", wait)


def _seconds(text: str) -> float:
    """Seconds of a Retry-After header (RFC 9110, 10.2.3); 0 without one, or if it is a date."""
    # isdigit() alone accepts digits such as `²`, which float() refuses.
    return min(float(text[:9]), MAX_RETRY_AFTER) if text.isascii() and text.isdigit() else 0.0
