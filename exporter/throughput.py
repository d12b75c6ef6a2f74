"""The stream at /throughput: bytes without a meaning, one client at a time, soon over."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from wsgiref.types import StartResponse, WSGIEnvironment

from netmgr.api.throughput import RETRY_SECONDS, STREAM_BYTES, STREAM_SECONDS, TAKING_SECONDS

CONNECTION = "netmgr.connection"
"""Where a request's environment has its socket."""

_PIECE = 64 * 1024

log = logging.getLogger(__name__)


class Stream:
    """A WSGI application. While it serves somebody, others get 503."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._serving = threading.Lock()
        # Random, so that nothing on the way can compress it.
        self._piece = os.urandom(_PIECE)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Send until a bound of the stream is reached, or the client takes no more."""
        if not self._serving.acquire(blocking=False):
            start_response("503 Service Unavailable", [("Retry-After", str(RETRY_SECONDS))])
            return [b"another node is served\n"]
        try:
            environ[CONNECTION].settimeout(TAKING_SECONDS)
            write = start_response("200 OK", [("Content-Type", "application/octet-stream")])
            until = self._clock() + STREAM_SECONDS
            for _ in range(STREAM_BYTES // _PIECE):
                if self._clock() > until:
                    break
                # Written here and not returned, so that whatever ends it ends in this block.
                write(self._piece)
        except OSError as error:
            log.debug("stream-ended client=%s error=%s", environ.get("REMOTE_ADDR"), str(error))
        finally:
            self._serving.release()
        return []
