"""What goes wrong with a lab."""

from __future__ import annotations

from netmgr.errors import NetmgrError


class LabError(NetmgrError):
    """The lab could not be built or used, or what ran in it failed; the message says what to do."""
