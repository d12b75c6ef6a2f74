"""Installs the plugin as a container of the agent's pod.

A network configuration announces the plugin: a runtime reports its network as ready, and pods
start. So it is written once the agent serves, and the next boot removes it before a runtime starts.
The agent does not write it: whoever can write there has root run any plugin.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from cni.wire import encode_request

_BOOT_RULES = Path("/etc/tmpfiles.d")
_LOOK_SECONDS = 0.2
_ANSWER_SECONDS = 10.0
_QUESTION = encode_request({"CNI_COMMAND": "VERSION"}, b'{"cniVersion": "1.0.0"}')
_STAY = "import signal; signal.sigwait({signal.SIGTERM})"


def boot_rules() -> Path | None:
    """Where rules of a node's own for systemd-tmpfiles are, which acts before a runtime starts."""
    # None on a read-only system such as Talos, where only network configurations can change.
    nearest = _BOOT_RULES if _BOOT_RULES.exists() else _BOOT_RULES.parent
    return _BOOT_RULES if os.access(nearest, os.W_OK) else None


def await_agent(path: Path) -> None:
    """Return once an agent answers requests at this socket; SIGTERM ends the process meanwhile."""
    # The first process of a container has no default action.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    while not _answers(path):
        time.sleep(_LOOK_SECONDS)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as asking, suppress(OSError):
        asking.settimeout(_ANSWER_SECONDS)
        asking.connect(str(path))
        asking.sendall(_QUESTION)
        # A request ends with the half-close.
        asking.shutdown(socket.SHUT_WR)
        return bool(asking.recv(1))
    return False


def stay(root: int) -> NoReturn:
    """Wait for SIGTERM, in the root directory that `root` is open for."""
    os.fchdir(root)
    os.chroot(".")
    # Before the exec, so that none is lost: the mask is kept across it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    # A container that ends is started again, so this one stays, and takes less memory without what
    # the installation has loaded.
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", _STAY])  # noqa: S606  in place of this process
