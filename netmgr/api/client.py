"""Client of the agent's read-only socket: one question, one JSON document.

The client sends a line `{"version": 1, "query": …}`; the agent answers with one object and
closes. The exporter and the CLI ask through this module, and neither needs more privilege
than the socket's file mode asks for. It imports nothing heavy, for the exporter's sake.
"""

from __future__ import annotations

import grp
import json
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from netmgr import errors
from netmgr.api.snapshot import VERSION, ControllerReport, Snapshot
from netmgr.printable import plain
from netmgr.receiving import received

DEFAULT_SOCKET = Path("/run/netmgr/ledger.sock")
PATIENCE_SECONDS = 5.0
# Whoever answers at a path that a user named may be no agent, and never end.
LONGEST_ANSWER = 64 << 20
MOST_SPENT = 1000
"""Spent quotas that a report names: the first."""


def read_snapshot(path: Path, *, timeout: float = PATIENCE_SECONDS) -> Snapshot:
    """The agent's whole state of accounting, as `netmgr/api/snapshot.py` describes it."""
    return cast(Snapshot, ask(path, "snapshot", timeout=timeout))


def ask_ready(path: Path) -> None:
    """Return if the agent answers; NotReady if its files were removed and cannot be made again."""
    if reason := ask(path, "health").get("files"):
        raise errors.NotReady(f"files: {reason}")


def ask_report(path: Path, *, timeout: float = PATIENCE_SECONDS) -> ControllerReport:
    """The quotas that are spent, and the problems of the node's network."""
    problems = ask(path, "problems", timeout=timeout)["problems"]
    report: ControllerReport = {"spent": [], "problems": problems}
    # An agent without limits refuses this.
    with suppress(errors.RequestError):
        report["spent"] = ask(path, "quotas", timeout=timeout)["spent"][:MOST_SPENT]
    return report


def ask_usage(path: Path, arguments: Mapping[str, str]) -> dict[str, Any]:
    """History by somebody's arguments, of which the agent refuses what is not `since` and so on."""
    since, until, by = (arguments.get(name, "") for name in ("since", "until", "by"))
    return ask(path, "usage", since=since, until=until, by=by)


def ask(
    path: Path, query: str, *, timeout: float = PATIENCE_SECONDS, **arguments: str
) -> dict[str, Any]:
    """Ask the agent at the socket `path` one question; `timeout` bounds the whole exchange.

    Raises:
        TryAgainLater: the agent is away, too slow, or went away in the middle of its answer;
            NoAgent: it has no socket there.
        SetupError: the socket may not be opened by this user, or the agent speaks another version.
        RequestError: the agent refused the question; the message is its own.
        QueryFailed: the question is right, and the agent could not answer it.
    """
    question = json.dumps({"version": VERSION, "query": query, **arguments}).encode() + b"\n"
    try:
        answer = _exchange(path, question, timeout)
    except PermissionError:
        message = f"{path}: this user may not read the agent's socket; {_way_in(path)}"
        raise errors.SetupError(message) from None
    except (FileNotFoundError, ConnectionRefusedError) as error:
        # A socket without a listener is of an agent that has ended, and may be back at once.
        kind = errors.NoAgent if isinstance(error, FileNotFoundError) else errors.TryAgainLater
        raise kind(
            f"{path}: no agent answers there; is 'netmgr agent' running on this node?"
        ) from None
    except TimeoutError:
        raise errors.TryAgainLater(
            f"{path}: the agent did not answer within {timeout:g} s"
        ) from None
    except OSError as error:
        raise errors.TryAgainLater(
            f"{path}: the agent did not answer: {error.strerror or error}"
        ) from None
    return _understood(path, answer)


def _way_in(path: Path) -> str:
    """What a user has to do who may not open the socket: its group is the node's reader_group."""
    try:
        number = path.stat().st_gid
    except OSError:  # a directory above it is closed, too
        return "run as root, or join the group that reader_group in node.yaml names"
    # Nobody is to join root's group.
    if number == 0:
        return (
            "run as root, or set reader_group in node.yaml to a group of this user and restart "
            "the agent"
        )
    try:
        name = grp.getgrgid(number).gr_name
    except KeyError:
        return f"run as root, or with the group {number}, its reader_group"
    return (
        f"run as root, or join its reader_group, {name}: usermod -aG {name} USER, then log in again"
    )


def _exchange(path: Path, question: bytes, timeout: float) -> bytearray:
    """Bytes of the answer; TimeoutError after so many seconds, however steadily it comes in."""
    deadline = time.monotonic() + timeout
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        connection.connect(str(path))
        connection.sendall(question)
        # The half-close also ends a question for an agent that reads to the end.
        connection.shutdown(socket.SHUT_WR)
        answer = bytearray()
        for part in received(connection, deadline):
            answer += part
            if len(answer) > LONGEST_ANSWER:
                reason = f"its answer is longer than {LONGEST_ANSWER} bytes"
                raise ConnectionAbortedError(None, reason)
    return answer


def _understood(path: Path, answer: bytearray) -> dict[str, Any]:
    try:
        document = json.loads(answer)
    # An agent stopped in the middle closes the connection like one that is done.
    except (ValueError, RecursionError):
        raise errors.TryAgainLater(
            f"{path}: the agent's answer is not whole; it was probably stopped meanwhile"
        ) from None
    if not isinstance(document, dict):
        raise errors.TryAgainLater(f"{path}: the agent's answer is no document")
    if "error" in document:
        kind = errors.QueryFailed if document.get("fault") else errors.RequestError
        raise kind(plain(str(document["error"])))
    if document.get("version") != VERSION:
        raise errors.SetupError(
            f"{path}: the agent answers in version {document.get('version')!r}, "
            f"this netmgr reads {VERSION}; install the same netmgr for both"
        )
    return document


def main() -> int:
    """Whether the agent answers: 0, or 1 and why not; for probes, which start it often."""
    try:
        ask(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_SOCKET, "health")
    except errors.NetmgrError as error:
        sys.stderr.write(f"{error.message}\n")
        return error.exit_code
    return errors.Exit.SUCCESS


if __name__ == "__main__":
    sys.exit(main())
