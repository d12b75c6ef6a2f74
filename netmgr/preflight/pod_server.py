"""The server of `netmgr connectivity-test` in a pod: `python3 -m netmgr.preflight.pod_server`.

It says which address a client has here, and sends back what it got, by TCP and UDP at one port.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from contextlib import suppress

from netmgr.api.connectivity import PORT, STREAM_BYTES, TRY_SECONDS
from netmgr.dual_stack import DualStackServer
from netmgr.prefixes import Address

_MAPPED = "::ffff:"
_PIECE = 1 << 16


def line_of(address: str) -> bytes:
    """An answer's first line: the address of a client, as it is without IPv6 around it."""
    shown = address.partition("%")[0].removeprefix(_MAPPED)
    return f"{Address.parse(shown)}\n".encode()


class _Stream(socketserver.BaseRequestHandler):
    request: socket.socket

    def handle(self) -> None:
        self.request.settimeout(TRY_SECONDS)
        taken = b""
        try:
            # The whole request before the answer: neither end waits for the other to read.
            while len(taken) <= STREAM_BYTES and (piece := self.request.recv(_PIECE)):
                taken += piece
            self.request.sendall(line_of(self.client_address[0]) + taken)
        except OSError:
            pass  # the client has given up, and says so itself


class _Datagram(socketserver.BaseRequestHandler):
    request: tuple[bytes, socket.socket]

    def handle(self) -> None:
        taken, own = self.request
        first = line_of(self.client_address[0])
        with suppress(OSError):  # there is no way back: the client gets no answer
            # As long as the request, so that nobody makes it amplify what is sent to others.
            own.sendto((first + taken[len(first) :])[: len(taken)], self.client_address)


class _Streams(socketserver.ThreadingMixIn, DualStackServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128


# In one thread: an answer never waits.
class _Datagrams(socketserver.UDPServer, DualStackServer):
    max_packet_size = 1 << 16


def main() -> None:
    with _Streams(("", PORT), _Stream) as streams, _Datagrams(("", PORT), _Datagram) as datagrams:
        threading.Thread(target=datagrams.serve_forever, daemon=True).start()
        streams.serve_forever()


if __name__ == "__main__":
    main()
