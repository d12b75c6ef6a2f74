"""An exporter's real port for the length of a block, and a client that asks it."""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from exporter import connections
from exporter.server import Server, Usage
from exporter.settings import Settings
from exporter.wsgi import PublicHandler
from netmgr import programs
from netmgr.api.snapshot import Snapshot
from tests.waiting import PATIENCE


@contextmanager
def serving(
    read: Callable[[], Snapshot], usage: Usage | None = None, **settings: object
) -> Iterator[int]:
    """Serve what `read` gives on a port of the loopback's; that port's number.

    A client of the same process, which is stopped as long as the exporter is, is not hung up on.
    """
    with (
        patch.multiple(connections, HEAD_SECONDS=PATIENCE, ANSWER_SECONDS=PATIENCE),
        patch.object(PublicHandler, "timeout", PATIENCE),
        patch("exporter.server.IDLE_SECONDS", PATIENCE),
        Server(Settings(**{"listen": "127.0.0.1:0", **settings}), read, usage=usage) as server,
    ):
        worker = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        worker.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            worker.join()


def get(
    port: int, path: str = "/metrics", tls: ssl.SSLContext | None = None, **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    """The answer to one request, and its body."""
    if tls:
        connection = http.client.HTTPSConnection("localhost", port, timeout=PATIENCE, context=tls)
    else:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def certificate(folder: Path, name: str = "localhost") -> tuple[Path, Path]:
    """A self-signed certificate for `name` and its key."""
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    subject = ("-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}", "-days", "2")
    openssl = programs.locate("openssl", "openssl")
    outcome = programs.run(
        [openssl, "req", "-x509", *curve, *subject, "-keyout", key, "-out", cert]
    )
    assert outcome.returncode == 0, outcome.stderr.decode()
    return cert, key
