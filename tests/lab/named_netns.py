"""Network namespaces that a bind mount keeps alive, as runtimes and `ip netns` make them."""

from __future__ import annotations

import ctypes
import os
import threading
from contextlib import suppress
from pathlib import Path

from netmgr.errors import KernelError

CLONE_NEWNET = 0x40000000
MNT_DETACH = 2
MS_BIND = 4096

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        raise KernelError(name, ctypes.get_errno())


def create(path: Path) -> None:
    """Make a network namespace and keep it alive by a bind mount at `path`.

    A thread of its own unshares and ends, so the caller never leaves its namespace. A caller
    that is interrupted finds the namespace pinned or not at all: nothing is pinned later.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o444, exist_ok=False)
    failures: list[KernelError] = []
    working, given_up = threading.Lock(), threading.Event()

    def unshare_and_pin() -> None:
        with working:
            if given_up.is_set():
                return
            try:
                _call("unshare", CLONE_NEWNET)
                source = f"/proc/self/task/{threading.get_native_id()}/ns/net"
                _call("mount", source.encode(), os.fsencode(path), b"none", MS_BIND, None)
            except KernelError as error:
                failures.append(error)

    worker = threading.Thread(target=unshare_and_pin, name="netns-create")
    try:
        # A signal's exception ends the wait, not the worker. Under the lock it has either pinned
        # the namespace by then, or it never will.
        worker.start()
        worker.join()
    except BaseException:
        with working:
            given_up.set()
        raise
    if failures:
        path.unlink()
        raise failures[0]


def delete(path: Path) -> None:
    """Unpin the namespace at `path`, if it is there. Processes inside keep it until they end."""
    if not path.exists():
        return
    # Nothing is mounted there if the process was killed between touching the file and mounting.
    with suppress(KernelError):
        _call("umount2", os.fsencode(path), MNT_DETACH)
    path.unlink(missing_ok=True)
