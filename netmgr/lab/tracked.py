"""What a machine's connection tracking holds of connections that it saw one half of.

Such an entry means that answers take another way than what they answer, past this machine: a
translation would not be undone, and the entries pile up.
"""

from __future__ import annotations

from pathlib import Path

from netmgr.lab import wiring

_TABLE = Path("/proc/thread-self/net/nf_conntrack")
_HALF = ("[UNREPLIED]", " SYN_SENT ", " SYN_RECV ")


def connections(namespace: Path) -> list[str]:
    """Every tracked connection of the namespace pinned at `namespace`, a line each."""
    with wiring.inside(namespace):
        return _TABLE.read_text(encoding="ascii").splitlines() if _TABLE.exists() else []


def half_open(namespace: Path) -> list[str]:
    """Those of which only one direction was seen."""
    return [line for line in connections(namespace) if any(mark in line for mark in _HALF)]
