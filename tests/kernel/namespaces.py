"""Running programs in the network namespaces of a world."""

from __future__ import annotations

from pathlib import Path

from netmgr import programs


def inside(namespace: Path, *command: str) -> str:
    """What a program prints there; it must succeed."""
    done = programs.run(["nsenter", f"--net={namespace}", *command])
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()
