"""A WSGI server for whoever connects: what its clients do is neither a fault nor a traceback.

The base classes write a traceback to standard error for every client that goes away too early.
"""

from __future__ import annotations

import logging
import sys
from http import HTTPStatus
from http.client import HTTPMessage, LineTooLong
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import ServerHandler, WSGIRequestHandler, WSGIServer

from exporter.connections import Head
from netmgr.dual_stack import DualStackServer
from netmgr.logs import caused_by

log = logging.getLogger(__name__)

IDLE_SECONDS = 10


class PublicServer(ThreadingMixIn, DualStackServer, WSGIServer):
    daemon_threads = True
    # Another process must not share the port and take scrapes away, whatever HTTPServer's default.
    allow_reuse_port = False

    def server_bind(self) -> None:
        super().server_bind()
        host, self.server_port = self.server_address[:2]
        self.server_name = str(host)
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, ARG002  as in typeshed
        # Clients that went away are no fault of ours.
        if isinstance(sys.exception(), OSError):
            log.debug("client-lost client=%s error=%s", client_address[0], str(sys.exception()))
        else:
            _log_fault(client_address)


class PublicHandler(WSGIRequestHandler):
    """One request; a client that sends nothing, or too much, is hung up on."""

    server: PublicServer
    # Without it a client that sends nothing would keep its thread for ever.
    timeout = IDLE_SECONDS

    def setup(self) -> None:
        super().setup()
        self.rfile = Head(self.rfile)  # type: ignore[assignment]  # what http.server uses

    def handle(self) -> None:
        """Answer one request; one whose head never ends gets 431."""
        try:
            self.raw_requestline = self.rfile.readline()
            if self.parse_request():
                answer = _Answer(
                    self.rfile,
                    self.wfile,  # type: ignore[arg-type]  # typeshed calls it `IO` here and not there
                    sys.stderr,
                    self.get_environ(),
                    multithread=False,
                )
                answer.request_handler = self
                answer.run(self.server.get_app())  # type: ignore[arg-type]  # it is set
        except LineTooLong:
            # What sending an error asks for, and what parsing would have set.
            self.requestline = self.request_version = self.command = ""
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def parse_request(self) -> bool:
        """Read the head; a client of this server sends no body."""
        parsed = super().parse_request()
        if parsed:
            # HTTP/0.9 has none. Python 3.14 leaves a dict then, which wsgiref cannot read.
            self.headers = self.headers or HTTPMessage()
        return parsed

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  as the base class
        log.debug("request client=%s request=%s", self.client_address[0], format % args)


class _Answer(ServerHandler):
    request_handler: PublicHandler

    def log_exception(self, exc_info: Any) -> None:  # noqa: ANN401, ARG002  as in typeshed
        handler = self.request_handler
        # Nothing is sent to the client before the answer's head.
        if self.headers_sent:  # type: ignore[attr-defined]  # not in typeshed
            handler.server.handle_error(handler.connection, handler.client_address)
        else:
            _log_fault(handler.client_address)


def _log_fault(client_address: Any) -> None:  # noqa: ANN401  as above
    fault = sys.exception()
    log.error(
        "request-failed client=%s",
        client_address[0],
        exc_info=fault,
        # Not the client, which may have any number of addresses.
        extra=caused_by(type(fault).__name__),
    )
