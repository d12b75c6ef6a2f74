"""Finds the agent's read-only socket, and asks through it, for every command that has --socket.

The socket is named by --socket, by NETMGR_SOCKET, or by `run_dir` of the node document (that of
NETMGR_CONFIG, where it is set) if this user can read it; else it is the default.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from netmgr.api import client
from netmgr.api.client import DEFAULT_SOCKET, PATIENCE_SECONDS
from netmgr.errors import SetupError, TryAgainLater
from netmgr.printable import plain

NODE_DOCUMENT = Path("/etc/netmgr/node.yaml")
CONFIG_VARIABLE, VARIABLE = "NETMGR_CONFIG", "NETMGR_SOCKET"


class AgentSocket(NamedTuple):
    """A socket's path, and why it is this one."""

    path: Path
    why: str


def find(given: Path | None) -> AgentSocket:
    if given is not None:
        return AgentSocket(given, f"named by --socket or {VARIABLE}")
    other = f"; --socket or {VARIABLE} names another"
    path = Path(os.environ.get(CONFIG_VARIABLE) or NODE_DOCUMENT)
    try:
        run_dir = _run_dir(path)
    except OSError as error:
        why = f"the default, since {path} cannot be read ({error.strerror}){other}"
        return AgentSocket(DEFAULT_SOCKET, why)
    if run_dir is None:
        return AgentSocket(DEFAULT_SOCKET, f"the default, since {path} names no run_dir{other}")
    return AgentSocket(run_dir / DEFAULT_SOCKET.name, f"in the run_dir of {path}{other}")


def _run_dir(path: Path) -> Path | None:
    import yaml

    from netmgr.documents import yaml_loader

    # Not validated: an agent goes on with the document that it read before an edit broke it.
    try:
        content = yaml_loader.load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError):
        return None
    named = content.get("run_dir") if isinstance(content, dict) else None
    return Path(named) if isinstance(named, str) and named.startswith("/") else None


def ask(
    socket: Path | None, query: str, *, timeout: float = PATIENCE_SECONDS, **arguments: str
) -> dict[str, Any]:
    """Ask the agent at the socket that is meant.

    Raises: as `client.ask`; the details say why it is this socket, and how to name another.
    """
    chosen = find(socket)
    try:
        answer = client.ask(chosen.path, query, timeout=timeout, **arguments)
    except (TryAgainLater, SetupError) as error:
        error.details = f"{chosen.path} is {chosen.why}"
        raise
    return {name: _plain(value) for name, value in answer.items()}


def _plain(value: Any) -> Any:  # noqa: ANN401  whatever JSON can say
    """Without control characters, which terminals obey: whoever answers may be no agent."""
    if isinstance(value, str):
        # A line break is no printable character either; a message that has some stays readable.
        return plain(value.replace("\n", " "))
    if isinstance(value, list):
        return [_plain(element) for element in value]
    if isinstance(value, dict):
        return {plain(name): _plain(member) for name, member in value.items()}
    return value
