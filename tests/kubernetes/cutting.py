"""A way to the API server that can be cut: bytes go through as they are, TLS and all."""

from __future__ import annotations

import contextlib
import socket
import threading


class Way:
    """Listens on the loopback and passes every connection on to `port`."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._open = True
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return self._listener.getsockname()[1]

    def cut(self) -> None:
        """End every connection, and refuse new ones."""
        self._open = False
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Let connections through again."""
        self._open = True

    def close(self) -> None:
        """End it for good."""
        self._closed = True
        self.cut()
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            here, _ = self._listener.accept()
            if not self._open:
                here.close()
                continue
            there = socket.create_connection(("127.0.0.1", self._to))
            self._pairs.append((here, there))
            for ends in ((here, there), (there, here)):
                threading.Thread(target=_pass_on, args=ends, daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
    source.close()
