"""Client of the agent's read-only socket: one question, one JSON document.

The client sends a line `{"version": 1, "query": …}`; the agent answers with one object and
closes. The exporter and the CLI ask through this module, and neither needs more privilege
than the socket's file mode asks for. It imports nothing heavy, for the exporter's sake.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from netmgr.errors import NetmgrError, NotReady, RequestError, SetupError, TryAgainLater
from netmgr.snapshot import VERSION, Snapshot

DEFAULT_SOCKET = Path("/run/netmgr/ledger.sock")
PATIENCE_SECONDS = 5.0
LONGEST_ANSWER = 64 << 20
_CHUNK = 1 << 16


def read_snapshot(path: Path, *, timeout: float = PATIENCE_SECONDS) -> Snapshot:
    """The agent's whole state of accounting, as `netmgr/snapshot.py` describes it.

    Raises: as `ask`.
    """
    return cast(Snapshot, ask(path, "snapshot", timeout=timeout))


def ask_health(path: Path, *, timeout: float = PATIENCE_SECONDS) -> None:
    """Return if the agent answers, and so does not hang; this costs it no reading of counters.

    Raises: as `ask`, but for an agent that answers and does not know the question, which is of an older release.
    """
    with suppress(RequestError):
        ask(path, "health", timeout=timeout)


def ask_ready(path: Path, *, timeout: float = PATIENCE_SECONDS) -> None:
    """As `ask_health`, for who shall know more: also whether the agent's files are where they belong.

    Raises: as `ask_health`, and NotReady if files that were removed cannot be made again.
    """
    with suppress(RequestError):
        if reason := ask(path, "health", timeout=timeout).get("files"):
            raise NotReady(f"files: {reason}")


def ask(path: Path, query: str, *, timeout: float = PATIENCE_SECONDS, **arguments: str) -> dict[str, Any]:
    """Put one question to the agent behind the socket at `path`; `timeout` bounds the whole exchange.

    Raises:
        TryAgainLater: the agent is away, too slow, or went away in the middle of its answer.
        SetupError: the socket may not be opened by this user, or the agent speaks another version.
        RequestError: the agent refused the question; the message is its own.
    """
    question = json.dumps({"version": VERSION, "query": query, **arguments}).encode() + b"\n"
    try:
        answer = _exchange(path, question, time.monotonic() + timeout)
    except PermissionError:
        raise SetupError(
            f"{path}: this user may not read the agent's socket; run as root or join the group named by "
            f"reader_group in node.yaml"
        ) from None
    except (FileNotFoundError, ConnectionRefusedError):
        raise TryAgainLater(f"{path}: no agent answers there; is 'netmgr agent' running on this node?") from None
    except TimeoutError:
        raise TryAgainLater(f"{path}: the agent did not answer within {timeout:g} s") from None
    except OSError as error:
        raise TryAgainLater(f"{path}: the agent did not answer: {error.strerror or error}") from None
    return _understood(path, answer)


def _exchange(path: Path, question: bytes, deadline: float) -> bytearray:
    """Bytes of the answer; TimeoutError past `deadline`, however steadily the answer trickles in."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_left(deadline))
        connection.connect(str(path))
        connection.sendall(question)
        connection.shutdown(socket.SHUT_WR)
        answer = bytearray()
        while True:
            connection.settimeout(_left(deadline))
            chunk = connection.recv(_CHUNK)
            if not chunk:
                return answer
            answer += chunk
            if len(answer) > LONGEST_ANSWER:
                raise ConnectionAbortedError(None, f"its answer is longer than {LONGEST_ANSWER} bytes")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _understood(path: Path, answer: bytearray) -> dict[str, Any]:
    try:
        document = json.loads(answer)
    except (ValueError, RecursionError):
        raise TryAgainLater(f"{path}: the agent's answer is not whole; it was probably stopped meanwhile") from None
    if not isinstance(document, dict):
        raise TryAgainLater(f"{path}: the agent's answer is no document")
    if "error" in document:
        raise RequestError(str(document["error"]))
    if document.get("version") != VERSION:
        raise SetupError(
            f"{path}: the agent answers in version {document.get('version')!r}, this netmgr reads {VERSION}; "
            f"install the same netmgr for both"
        )
    return document


def main() -> int:
    """Whether the agent answers: 0, or 1 and why not; for probes, which start it often."""
    try:
        ask_health(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_SOCKET)
    except NetmgrError as error:
        sys.stderr.write(f"{error.message}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
