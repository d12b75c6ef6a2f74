"""Runs the exporter of a lab's node as nobody: `python -m tests.lab.unprivileged OPTION…`.

The privileges are dropped here, after the imports, rather than before the interpreter starts:
the user nobody may be unable to read the repository, in root's home for instance.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401  socket.getaddrinfo would import it, when it is too late
import os
import sys

from exporter.__main__ import main

NOBODY = 65534
"""User and group without any privilege: nobody and nogroup on every distribution."""


def drop_privileges() -> None:
    """Become nobody, for good: no saved ids, no supplementary groups."""
    # In this order: without root's user id the groups can no longer be changed.
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


if __name__ == "__main__":
    drop_privileges()
    sys.exit(main())
