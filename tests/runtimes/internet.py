"""The internet host of a test's world: answers datagrams and web requests,
and counts on its own."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

from tests.lab.wiring import inside
from tests.waiting import PATIENCE

ECHO_PORT = 7
WEB_PORT = 80
END = b"end of test"
PAGE = b"netmgr" * 2000
DATAGRAMS, PAYLOAD = 20, 1000


def probing(target: object, program: str = "probe", many: int = DATAGRAMS) -> tuple[str, ...]:
    """The command by which a pod exchanges datagrams with the internet host, or another."""
    return program, str(target), str(ECHO_PORT), str(many), str(PAYLOAD)


def browsing(target: object) -> tuple[str, ...]:
    """The command by which a pod prints its page, below the headers."""
    return "sh", "-c", f"printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc {target} {WEB_PORT}"


METER = """
table inet witness {{
    counter internet-out {{ packets 0 bytes 0 }}
    counter internet-in {{ packets 0 bytes 0 }}
    chain arriving {{
        type filter hook input priority 0
        ip saddr {v4} counter name internet-out
        ip6 saddr {v6} counter name internet-out
    }}
    chain leaving {{
        type filter hook output priority 0
        ip daddr {v4} counter name internet-in
        ip6 daddr {v6} counter name internet-in
    }}
}}
"""


class _Web(ThreadingHTTPServer):
    address_family = socket.AF_INET6
    daemon_threads = True
    visitors: set[str]


class _Page(BaseHTTPRequestHandler):
    server: _Web

    def do_GET(self) -> None:
        self.server.visitors.add(_plain(self.client_address[0]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: object) -> None:
        """Requests are not news."""


@dataclass
class Internet:
    """Servers in the namespace pinned at `netns`; a context manager.

    `visitors` are the source addresses seen so far; `meter` counts what is exchanged with
    `node`'s v4 and v6 addresses, by nftables on this side, independent of netmgr.
    """

    netns: Path
    node: tuple[str, str]
    visitors: set[str] = field(default_factory=set)

    def __enter__(self) -> Self:
        with inside(self.netns):
            self._echo = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            self._echo.bind(("::", ECHO_PORT))
            self._web = _Web(("::", WEB_PORT), _Page)
        self._web.visitors = self.visitors
        self._nft("-f", "-", stdin=METER.format(v4=self.node[0], v6=self.node[1]))
        self._threads = [
            threading.Thread(target=serve) for serve in (self._serve_echo, self._web.serve_forever)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._web.shutdown()
        self._web.server_close()
        self._end_echo()
        for thread in self._threads:
            thread.join(PATIENCE)
        self._echo.close()

    def meter(self) -> dict[str, tuple[int, int]]:
        """(bytes, packets) by direction, IP headers included."""
        listed = json.loads(self._nft("-j", "list", "counters", "table", "inet", "witness"))[
            "nftables"
        ]
        counters = [entry["counter"] for entry in listed if "counter" in entry]
        return {counter["name"]: (counter["bytes"], counter["packets"]) for counter in counters}

    def _serve_echo(self) -> None:
        while True:
            data, peer = self._echo.recvfrom(65_535)
            if data == END:
                return
            self.visitors.add(_plain(peer[0]))
            self._echo.sendto(data, peer)

    def _end_echo(self) -> None:
        with inside(self.netns), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as last:
            last.sendto(END, ("::1", ECHO_PORT))

    def _nft(self, *arguments: str, stdin: str = "") -> str:
        command = ["nsenter", f"--net={self.netns}", "nft", *arguments]
        return subprocess.run(
            command, input=stdin, capture_output=True, check=True, text=True
        ).stdout


def _plain(address: str) -> str:
    """A v4 peer of a dual-stack socket without its mapping (RFC 4291, 2.5.5.2)."""
    return address.removeprefix("::ffff:")
