"""What goes wrong with a lab."""

from __future__ import annotations

import os
import sys

from netmgr.errors import NetmgrError

PROGRAM = f"{os.path.relpath(sys.executable)} -m tests.lab"
"""What to type in this directory."""


class LabError(NetmgrError):
    """The lab could not be built or used, or what ran in it failed; the message says what to do."""
