"""What `netmgr node audit` prints: both comparisons, and why their sides differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from netmgr.cli.tables import size

_HEADERS = (
    "headers: a link counts 14 bytes of Ethernet header with every packet, the rules count from the IP header on."
)
_OFFLOAD = (
    "offload: a packet that a pod leaves to be segmented counts once, whole, on its link and in the rules alike; an "
    "uplink's own figures are higher by the headers of every segment."
)
_REST = (
    "rest: traffic with internal prefixes (other pods, the node, its sites), ARP and neighbour discovery, and what was "
    "dropped between link and rules."
)
_ALWAYS = (_HEADERS, _OFFLOAD, _REST)


def report(answer: Mapping[str, Any]) -> Iterator[Table | str]:
    """Tables and sentences, in the order in which they are read."""
    yield _forward(answer)
    if answer["links"]:
        yield _links(answer)
    for sentence in (*_findings(answer), *(_ALWAYS if answer["links"] else ())):
        yield f"[dim]·[/] {escape(sentence)}"


def _forward(answer: Mapping[str, Any]) -> Table:
    table = _table("Pods against the node's forward rules", "", "forwarded>", "pods>", "unattributed>", "explained>")
    for one in answer["forward"]:
        share = 1 - one["unattributed"] / one["forwarded"] if one["forwarded"] else 1.0
        sizes = (size(one[name]) for name in ("forwarded", "attributed", "unattributed"))
        table.add_row(one["traffic"], *sizes, f"{share:.2%}")
    return table


def _links(answer: Mapping[str, Any]) -> Table:
    table = _table("Pods against their links", "pod", "link", "", "carried>", "headers>", "counted>", "rest>")
    for one in answer["links"]:
        counted = sum(one["counted"].values())
        figures = (size(one["carried"]), size(one["headers"]), size(counted), _signed(one["rest"]))
        table.add_row(escape(", ".join(one["pods"])), one["link"], one["direction"], *figures)
    return table


def _findings(answer: Mapping[str, Any]) -> Iterator[str]:
    for one in answer["forward"]:
        if one["unattributed"]:
            yield (
                f"{one['traffic']}: {size(one['unattributed'])} were forwarded for addresses that no pod had at the "
                "time: containers of another network, pods that were noticed late, or traffic while another program "
                "had removed a pod's counter."
            )
        moving = one["forwarded"] - one["attributed"] - one["unattributed"]
        if moving > 0:
            yield f"{one['traffic']}: {size(moving)} passed while both sides were read; the next reading settles it."
    for gap in answer["gaps"]:
        if gap["count"]:
            yield f"gap {gap['reason']}: {gap['count']} times; counts of {gap['seconds']:.1f} s may not be complete."
    for one in answer["links"]:
        if one["rest"] < 0:
            yield _overcounted(one)


def _overcounted(one: Mapping[str, Any]) -> str:
    what = f"{one['link']} {one['direction']}: {size(-one['rest'])} more were counted than the link carried; "
    if one["direction"] == "in":
        return what + "they were dropped after the rules saw them, by a policy or a full queue."
    return what + "that cannot be: please report it with `netmgr node audit -o json`."


def is_sound(answer: Mapping[str, Any]) -> bool:
    """Whether no pod was counted for more than its link brought."""
    return all(one["rest"] >= 0 for one in answer["links"] if one["direction"] == "out")


def _signed(value: int) -> str:
    return f"-{size(-value)}" if value < 0 else size(value)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim", box=None)
    for column in columns:
        table.add_column(column.rstrip(">"), justify="right" if column.endswith(">") else "left")
    return table
