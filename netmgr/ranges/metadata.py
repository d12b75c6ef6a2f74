"""One HTTP request to a link-local metadata service, bounded in time and size."""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from types import SimpleNamespace
from typing import cast

from netmgr.errors import RangesUnknown
from netmgr.receiving import received

MAX_BYTES = 512 * 1024
"""A network interface of 256 addresses takes some 20 kB."""

MAX_RETRY_AFTER = 300.0
"""Seconds at most that a Retry-After is honoured."""

_OK, _FIRST_REDIRECT, _FIRST_CLIENT_ERROR, _TOO_MANY = 200, 300, 400, 429


@dataclass(frozen=True, slots=True)
class MetadataEndpoint:
    """Where to ask, for what, and the timeout in seconds."""

    host: str
    port: int
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 5.0

    def __str__(self) -> str:
        return f"http://{self.host}{self.target}"


def fetch(endpoint: MetadataEndpoint) -> bytes:
    """The body of a 200 answer; RangesUnknown if none comes in time, whole and not too long."""
    try:
        # Whole before it is parsed, so that a server that sends a byte now and then times out like
        # one that sends nothing: http.client would begin its timeout anew with each read.
        answer = _exchange(endpoint)
    except TimeoutError:
        raise RangesUnknown(f"{endpoint}: no whole answer within {endpoint.seconds:g} s") from None
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
    _check_status(endpoint, response)
    return body


def _exchange(endpoint: MetadataEndpoint) -> bytes:
    deadline = time.monotonic() + endpoint.seconds
    lines = [
        f"GET {endpoint.target} HTTP/1.1",
        f"Host: {endpoint.host}",
        # So that the end of the connection is the end of the answer, whatever its length is said to
        # be.
        "Connection: close",
        "Accept: application/json",
    ]
    lines += [f"{name}: {value}" for name, value in endpoint.headers.items()]
    answer = bytearray()
    # Not by urllib, which obeys the environment's proxies: a proxy would answer for itself, not for
    # this machine.
    with socket.create_connection(
        (endpoint.host, endpoint.port), timeout=endpoint.seconds
    ) as connection:
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("ascii"))
        for part in received(connection, deadline):
            answer += part
            if len(answer) > MAX_BYTES:
                raise RangesUnknown(f"{endpoint}: answers with more than {MAX_BYTES // 1024} KiB")
    return bytes(answer)


def _check_status(endpoint: MetadataEndpoint, response: HTTPResponse) -> None:
    status = response.status
    if status == _OK:
        return
    if _FIRST_REDIRECT <= status < _FIRST_CLIENT_ERROR:
        where = response.getheader("Location", "somewhere")[:100]
        raise RangesUnknown(f"{endpoint}: redirects to {where}, which is not followed")
    wait = _seconds(response.getheader("Retry-After", ""))
    reason = "asks to be asked less often" if status == _TOO_MANY else "answers"
    raise RangesUnknown(f"{endpoint}: {reason} ({status} {response.reason[:60]})", wait)


def _seconds(text: str) -> float:
    """Seconds of a Retry-After header (RFC 9110, 10.2.3); 0 without one, or if it is a date."""
    # isdigit() alone accepts digits such as `²`, which float() refuses.
    return min(float(text[:9]), MAX_RETRY_AFTER) if text.isascii() and text.isdigit() else 0.0
