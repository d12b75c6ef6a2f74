"""Tries what whoever takes over one of netmgr's processes would try: `python attempts.py [NAME…]`.

Prints a line for each: its name, and the error that it met or `allowed`. A process of its own, run
in the place of the one that would be taken over.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import sys
from collections.abc import Callable, Collection
from pathlib import Path

NEW_USER, NEW_MOUNTS = 0x10000000, 0x00020000
BIND = 4096

_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> None:
    """Make a system call, or a few, by the C library's function."""
    if getattr(_libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)


def write(path: str) -> None:
    """Open a file to write it; make it, if it is not there."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT))


CALLS: dict[str, Callable[[], object]] = {
    "packet-socket": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close(),
    "vsock": lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close(),
    "new-users": lambda: call("unshare", NEW_USER),
    "new-mounts": lambda: call("unshare", NEW_MOUNTS),
    "others-mounts": lambda: call("setns", os.open("/proc/1/ns/mnt", os.O_RDONLY), NEW_MOUNTS),
    "mount": lambda: call("mount", b"/usr", b"/mnt", None, BIND, None),
    "chroot": lambda: os.chroot("/usr"),
    "ptrace": lambda: call("ptrace", 0, 0, None, None),
    "module": lambda: call("syscall", 175 if os.uname().machine == "x86_64" else 105, b"", 0, b""),
    "clock": lambda: call("clock_settime", 0, b"\0" * 16),
}

FILES: dict[str, Callable[[], object]] = {
    "/usr": lambda: write("/usr/local/bin/planted"),
    "/opt": lambda: write("/opt/planted"),
    "/etc": lambda: write("/etc/planted"),
    "kernel": lambda: write("/proc/sys/kernel/core_pattern"),
    "cgroups": lambda: Path("/sys/fs/cgroup/planted").mkdir(),
    "home": lambda: list(Path("/root").iterdir()),
    "device": lambda: write("/dev/kmsg"),
}

ATTEMPTS = {**CALLS, **FILES}

REFUSALS = {"EPERM", "EACCES", "EROFS", "ENOENT", "EAFNOSUPPORT"}


def main() -> None:
    """Try those that are named, or all."""
    for name in sys.argv[1:] or ATTEMPTS:
        try:
            ATTEMPTS[name]()
        except OSError as error:
            found = errno.errorcode[error.errno or 0]
        else:
            found = "allowed"
        sys.stdout.write(f"{name} {found}\n")


def not_refused(printed: str, names: Collection[str] = tuple(ATTEMPTS)) -> dict[str, str]:
    """What happened to those of these attempts that met no refusal."""
    found = dict(line.split() for line in printed.splitlines())
    return {name: found[name] for name in names if found[name] not in REFUSALS}


if __name__ == "__main__":
    main()
