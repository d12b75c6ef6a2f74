"""A TCP server at the internet host: it greets whoever connects, and waits for their end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.lab import wiring

GREETING = b"SSH-2.0-test\r\n"


@contextmanager
def greeting(namespace: Path, *, hangs_on: bool = False) -> Iterator[int]:
    """The server's port, by either family; one that hangs on never closes a connection."""
    with wiring.inside(namespace):
        listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    kept: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                opened, _ = listener.accept()
                kept.append(opened)
                threading.Thread(target=greet, args=(opened,), daemon=True).start()

    def greet(opened: socket.socket) -> None:
        with suppress(OSError):
            opened.settimeout(20)
            opened.sendall(GREETING)
            while opened.recv(1 << 12):
                pass
            if not hangs_on:
                opened.close()

    worker = threading.Thread(target=serve, daemon=True)
    worker.start()
    try:
        yield listener.getsockname()[1]
    finally:
        # A thread that waits in accept() does not notice that its socket is closed.
        listener.shutdown(socket.SHUT_RDWR)
        worker.join()
        for each in (listener, *kept):
            each.close()
