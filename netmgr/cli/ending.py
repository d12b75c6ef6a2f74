"""How a command ends that could not do what it was asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from netmgr.errors import NetmgrError, of_system


@contextmanager
def told_errors() -> Iterator[None]:
    """An error of a user or a machine becomes one clear message, no traceback, and an exit code."""
    try:
        yield
    except (NetmgrError, OSError) as fault:
        error = of_system(fault) if isinstance(fault, OSError) else fault
        for line in str(error).splitlines():
            print(f"netmgr: {line}", file=sys.stderr)  # noqa: T201  for the user
        if error.details and error.details not in error.message:
            print(f"  {error.details}", file=sys.stderr)  # noqa: T201  as above
        if error.retryable:
            print("  This may pass; try again.", file=sys.stderr)  # noqa: T201  as above
        sys.exit(error.exit_code)
