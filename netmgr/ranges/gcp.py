"""Google's metadata server: the alias IP ranges of the first interface are the pool.

Source: cloud.google.com, "View and query VM metadata" (`recursive`, `wait_for_change`, `last_etag`,
`timeout_sec`) and "Predefined metadata keys". An answer without `Metadata-Flavor: Google` is
another server's. Alias ranges are IPv4 alone, and an interface's own address is not among them.
Further interfaces are in other VPC networks.
"""

from __future__ import annotations

import math
import re
import select
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from netmgr.errors import RangesUnknown
from netmgr.prefixes import Family, Prefix
from netmgr.ranges.answers import RangeOffer, block_of, json_of, list_of
from netmgr.ranges.metadata import MetadataEndpoint, connected, fetch, request_of

ENDPOINT = MetadataEndpoint(
    "169.254.169.254",
    80,
    "/computeMetadata/v1/instance/network-interfaces/?recursive=true&alt=json",
    {"Metadata-Flavor": "Google"},
)

LEAST_WATCH = 2.0
"""Seconds; a server that ends a request sooner may do so again and again."""

_SHORTEST = 16
_WHERE = "the instance's network-interfaces"


def read(endpoint: MetadataEndpoint = ENDPOINT) -> RangeOffer:
    """Ask the metadata server once for the machine's pool."""
    return _read(endpoint)[0]


def _read(endpoint: MetadataEndpoint) -> tuple[RangeOffer, str]:
    """The pool and its ETag; RangesUnknown without an answer in time, or if it is another."""
    response, body = fetch(endpoint)
    if response.getheader("Metadata-Flavor") != "Google":
        raise RangesUnknown(f"{endpoint}: answers without Metadata-Flavor: Google, as Google's do")
    interfaces = json_of(body)
    if not isinstance(interfaces, list) or not interfaces:
        raise RangesUnknown(f"{_WHERE}: is no list of interfaces")
    first, *others = (
        tuple(_aliases(interface, f"{_WHERE}[{number}]"))
        for number, interface in enumerate(interfaces)
    )
    elsewhere = {f"nic{number}": theirs for number, theirs in enumerate(others, 1) if theirs}
    return RangeOffer(first, elsewhere), response.getheader("ETag", "")


def _aliases(interface: object, where: str) -> Iterator[Prefix]:
    for index, text in enumerate(list_of(interface, "ipAliases", where)):
        yield block_of(text, f"{where}.ipAliases[{index}]", Family.V4, _SHORTEST)


class ChangeWatch:
    """Reads the pool, and has its descriptor become readable once the answer may have changed."""

    def __init__(self, endpoint: MetadataEndpoint = ENDPOINT) -> None:
        self._endpoint = endpoint
        # It keeps its number: each request has another connection.
        self._ready = select.epoll()
        self._waiting: socket.socket | None = None
        self._began = -math.inf

    def fileno(self) -> int:
        return self._ready.fileno()

    def close(self) -> None:
        """End the request that waits."""
        if self._waiting:
            self._waiting.close()

    def read(self) -> RangeOffer:
        """The pool as of now, as the function `read`; the next change wakes whoever polls this."""
        is_hasty = time.monotonic() - self._began < LEAST_WATCH
        self.close()
        offer, etag = _read(self._endpoint)
        # What ends the request says nothing: the pool is read again.
        if not is_hasty and re.fullmatch(r"[0-9A-Za-z_-]{1,128}", etag):
            # Longer than to the next reading, without which nothing would notice a lost connection.
            query = f"&wait_for_change=true&last_etag={etag}&timeout_sec=3600"
            waiting = replace(self._endpoint, target=self._endpoint.target + query)
            self._began = time.monotonic()
            with suppress(OSError):
                self._waiting = connected(waiting, waiting.seconds)
                self._waiting.sendall(request_of(waiting))
                self._ready.register(self._waiting, select.EPOLLIN)
        return offer
