"""Network namespaces: enter one and leave it reliably, and make one."""

from __future__ import annotations

import ctypes
import fcntl
import glob
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from errno import EACCES, ENXIO, EPERM
from pathlib import Path

from netmgr.descriptors import closing
from netmgr.errors import Exit, KernelError
from netmgr.kernel import proc

CLONE_NEWNET = 0x40000000
_NS_GET_NSTYPE = 0xB703  # ioctl_ns(2)
_MOUNTS = Path("/proc/thread-self/mountinfo")

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        raise KernelError(name, ctypes.get_errno())


@contextmanager
def entered(descriptor: int) -> Iterator[None]:
    """Move the calling thread into the namespace open at `descriptor` for the block."""
    with closing(_open_own()) as home:
        _call("setns", descriptor, CLONE_NEWNET)
        try:
            yield
        finally:
            if _libc.setns(home, CLONE_NEWNET) != 0:
                # An exception could be caught, and the thread would wire the next pod inside this
                # namespace. A restarted agent resumes where this one was.
                os._exit(Exit.FAULT)


def open_namespace(path: str) -> int:
    """Open a namespace file; KernelError if there is none, or it is no network namespace."""
    operation = f"open network namespace {path}"
    try:
        # Non-blocking, since what is at the path may be a pipe whose other end never comes.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        # Anybody may open a namespace that he can find. A file that refuses is another's: of mode
        # 0, as `ip netns` makes it, when it is not mounted over, or a socket.
        is_there = os.path.exists(path)  # noqa: PTH110  Path.exists raises where it may not look
        number = 0 if is_there and error.errno in (EACCES, EPERM, ENXIO) else error.errno or 0
        raise KernelError(operation, number, "it is no network namespace") from None
    try:
        kind = fcntl.ioctl(descriptor, _NS_GET_NSTYPE)
    except OSError:
        kind = 0
    if kind != CLONE_NEWNET:
        os.close(descriptor)
        raise KernelError(operation, details="it is no network namespace")
    return descriptor


def is_one(path: str) -> bool:
    try:
        os.close(open_namespace(path))
    except KernelError:
        return False
    return True


def places() -> Iterator[str]:
    """Paths of all namespaces that a mount or a process keeps, some more than once."""
    for mount in proc.lines(_MOUNTS):
        fields = proc.fields(mount)
        # proc_pid_mountinfo(5): root, place, options, optional fields, a dash, the file system.
        if fields[fields.index("-") + 1] == "nsfs" and fields[3].startswith("net:"):
            yield fields[4]
    yield from glob.iglob("/proc/[0-9]*/ns/net")  # noqa: PTH207  paths as text


def unnamed() -> int:
    """Open a new network namespace; it goes with the last descriptor, and whatever is in it."""

    def unshare_and_open() -> int:
        _call("unshare", CLONE_NEWNET)
        return _open_own()

    # A thread of its own, which ends: the caller never leaves its namespace.
    with ThreadPoolExecutor(1) as worker:
        return worker.submit(unshare_and_open).result()


def _open_own() -> int:
    # Not /proc/self, which is the main thread's: namespaces belong to threads (setns(2)).
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
