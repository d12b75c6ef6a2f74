"""A lab's processes: recognised by their namespace, ended through handles that are not reused.

The builder of a lab may be killed before it can write down what it started. So nothing is written
down: a process belongs to a lab if it runs in one of the lab's namespaces, as no other does.
Signals go through pidfds (pidfd_open(2)), so that a process number that was given to another
process in the meantime is never hit.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from netmgr.errors import KernelError
from netmgr.file_version import FileIdentity, versions
from tests.waiting import PATIENCE


def running_in(namespaces: Iterable[Path]) -> list[int]:
    """Process numbers of everything that runs in one of the namespaces pinned at these paths."""
    wanted = {_identity(path) for path in namespaces} - {None}
    numbers = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [number for number in numbers if number != os.getpid() and _namespace(number) in wanted]


def end(namespaces: Iterable[Path], grace: float = 5, patience: float = PATIENCE) -> None:
    """End everything that runs in these namespaces: politely, after `grace` seconds by force."""
    pins = list(namespaces)
    # Politely first: an agent writes its ledger and removes its sockets at SIGTERM. Nothing escapes
    # SIGKILL, but a process within a system call ends only after it: a transaction of nftables, or
    # a link that is removed, waits for the whole machine's RCU and for others' network locks.
    for which, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, patience)):
        deadline = time.monotonic() + seconds
        # Again and again: a process may start another between the scan and the signal.
        while (found := running_in(pins)) and time.monotonic() < deadline:
            _signal(found, which, pins, deadline)
        if not found:
            return
    raise KernelError(f"end process {found[0]} of the lab", details="it outlived SIGKILL")


def stop(
    number: int, which: signal.Signals, namespaces: Iterable[Path], patience: float = PATIENCE
) -> None:
    """Send `which` to one process of these namespaces and wait for its end."""
    pins = list(namespaces)
    _signal([number], which, pins, time.monotonic() + patience)
    if number in running_in(pins):
        raise KernelError(f"end process {number} of the lab", details=f"it outlived {which.name}")


def command_line(number: int) -> list[str]:
    """The arguments a process was started with; empty when it is gone."""
    try:
        return (
            Path(f"/proc/{number}/cmdline")
            .read_text(encoding="utf-8", errors="replace")
            .split("\0")[:-1]
        )
    except OSError:
        return []


def _identity(path: Path) -> FileIdentity | None:
    present = versions([path])
    return present[0].identity if present else None


def _namespace(number: int) -> FileIdentity | None:
    return _identity(Path(f"/proc/{number}/ns/net"))


def _signal(numbers: list[int], which: signal.Signals, pins: list[Path], deadline: float) -> None:
    """Send one signal to each and wait until those are gone or the deadline has passed."""
    handles: dict[int, int] = {}
    signalled = set()
    for number in numbers:
        with suppress(OSError):
            handles[number] = os.pidfd_open(number)
    try:
        # Looked at again: between the scan and the handle, a number may have changed hands.
        for number in handles.keys() & running_in(pins):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handles[number], which)
                signalled.add(handles[number])
        # Not for one that has left the namespaces: it was told nothing, and lives on.
        _wait_for(signalled, deadline)
    finally:
        for handle in handles.values():
            os.close(handle)


def _wait_for(handles: set[int], deadline: float) -> None:
    poll = select.poll()
    for handle in handles:
        poll.register(handle, select.POLLIN)
    while handles and (left := deadline - time.monotonic()) > 0:
        for handle, _ in poll.poll(left * 1000):
            poll.unregister(handle)
            handles.discard(handle)
