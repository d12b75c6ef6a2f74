"""Waits for many sockets at once, whatever their other ends do, for a bounded time."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Mapping

Handler = Callable[[], bool]
"""Called when its socket is ready; True when nothing more is expected there."""


def serve(waiting: Mapping[socket.socket, Handler], event: int, until: float) -> None:
    """Call the handlers of sockets that are ready, until all are done or the time is over.

    `event` is one of selectors' EVENT_…, and `until` a time of the monotonic clock.
    """
    pending = dict(waiting)
    with selectors.DefaultSelector() as selector:
        for opened in pending:
            selector.register(opened, event)
        is_over = False
        # Looked at after every round: a flood from one machine keeps its socket ready for ever.
        while pending and not is_over:
            left = until - time.monotonic()
            # Once more when it is over: on a busy machine this process may have been held up, and
            # what has come meanwhile came in time.
            is_over = left <= 0
            for key, _ in selector.select(max(left, 0)):
                ready = key.fileobj
                if isinstance(ready, socket.socket) and pending[ready]():
                    selector.unregister(ready)
                    del pending[ready]
