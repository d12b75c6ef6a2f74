"""TCP connections, from the source that is asked for."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from netmgr.documents.preflight import Endpoint
from netmgr.prefixes import Address
from netmgr.preflight import waiting


class Attempt(NamedTuple):
    """A connection to be tried; without a source, the kernel chooses one."""

    target: Endpoint
    source: Address | None = None


class TcpEnding(NamedTuple):
    is_accepted: bool
    """Whether the other end took the connection."""
    is_answered: bool
    """Whether it answered at all; a refusal is an answer, too."""
    fault: str = ""
    """Why it was not accepted."""


_SILENT = TcpEnding(is_accepted=False, is_answered=False, fault="no answer")
_UNDER_WAY = (0, errno.EINPROGRESS)


def connect(attempts: Iterable[Attempt], seconds: float) -> list[TcpEnding]:
    """Try all connections at once, and close them again."""
    asked = list(attempts)
    endings = [_SILENT] * len(asked)
    with ExitStack() as stack:
        pending: dict[socket.socket, waiting.Handler] = {}
        for number, attempt in enumerate(asked):
            family = socket.AddressFamily(attempt.target.address.family.af)
            opened = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            opened.settimeout(0)
            code = _begin(opened, attempt)
            if code in _UNDER_WAY:
                pending[opened] = partial(_note, opened, endings, number)
            else:
                endings[number] = _ending(code)
        waiting.serve(pending, selectors.EVENT_WRITE, time.monotonic() + seconds)
    return endings


def _begin(opened: socket.socket, attempt: Attempt) -> int:
    try:
        if attempt.source is not None:
            opened.bind((str(attempt.source), 0))
    except OSError as error:
        return error.errno or errno.EINVAL
    return opened.connect_ex((str(attempt.target.address), attempt.target.port))


def _note(opened: socket.socket, endings: list[TcpEnding], number: int) -> bool:
    endings[number] = _ending(opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    return True


def _ending(code: int) -> TcpEnding:
    if code == 0:
        return TcpEnding(is_accepted=True, is_answered=True)
    is_answered = code == errno.ECONNREFUSED
    return TcpEnding(is_accepted=False, is_answered=is_answered, fault=os.strerror(code).lower())
