"""The matrix for people: what was expected beside what happened."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from netmgr.lab.matrix import Target
from netmgr.lab.verify import Row, Verification

_EVERYTHING = (Target.NODES, Target.PODS, Target.SERVICES)


def table(found: Verification) -> Table:
    """One line for what each origin does toward each site."""
    rows = Table(box=None, pad_edge=False, padding=(0, 1), collapse_padding=True, header_style="dim")
    for heading in ("from", "to", "", "expected", "happened", "probes"):
        rows.add_column(
            heading, no_wrap=heading in ("from", "to", "probes"), justify="right" if heading == "probes" else "left"
        )
    before = ""
    for row in found.rows:
        if before not in ("", row.origin):
            rows.add_row()
        is_first = row.origin != before
        before = row.origin
        rows.add_row(
            Text(_origin(row), style="bold") if is_first else "",
            row.site,
            _kinds(row),
            row.expected,
            Text(row.happened, style="green" if row.agrees else "bold red"),
            str(row.probes),
        )
    return rows


def _origin(row: Row) -> str:
    return row.origin if row.origin.startswith(row.origin_site) else f"{row.origin} ({row.origin_site})"


def _kinds(row: Row) -> str:
    if row.kinds == _EVERYTHING:
        return "everything"
    return "" if row.kinds == (row.site,) else ", ".join(row.kinds)


def drops(found: Verification) -> Table:
    """What machines dropped between sites, those that had nothing to drop left out."""
    rows = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
    for heading in ("dropped by", "from", "to"):
        rows.add_column(heading)
    for heading in ("sent", "counted"):
        rows.add_column(heading, justify="right")
    for each in found.drops:
        if each.sent or each.counted:
            style = "green" if each.sent == each.counted else "bold red"
            pair = each.pair
            rows.add_row(
                pair.machine, pair.origin, pair.destination, str(each.sent), Text(str(each.counted), style=style)
            )
    return rows


def verdict(found: Verification) -> str:
    """One sentence."""
    if found.agrees:
        packets = sum(each.counted for each in found.drops)
        return f"All {found.probes} probes did as they should; {packets} packets between spokes dropped and counted."
    wrong = sum(not row.agrees for row in found.rows)
    counters = sum(each.sent != each.counted for each in found.drops)
    halves = f" {len(found.half_open)} connections are half-open." if found.half_open else ""
    return f"{wrong} of {len(found.rows)} lines and {counters} counters are not as they should be.{halves}"
