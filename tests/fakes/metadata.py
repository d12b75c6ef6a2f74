"""Azure's instance metadata service: a real HTTP server at its real address, in a namespace of the
test's own.
"""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.lab import wiring

HOST, PORT = "169.254.169.254", 80
DRIBBLE_SECONDS = 0.05


def document(*interfaces: Sequence[str]) -> bytes:
    """The body Azure documents, of interfaces whose first addresses are the machine's own; every
    value is a string.
    """

    def entries(addresses: list[str]) -> list[dict[str, str]]:
        return [{"privateIpAddress": address, "publicIpAddress": ""} for address in addresses]

    def interface(addresses: Sequence[str]) -> dict[str, object]:
        v4, v6 = [[a for a in addresses if (":" in a) is wanted] for wanted in (False, True)]
        subnet = [{"address": "10.0.0.0", "prefix": "8"}]
        ipv4, ipv6 = {"ipAddress": entries(v4), "subnet": subnet}, {"ipAddress": entries(v6)}
        return {"ipv4": ipv4, "ipv6": ipv6, "macAddress": "0011AAFFBB22"}

    return json.dumps({"interface": [interface(addresses) for addresses in interfaces]}).encode()


def http(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    """A whole HTTP answer."""
    named = {"Content-Type": "application/json; charset=utf-8", "Content-Length": str(len(body))}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "\r\n".join(f"{name}: {value}" for name, value in named.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n\r\n".encode() + body


def give_address(namespace: Path) -> None:
    """Make a namespace the machine at the server's address; again changes nothing."""
    add = ["ip", "address", "replace", f"{HOST}/32", "dev", "lo"]
    subprocess.run(["nsenter", f"--net={namespace}", *add], check=True)


@dataclass
class MetadataServer:
    """Answers each request with `answer`, whatever bytes these are; a context manager.

    Attributes:
        answer: what is sent; None hangs up without a word.
        pause: seconds before the answer.
        dribbles: send a byte at a time, slowly.
        requests: when each came, and its text.
    """

    namespace: Path
    answer: bytes | None = b""
    pause: float = 0.0
    dribbles: bool = False
    requests: list[tuple[float, str]] = field(default_factory=list)

    def __enter__(self) -> Self:
        give_address(self.namespace)
        with wiring.inside(self.namespace):
            self._listening = socket.create_server((HOST, PORT), backlog=16)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()

    def _serve(self) -> None:
        while not self._ended.is_set():
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                self._converse(connection)

    def _converse(self, connection: socket.socket) -> None:
        request = b""
        while b"\r\n\r\n" not in request and (part := connection.recv(4096)):
            request += part
        self.requests.append((time.monotonic(), request.decode()))
        self._ended.wait(self.pause)
        if self.answer is None:
            return
        if not self.dribbles:
            connection.sendall(self.answer)
            return
        for byte in self.answer:
            connection.sendall(bytes([byte]))
            if self._ended.wait(DRIBBLE_SECONDS):
                return
