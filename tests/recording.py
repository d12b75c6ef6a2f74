"""A pytest plugin that records which system calls netmgr's processes make: `.ci/system-calls`.

Every agent and exporter that a test starts runs under strace, and so does what an
operator or a kubelet runs beside an agent in its container. Each leaves a file in the folder that
NETMGR_RECORDS names: PROCESS-NUMBER, with the name of each call after two lines of heading.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

PROCESSES = {
    ("netmgr", "agent"): "agent",
    ("netmgr", "bundle"): "agent",
    ("netmgr", "doctor"): "agent",
    ("netmgr", "nat"): "agent",
    ("netmgr", "node"): "agent",
    ("netmgr", "usage"): "agent",
    ("netmgr.api.client",): "agent",
    ("netmgr", "exporter"): "exporter",
    ("exporter",): "exporter",
}
"""By the words behind `python -m`: in whose container a process runs."""

_numbers = count(1)
_start = subprocess.Popen.__init__


def _recorded(command: Sequence[Any]) -> Sequence[Any]:
    """The command with strace before Python, if it starts one of these processes here."""
    words = [*map(str, command)]
    if "podman" in words or sys.executable not in words:
        return command
    at = words.index(sys.executable)
    module = words[at + 1 : at + 2] == ["-m"] and words[at + 2 :]
    for named, process in PROCESSES.items():
        if module and tuple(module[: len(named)]) == named:
            record = f"{os.environ['NETMGR_RECORDS']}/{process}-{os.getpid()}-{next(_numbers)}"
            # -D: strace is the child, so that signals and waits reach the process itself.
            strace = ("strace", "-D", "-f", "-qq", "-c", "-U", "name", "-o", record)
            return [*command[:at], *strace, *command[at:]]
    return command


def _start_recorded(self: subprocess.Popen[Any], args: Any, *more: Any, **options: Any) -> None:
    if isinstance(args, list | tuple):
        args = _recorded(args)
    _start(self, args, *more, **options)


def pytest_configure() -> None:
    Path(os.environ["NETMGR_RECORDS"]).mkdir(parents=True, exist_ok=True)
    subprocess.Popen.__init__ = _start_recorded  # type: ignore[method-assign]  that is what a recorder is for
