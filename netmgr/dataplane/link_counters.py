"""What the links of this network namespace have carried: the kernel's own figures (rtnl_link_stats64)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from netmgr.errors import KernelError

PROC = Path("/proc/self/net/dev")
"""One line for each link with the sums that ip-link(8) shows; one read for all links (proc(5), /proc/net/dev)."""

_HEADLINES = 2
_FIELDS = 16
_RECEIVED, _SENT = 0, 8


@dataclass(frozen=True, slots=True)
class Carried:
    """Bytes (Ethernet headers included) and packets of a link since it exists, seen from this namespace.

    A segment-offloaded packet counts once, with one header, as it crosses a veth pair whole.
    """

    received: int
    received_packets: int
    sent: int
    sent_packets: int


def read(path: Path = PROC) -> dict[str, Carried]:
    """Every link's figures, by name.

    Raises:
        KernelError: they cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError as error:
        raise KernelError(f"read {path}", error.errno or 0) from error
    return dict(_carried(line) for line in lines[_HEADLINES:])


def _carried(line: str) -> tuple[str, Carried]:
    name, _, figures = line.rpartition(":")
    values = [int(value) for value in figures.split()]
    if len(values) < _FIELDS:
        raise KernelError(f"read {PROC}", details=f"a line has {len(values)} figures: {line!r}")
    return name.strip(), Carried(*values[_RECEIVED : _RECEIVED + 2], *values[_SENT : _SENT + 2])
