"""What was sent beside what was counted, pod by pod."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from netmgr.lab.capture import Tally
from netmgr.lab.counted import Counts
from netmgr.lab.traffic import Column, Sent
from netmgr.model import Traffic


@dataclass(frozen=True, slots=True)
class Row:
    """One pod and direction."""

    column: Column
    sent: Tally
    counted: Tally

    @property
    def agrees(self) -> bool:
        """Whether every byte and packet sent was counted, and nothing else."""
        return self.sent == self.counted


def compare(sent: Sent, counted: Counts) -> list[Row]:
    """One row for each pod and direction that either side knows, in a reader's order."""
    columns = sent.internet.keys() | counted.keys()
    return [
        Row(column, sent.internet.get(column, Tally()), counted.get(column, Tally()))
        for column in sorted(columns, key=_reading_order)
    ]


def _reading_order(column: Column) -> tuple[str, int, str, str]:
    """pod-2 before pod-10; out before in."""
    return column.namespace, len(column.pod), column.pod, "" if column.traffic is Traffic.INTERNET_OUT else "in"


def table(rows: list[Row], sent: Sent) -> Table:
    """For people: sent and counted side by side, two lines a pod."""
    columns = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
    for name in ("pod", "", "sent", "counted", "packets", "counted", "internal", ""):
        is_number = name not in {"pod", ""}
        columns.add_column(name, justify="right" if is_number else "left")
    for row in rows:
        is_first = row.column.traffic is Traffic.INTERNET_OUT
        style = "" if row.agrees else "bold red"
        columns.add_row(
            row.column.pod if is_first else "",
            Text("out" if is_first else "in", style="dim"),
            f"{row.sent.bytes:,}",
            Text(f"{row.counted.bytes:,}", style=style),
            f"{row.sent.packets:,}",
            Text(f"{row.counted.packets:,}", style=style),
            f"{sent.internal.get(row.column.pod, 0):,}" if is_first else "",
            Text("✓", style="green") if row.agrees else Text("differs", style=style),
        )
    return columns


def verdict(rows: list[Row], sent: Sent) -> tuple[bool, str]:
    """Whether all agree, and a sentence or two that say so."""
    wrong = [row for row in rows if not row.agrees]
    if not rows:
        return False, "Nothing was compared: no pod runs in this lab."
    if wrong:
        names = ", ".join(sorted({row.column.pod for row in wrong}))
        return False, f"Sent and counted differ for {names}."
    total = sum(row.sent.bytes for row in rows)
    pods = len({row.column.pod for row in rows})
    inside = sum(sent.internal.values())
    return True, (
        f"{total:,} bytes to and from the internet by {pods} pods: every byte counted.\n"
        f"{inside:,} bytes among pods and nodes: none of them counted."
    )


def document(rows: list[Row], sent: Sent) -> dict[str, Any]:
    """For programs: the same as one JSON object."""
    return {
        "agrees": verdict(rows, sent)[0],
        "pods": [
            {
                "namespace": row.column.namespace,
                "pod": row.column.pod,
                "traffic": row.column.traffic.value,
                "sent": {"bytes": row.sent.bytes, "packets": row.sent.packets},
                "counted": {"bytes": row.counted.bytes, "packets": row.counted.packets},
                "agrees": row.agrees,
            }
            for row in rows
        ],
        "internal_bytes": sent.internal,
    }
