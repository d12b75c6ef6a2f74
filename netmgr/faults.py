"""A thread that dies of a fault of our own ends its process, so that it is started anew."""

from __future__ import annotations

import logging
import os
import threading

from netmgr.errors import Exit

log = logging.getLogger(__name__)


def end_with_any_thread() -> None:
    """From now on, end this process when one of its threads dies of an exception."""
    threading.excepthook = _end


def _end(ended: threading.ExceptHookArgs) -> None:
    name = ended.thread.name if ended.thread else "unknown"
    log.critical("thread-died action=end thread=%s", name, exc_info=ended.exc_value)
    # sys.exit() would end this thread alone, and an orderly end waits for threads that may hang.
    os._exit(Exit.FAULT)
