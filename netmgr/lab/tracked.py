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
    """Those of which only one direction was seen: protocol, state, and the addresses and ports of both directions."""
    found = (line for line in connections(namespace) if any(mark in line for mark in _HALF))
    return [_without_what_changes(line) for line in found]


def _without_what_changes(line: str) -> str:
    """A line without its timeout, and without what follows the ports."""
    before, _, after = line.partition(" src=")
    words = [word for word in before.split()[2:] if not word.isdigit()]
    return f"{' '.join(words)} src={after.partition(' mark=')[0]}"
