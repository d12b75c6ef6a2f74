"""Receives from a stream until a deadline, however steadily its other end sends."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

_PART_BYTES = 1 << 16


def received(connection: socket.socket, deadline: float) -> Iterator[bytes]:
    """What comes, part by part, to the end of the stream; TimeoutError past the deadline.

    `deadline` is a time of the monotonic clock.
    """
    while (left := deadline - time.monotonic()) > 0:
        # A socket's timeout bounds one call alone; the deadline bounds them all.
        connection.settimeout(left)
        part = connection.recv(_PART_BYTES)
        if not part:
            return
        yield part
    raise TimeoutError
