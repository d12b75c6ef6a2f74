"""The landing page at `/`: a node's totals and its top talkers, in one small HTML document.

It works without JavaScript and loads nothing. All foreign text is escaped; should an escape be
missed, the content security policy allows no script, and no style but the page's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib.resources import files

from exporter.bounds import bounded
from netmgr.api.snapshot import Snapshot, TrafficTotals
from netmgr.drawing import source_hash
from netmgr.palette import properties

ROWS = 10
"""Of namespaces and of pods, those with the most traffic."""

REFRESH_SECONDS = 15

_STILL = '<a href="/?refresh">Refresh every 15 s</a>'
_REFRESHING = '<a href="/">Stop refreshing</a>'
_POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; style-src {}"
)
_TICK, _CROSS = "M2 9l4 4l8-10", "M3 3l10 10M13 3l-10 10"

_READABLE = 10**9
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")

Row = tuple[str, int, int]
"""Name, bytes in, bytes out."""


@cache
def _style() -> str:
    return properties() + files(__package__).joinpath("page.css").read_text("utf-8")


def headers(*, refreshing: bool = False) -> list[tuple[str, str]]:
    """The headers of the page."""
    # The policy allows a style by its digest, so that the page's own is the only one.
    found = [
        ("Content-Type", "text/html; charset=utf-8"),
        ("Content-Security-Policy", _POLICY.format(source_hash(_style()))),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
        ("Cache-Control", "no-store"),
    ]
    return [*found, ("Refresh", str(REFRESH_SECONDS))] if refreshing else found


def refreshing(page: str) -> str:
    """The page for those who asked that it comes anew by itself.

    It does not otherwise: who reads with a screen reader, or has moved on it with the keyboard,
    would be taken back to its beginning (WCAG 2.2, 2.2.1 and 3.2.5).
    """
    return page.replace(_STILL, _REFRESHING, 1)


def of_node(snapshot: Snapshot) -> str:
    """The page while the agent answers.

    Raises:
        LookupError, TypeError, ValueError, AttributeError, OverflowError: it is not a snapshot.
    """
    role = snapshot.get("role", "node")
    version, backend = _text(snapshot["netmgr_version"]), _text(snapshot["backend"])
    about = f"netmgr {version}, {_text(role)}, {backend} backend"
    state = (
        _state("good", _TICK, "ready")
        if snapshot["ready"]
        else _state("bad", _CROSS, f"not ready: {_text(snapshot['reason'])}")
    )
    tables = (
        *(_of_pods(snapshot) if role == "node" else ()),
        _dropped(snapshot),
        _nat(snapshot),
    )
    return _document(
        f"netmgr on {_text(snapshot['node'])}",
        f"{state}<p>{about}</p>",
        f"{_problems(snapshot)}<dl>{''.join(_figures(snapshot, role))}</dl>"
        f'<div class="tables">{"".join(tables)}</div>',
    )


def _state(kind: str, shape: str, words: str) -> str:
    mark = f'<svg viewBox="0 0 16 16" aria-hidden="true"><path d="{shape}"/></svg>'
    return f'<p class="state {kind}">{mark}{words}</p>'


def _problems(snapshot: Snapshot) -> str:
    lines = "".join(
        f"<li><b>{_text(one['reason'])}</b>: {_text(one['message'])}</li>"
        for one in snapshot.get("problems", ())
    )
    return f'<h2 class="bad">Problems</h2><ul class="problems">{lines}</ul>' if lines else ""


def _figures(snapshot: Snapshot, role: str) -> Iterable[str]:
    """What the whole machine did, and how much is left of what it may run out of."""
    ((_, received, sent),) = _rows(("", total) for total in snapshot["node_totals"]) or [("", 0, 0)]
    yield _figure("Received from the internet", _words(received), f"{received:,} bytes")
    yield _figure("Sent to the internet", _words(sent), f"{sent:,} bytes")
    if role == "node":
        pods = {(one["namespace"], one["pod"]) for one in snapshot["pods"] if one["live"]}
        yield _figure(
            "Pods", f"{len(pods):,}", f"in {len({name for name, _ in pods}):,} namespaces"
        )
    if tracking := snapshot.get("tracking"):
        used, most = int(tracking["connections"]), int(tracking["most"])
        yield _figure("Connections", f"{used:,}", f"of {most:,}, {_percent(used, most)}")


def _figure(name: str, value: str, more: str) -> str:
    return f"<div><dt>{name}</dt><dd>{value}<small>{more}</small></dd></div>"


def _of_pods(snapshot: Snapshot) -> tuple[str, ...]:
    pods = _rows((f"{total['namespace']}/{total['pod']}", total) for total in snapshot["pods"])
    namespaces = _rows((total["namespace"], total) for total in snapshot["namespaces"])
    return (
        _table(_caption("Namespaces", len(namespaces)), "namespace", namespaces),
        _pool(snapshot),
        _table(_caption("Pods", len(pods)), "pod", pods),
    )


def without_agent(fault: str) -> str:
    """The page while the agent is away, or its answer is invalid."""
    state = _state("bad", _CROSS, "The agent does not answer.")
    return _document("netmgr", state, f"<p>{escape(fault)}</p>")


def _document(title: str, head: str, content: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_style()}</style></head>"
        '<body><a class="skip" href="#main">Skip to the figures</a>'
        f'<header><h1>{title}</h1>{head}</header><main id="main" tabindex="-1">{content}</main>'
        f'<footer><nav aria-label="Pages"><a href="/metrics">/metrics</a> '
        f'<a href="/healthz">/healthz</a> <a href="/readyz">/readyz</a> {_STILL}</nav></footer>'
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
    """The rows with the most traffic, and their shares of all rows'."""
    whole = sum(received + sent for _, received, sent in rows)
    lines = "".join(
        f'<tr><th scope="row">{_text(name)}</th>{_size(received)}{_size(sent)}'
        f"{_size(received + sent)}<td>{_percent(received + sent, whole)}</td>"
        f"{_bar(received / (whole or 1), sent / (whole or 1))}</tr>"
        for name, received, sent in rows[:ROWS]
    )
    heads = (first, "in", "out", "both", "of all")
    return _grid(caption, heads, lines, bars=2)


def _grid(caption: str, heads: Iterable[str], lines: str, *, bars: int = 0) -> str:
    """A table; a head that ends with `<` is of text, which is aligned to the left.

    With two `bars` the second and third head show the colours of both.
    """
    head = "".join(map(_head, heads)) + '<td class="bars"></td>' * bool(bars)
    top = f"<caption><h2>{caption}</h2></caption><thead><tr>{head}</tr></thead>"
    kind = ' class="key"' if bars == 2 else ""  # noqa: PLR2004  as many as there are colours
    return f"<section><table{kind}>{top}<tbody>{lines}</tbody></table></section>"


def _head(words: str) -> str:
    kind = ' class="text"' if words.endswith("<") else ""
    return f'<th scope="col"{kind}>{words.removesuffix("<")}</th>'


def _bar(*shares: float) -> str:
    """A cell that shows once more what the cells before it say."""
    drawn, left = "", 0.0
    for share in shares:
        drawn += f'<rect x="{left:.0%}" width="{share:.0%}"/>'
        left += share
    return f'<td class="bars" aria-hidden="true"><svg>{drawn}</svg></td>'


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "0%"


def _pool(snapshot: Snapshot) -> str:
    lines = ""
    for pool in snapshot["pool"]:
        allocated, cooldown, free = (
            int(pool[state]) for state in ("allocated", "cooldown", "free")
        )
        whole = allocated + cooldown + free
        lines += (
            f'<tr><th scope="row">{_text(pool["family"])}</th><td>{allocated:,}</td>'
            f"<td>{cooldown:,}</td>{_count(free)}"
            f"{_bar(allocated / (whole or 1), cooldown / (whole or 1))}</tr>"
        )
    return _grid("Addresses", ("family", "allocated", "cooldown", "free"), lines, bars=2)


def _dropped(snapshot: Snapshot) -> str:
    """Pairs of spokes between which packets were dropped."""
    met = sorted(
        (pair for pair in snapshot.get("isolation", []) if pair["packets"]),
        key=lambda pair: -pair["packets"],
    )
    lines = "".join(
        f'<tr><th scope="row">{_text(pair["origin"])}</th>'
        f'<td class="text">{_text(pair["destination"])}</td>'
        f"<td>{int(pair['packets']):,}</td>{_size(int(pair['bytes']))}</tr>"
        for pair in met[:ROWS]
    )
    heads = ("from", "to<", "packets", "bytes")
    return _grid(_caption("Dropped between spokes", len(met)), heads, lines) if met else ""


def _nat(snapshot: Snapshot) -> str:
    """What a NAT host translates, and the ports it uses."""
    if "nat" not in snapshot:
        return ""
    ranges = "".join(
        f'<tr><th scope="row">{_text(one["vip_range"])}</th>'
        f'<td class="text">{_text(one["service_cidr"])}</td>'
        f"<td>{int(one['packets']):,}</td>{_size(int(one['bytes']))}</tr>"
        for one in snapshot["nat"]["ranges"]
    )
    ports = "".join(
        f'<tr><th scope="row">{_text(one["family"])} {_text(one["protocol"])}</th>'
        f"<td>{int(one['used']):,}</td><td>{int(one['budget']):,}</td>"
        f'<td class="text">{_text(one["endpoint"])}</td>'
        f"{_bar(int(one['used']) / (int(one['budget']) or 1))}</tr>"
        for one in snapshot["nat"]["ports"]
    )
    shown = _grid("Translated", ("VIP range", "Service CIDR<", "packets", "bytes"), ranges)
    heads = ("protocol", "in use", "of", "toward the busiest endpoint<")
    return shown + (_grid("Ports", heads, ports, bars=1) if ports else "")


def _size(amount: int) -> str:
    """A cell that shows bytes with three digits, and all digits in its title."""
    return f'<td title="{amount:,} bytes">{_words(amount)}</td>'


def _count(amount: int) -> str:
    """A cell with a number; of one that is too long to be read, its size and all digits."""
    if amount < _READABLE:
        return f"<td>{amount:,}</td>"
    digits, _, power = f"{amount:.2e}".partition("e+")
    return f'<td title="{amount:,}">{digits} \N{MULTIPLICATION SIGN} 10<sup>{power}</sup></td>'


def _words(amount: int) -> str:
    value, unit = float(amount), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:  # noqa: PLR2004  rounds to 1000
        value, unit = value / 1000, unit + 1
    digits = f"{value:#.3g}".rstrip(".") if unit else str(amount)
    return f"{digits} {_UNITS[unit]}"


def _text(value: str) -> str:
    return escape(bounded(value))
