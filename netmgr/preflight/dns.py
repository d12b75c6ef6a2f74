"""Asks nameservers for a name's addresses (RFC 1035): whether they answer, and know any.

The standard library's resolver asks them in turn, does not say which of them are silent, and has no
time limit of its own.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import ExitStack
from enum import StrEnum
from functools import partial
from pathlib import Path

from netmgr.preflight import waiting

RESOLV_CONF = Path("/etc/resolv.conf")

PORT = 53
A, AAAA = 1, 28
_IN = 1
_HEADER = struct.Struct("!HHHHHH")
_IS_ANSWER, _RECURSE = 0x8000, 0x0100
_CODE = 0x000F
_NO_ERROR, _NO_SUCH_NAME = 0, 3
_LARGEST = 65_535
# As many as the C library reads (resolv.conf(5), MAXNS).
_MOST_NAMESERVERS = 3
# Datagrams get lost; both tries share the time.
_TRIES = 2


class Knowledge(StrEnum):
    """What a nameserver says, the most favourable first."""

    ADDRESS = "knows an address"
    NO_ADDRESS = "knows no address"
    NO_NAME = "says that there is no such name"
    FAILURE = "answers with an error"
    SILENCE = "does not answer"


def nameservers(text: str) -> list[str]:
    """The addresses in a resolv.conf, as the C library reads them: the first three."""
    lines = map(str.split, text.splitlines())
    named = [words[1] for words in lines if len(words) > 1 and words[0] == "nameserver"]
    return named[:_MOST_NAMESERVERS]


def query(name: str, kind: int, identifier: int) -> bytes:
    """A recursive query for one kind of address."""
    labels = [label.encode("ascii") for label in name.rstrip(".").split(".")]
    encoded = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    header = _HEADER.pack(identifier, _RECURSE, 1, 0, 0, 0)
    return header + encoded + struct.pack("!HH", kind, _IN)


def knowledge(answer: bytes, question: bytes) -> Knowledge | None:
    """What a datagram says; None if it does not answer this question."""
    if len(answer) < len(question) or answer[:2] != question[:2]:
        return None
    _, flags, _, records, _, _ = _HEADER.unpack_from(answer)
    # The question comes back as it was sent; some servers change the case of its letters.
    echoed = answer[_HEADER.size : len(question)]
    if not flags & _IS_ANSWER or echoed.lower() != question[_HEADER.size :].lower():
        return None
    code = flags & _CODE
    if code == _NO_SUCH_NAME:
        return Knowledge.NO_NAME
    if code != _NO_ERROR:
        return Knowledge.FAILURE
    # What the records are is not looked at: that there are some is enough.
    return Knowledge.ADDRESS if records else Knowledge.NO_ADDRESS


def ask(servers: Iterable[str], name: str, seconds: float) -> dict[str, Knowledge]:
    """What each of these nameservers knows of a name; one address of either family is enough."""
    answers_by_server: dict[str, list[Knowledge]] = {server: [] for server in servers}
    for _ in range(_TRIES):
        silent = [server for server, answers in answers_by_server.items() if not answers]
        _ask_once(silent, name, seconds / _TRIES, answers_by_server)
    return {
        server: min(answers, key=list(Knowledge).index, default=Knowledge.SILENCE)
        for server, answers in answers_by_server.items()
    }


def _ask_once(
    servers: Iterable[str], name: str, seconds: float, answers_by_server: dict[str, list[Knowledge]]
) -> None:
    with ExitStack() as stack:
        pending: dict[socket.socket, waiting.Handler] = {}
        for server in servers:
            for kind in (A, AAAA):
                question = query(name, kind, int.from_bytes(os.urandom(2), "big"))
                opened = _send(server, question)
                if opened is not None:
                    stack.enter_context(opened)
                    pending[opened] = partial(_note, opened, question, answers_by_server[server])
        waiting.serve(pending, selectors.EVENT_READ, time.monotonic() + seconds)


def _send(server: str, question: bytes) -> socket.socket | None:
    """A socket with the question sent; None if it cannot be."""
    opened = None
    try:
        # It also reads a link-local address with its link (fe80::53%eth0).
        family, _, _, _, address = socket.getaddrinfo(
            server, PORT, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST
        )[0]
        opened = socket.socket(family, socket.SOCK_DGRAM)
        opened.settimeout(0)
        # Connected, so that only this nameserver can answer.
        opened.connect(address)
        opened.send(question)
    except OSError:
        if opened is not None:
            opened.close()
        return None
    return opened


def _note(opened: socket.socket, question: bytes, answers: list[Knowledge]) -> bool:
    try:
        answer = knowledge(opened.recv(_LARGEST), question)
    except OSError:  # nobody listens there
        return True
    if answer is not None:
        answers.append(answer)
    return answer is not None
