"""The landing page at `/`: a node's totals and its top talkers, in one small HTML document.

It works without JavaScript and loads nothing. All foreign text is escaped; should an escape be
missed, the content security policy allows no script, and no style but the page's own.
"""

from __future__ import annotations

import base64
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import escape

from exporter.bounds import bounded
from netmgr.api.snapshot import Snapshot, TrafficTotals

ROWS = 10
"""Of namespaces and of pods, those with the most traffic."""

REFRESH_SECONDS = 15

_STYLE = """
:root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}
body{max-width:56rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%;margin:1.5rem 0}
caption{text-align:left;font-weight:600}
th,td{padding:.25rem .5rem;border-bottom:1px solid #8886;\
text-align:right;font-variant-numeric:tabular-nums}
th:first-child,td:first-child{text-align:left;overflow-wrap:anywhere}
.bad{color:#c33;font-weight:600}
"""

_POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "style-src 'sha256-{}'"
)

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")

Row = tuple[str, int, int]
"""Name, bytes in, bytes out."""


def headers() -> list[tuple[str, str]]:
    """The headers of the page."""
    # The policy allows a style by its digest, so that the page's own is the only one.
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    return [
        ("Content-Type", "text/html; charset=utf-8"),
        ("Content-Security-Policy", _POLICY.format(digest)),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
        ("Cache-Control", "no-store"),
    ]


def of_node(snapshot: Snapshot) -> str:
    """The page while the agent answers.

    Raises:
        LookupError, TypeError, ValueError, AttributeError, OverflowError: it is not a snapshot.
    """
    state = (
        "ready"
        if snapshot["ready"]
        else f'<span class="bad">not ready: {_text(snapshot["reason"])}</span>'
    )
    role = snapshot.get("role", "node")
    version, backend = _text(snapshot["netmgr_version"]), _text(snapshot["backend"])
    about = f"netmgr {version}, {_text(role)}, {backend} backend, {state}"
    traffic = _rows((snapshot["node"], total) for total in snapshot["node_totals"])
    tables = (
        _table("Internet traffic of this machine", role, traffic),
        *(_of_pods(snapshot) if role == "node" else ()),
        _dropped(snapshot),
        _nat(snapshot),
    )
    return _document(f"netmgr on {_text(snapshot['node'])}", f"<p>{about}</p>{''.join(tables)}")


def _of_pods(snapshot: Snapshot) -> tuple[str, ...]:
    pods = _rows((f"{total['namespace']}/{total['pod']}", total) for total in snapshot["pods"])
    namespaces = _rows((total["namespace"], total) for total in snapshot["namespaces"])
    return (
        _table(_caption("Namespaces", len(namespaces)), "namespace", namespaces[:ROWS]),
        _table(_caption("Pods", len(pods)), "pod", pods[:ROWS]),
        _pool(snapshot),
    )


def without_agent(fault: str) -> str:
    """The page while the agent is away, or its answer is invalid."""
    return _document(
        "netmgr", f'<p class="bad">The agent does not answer.</p><p>{escape(fault)}</p>'
    )


def _document(title: str, content: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body><h1>{title}</h1>{content}"
        '<p><a href="/metrics">/metrics</a> · <a href="/healthz">/healthz</a> · '
        '<a href="/readyz">/readyz</a></p>'
        "</body></html>\n"
    )


def _rows(entries: Iterable[tuple[str, TrafficTotals]]) -> list[Row]:
    """One row a name, the most traffic first."""
    sums: defaultdict[str, dict[str, int]] = defaultdict(lambda: {"in": 0, "out": 0})
    for name, total in entries:
        way = total["traffic"].rpartition("-")[2]
        if way in ("in", "out"):
            sums[name][way] += int(total["bytes"])
    rows = [(name, amount["in"], amount["out"]) for name, amount in sums.items()]
    return sorted(rows, key=lambda row: (-row[1] - row[2], row[0]))


def _caption(what: str, count: int) -> str:
    return (
        f"{what}: {count:,}"
        if count <= ROWS
        else f"{what}: the {ROWS} of {count:,} with the most traffic"
    )


def _table(caption: str, first: str, rows: Sequence[Row]) -> str:
    lines = "".join(
        f"<tr><td>{_text(name)}</td>{_size(received)}{_size(sent)}{_size(received + sent)}</tr>"
        for name, received, sent in rows
    )
    return _grid(caption, (_text(first), "in", "out", "both"), lines)


def _grid(caption: str, heads: Iterable[str], lines: str) -> str:
    head = "".join(f'<th scope="col">{head}</th>' for head in heads)
    top = f"<caption>{caption}</caption><thead><tr>{head}</tr></thead>"
    return f"<table>{top}<tbody>{lines}</tbody></table>"


def _pool(snapshot: Snapshot) -> str:
    lines = "".join(
        f"<tr><td>{_text(pool['family'])}</td><td>{int(pool['allocated']):,}</td>"
        f"<td>{int(pool['cooldown']):,}</td><td>{int(pool['free']):,}</td></tr>"
        for pool in snapshot["pool"]
    )
    return _grid("Addresses", ("family", "allocated", "cooldown", "free"), lines)


def _dropped(snapshot: Snapshot) -> str:
    """Pairs of spokes between which packets were dropped."""
    met = sorted(
        (pair for pair in snapshot.get("isolation", []) if pair["packets"]),
        key=lambda pair: -pair["packets"],
    )
    lines = "".join(
        f"<tr><td>{_text(pair['origin'])}</td><td>{_text(pair['destination'])}</td>"
        f"<td>{int(pair['packets']):,}</td>{_size(int(pair['bytes']))}</tr>"
        for pair in met[:ROWS]
    )
    return (
        _grid(
            _caption("Dropped between spokes", len(met)), ("from", "to", "packets", "bytes"), lines
        )
        if met
        else ""
    )


def _nat(snapshot: Snapshot) -> str:
    """What a NAT host translates, and the ports it uses."""
    if "nat" not in snapshot:
        return ""
    ranges = "".join(
        f"<tr><td>{_text(one['vip_range'])}</td><td>{_text(one['service_cidr'])}</td>"
        f"<td>{int(one['packets']):,}</td>{_size(int(one['bytes']))}</tr>"
        for one in snapshot["nat"]["ranges"]
    )
    ports = "".join(
        f"<tr><td>{_text(one['family'])} {_text(one['protocol'])}</td>"
        f"<td>{int(one['used']):,}</td><td>{int(one['budget']):,}</td>"
        f"<td>{_text(one['endpoint'])}</td></tr>"
        for one in snapshot["nat"]["ports"]
    )
    shown = _grid("Translated", ("VIP range", "Service CIDR", "packets", "bytes"), ranges)
    return shown + (
        _grid("Ports", ("", "in use", "of", "toward the busiest endpoint"), ports) if ports else ""
    )


def _size(amount: int) -> str:
    """A cell that shows bytes with three digits, and all digits in its title."""
    value, unit = float(amount), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:  # noqa: PLR2004  rounds to 1000
        value, unit = value / 1000, unit + 1
    digits = f"{value:#.3g}".rstrip(".") if unit else str(amount)
    return f'<td title="{amount:,} bytes">{digits} {_UNITS[unit]}</td>'


def _text(value: str) -> str:
    return escape(bounded(value))
