"""The map as one HTML page, which fetches nothing and shows what a pointer or the keyboard is on.

Everything that it shows is in it as text, too: a screen reader, a printer and a browser without
scripts get the same tables. Text of the plan gets into the page in two ways: as escaped markup, and
as JSON in which every "<" is written as an escape, so that no name can end the script around it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

from netmgr.drawing import NAMESPACE, box, element, escaped, plain, source_hash, text
from netmgr.palette import CARD, EDGE, FAINT, dark_rules, properties
from netmgr.plan.render.map.blocks import STATES, Block, blocks, room
from netmgr.plan.render.map.colours import Scheme, scheme
from netmgr.plan.render.map.model import Nodes, Picture, Region, Window
from netmgr.plan.render.map.square import SIDE, look, patterns, square
from netmgr.plan.render.map.svg import Ruler, meanings
from netmgr.prefixes import Family, Prefix

_RULER, _ROW = 260, 16


def draw(picture: Picture) -> str:
    """The page, ending with a newline."""
    key = scheme(picture)
    picture = replace(picture, windows=_ordered(picture.windows), before=_ordered(picture.before))
    views = [*picture.windows, *picture.before]
    data: dict[str, Any] = {
        "changed": bool(picture.before),
        "states": {use.value: words for use, words in STATES.items()},
        "owners": [plain(owner) for owner in key.numbers],
        "views": [_view(window) for window in views],
    }
    style = properties() + _file("map.css") + dark_rules()
    script = _file("map.js")
    shown = len(picture.windows)
    parts = {
        "POLICY": "default-src 'none'; "
        f"style-src {source_hash(style)}; script-src {source_hash(script)}",
        "STYLE": style,
        "TITLE": escaped(picture.title),
        "SUGGESTIONS": "".join(element("option", value=plain(owner)) for owner in key.numbers),
        "OWNERS": "\n".join(_owner(owner, key) for owner in key.numbers),
        "MEANINGS": "\n".join(_meaning(*each) for each in meanings(picture, key)),
        "PATTERNS": patterns(key),
        "AFTER": "\n".join(_views(picture, enumerate(views[:shown]), key)),
        "BEFORE": "\n".join(_views(picture, enumerate(views[shown:], start=shown), key)),
        "DATA": json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
        "SCRIPT": script,
    }
    # Split before anything is put in: a name that looks like a mark stays a name.
    pieces = _file("map.html").split("@@")
    return "".join(parts[piece] if place % 2 else piece for place, piece in enumerate(pieces))


def _ordered(windows: tuple[Window, ...]) -> tuple[Window, ...]:
    """Squares first: they are side by side, and rows as wide as the page below them."""
    return tuple(sorted(windows, key=lambda window: window.prefix.family))


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def _swatch(owner: str, key: Scheme) -> str:
    """An owner's colour and number, beside a name that says the same."""
    number = text(
        10,
        12,
        str(key.numbers[owner]),
        "middle",
        stroke=CARD,
        stroke_width=2.5,
        paint_order="stroke",
    )
    drawn = box((0, 0, 20, 16), rx=2, fill=key.colours[owner]) + number
    return _hidden(drawn, "swatch", 20, 16)


def _hidden(drawn: str, kind: str, width: float, height: float) -> str:
    """A picture that says nothing which the text beside it does not say."""
    attributes = {"class": kind, "aria-hidden": "true", "viewBox": f"0 0 {width:g} {height:g}"}
    return element("svg", drawn, xmlns=NAMESPACE, width=width, height=height, **attributes)


def _owner(owner: str, key: Scheme) -> str:
    name = element("span", escaped(owner))
    attributes = {"data-owner": plain(owner), "aria-pressed": "false", "title": plain(owner)}
    return f"<li>{element('button', _swatch(owner, key) + name, type='button', **attributes)}</li>"


def _meaning(words: str, attributes: dict[str, Any]) -> str:
    return f"<li>{_hidden(box((1, 1, 18, 14), **attributes), 'swatch', 20, 16)}{words}</li>"


def _views(picture: Picture, views: Iterable[tuple[int, Window]], key: Scheme) -> Iterator[str]:
    """Squares side by side, and rows as wide as the page."""
    for place, window in views:
        rows = blocks(window, picture.added(window))
        heading = f'<h2 id="window{place}">{escaped(window.name)}: {window.prefix}</h2>'
        about = f'<p class="room">{room(window)}</p>'
        kind = "rows"
        if window.prefix.family is Family.V4:
            kind, table = "square", _table(place, rows, key)
            summary = f"Blocks of {window.prefix}, {len(rows) - 1:,}"
            body = _square(picture, place, window, key)
            body += f"<details><summary>{summary}</summary>{table}</details>"
        else:
            body = _table(place, rows, key, Ruler(rows, 14, _RULER - 18))
        yield (
            f'<section class="{kind}" aria-labelledby="window{place}">'
            f"{heading}{about}\n{body}</section>"
        )


def _square(picture: Picture, place: int, window: Window, key: Scheme) -> str:
    drawn = element(
        "svg",
        "\n".join(["", *square(picture, window, key), ""]),
        xmlns=NAMESPACE,
        viewBox=f"0 0 {SIDE} {SIDE}",
        role="img",
        aria_label=f"Square of {window.prefix}: {room(window)}",
    )
    return (
        f'<div class="map" data-view="{place}" tabindex="0" role="application" '
        f'aria-roledescription="map" aria-labelledby="window{place}" aria-describedby="keys">'
        f"{drawn}</div>\n"
    )


def _table(place: int, rows: Sequence[Block], key: Scheme, ruler: Ruler | None = None) -> str:
    heads = "".join(
        f'<th scope="col">{head}</th>' for head in ("Block", "Owner", "For", "State", "Allocated")
    )
    if ruler:
        marks = "".join(
            text(ruler.at(length), 12, f"/{length}", "middle", fill=FAINT) for length in ruler.named
        )
        scale = _hidden(marks, "ruler", _RULER, _ROW)
        heads += f'<th scope="col" class="levels">Prefix length, to that of parts{scale}</th>'
    body = "\n".join(_row(place, row, key, ruler) for row in rows)
    caption = f"<caption>Blocks of {rows[0].prefix}</caption>"
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="Table of {rows[0].prefix}">'
        f"<table>{caption}<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _row(place: int, row: Block, key: Scheme, ruler: Ruler | None) -> str:
    owner, new = row.region.owner, " <b>new</b>" if row.is_new else ""
    button = f'<button type="button" data-view="{place}" data-prefix="{row.prefix}">'
    note = "" if row.region.room else escaped(row.region.note)
    cells = [
        f"{_swatch(owner, key)}{escaped(owner)}" if owner else "",
        escaped(row.purpose) + (f" <small>{note}</small>" if note else ""),
        row.state,
        _filled(row, key),
    ]
    levels = ""
    if ruler:
        left, length = ruler.span(row)
        region = replace(row.region, use=row.use)
        attributes = look(region, key) if row.depth else {"fill": CARD}
        drawn = box((left, 3, length, _ROW - 6), **({"stroke": EDGE} | attributes))
        levels = f'<td class="levels">{_hidden(drawn, "ruler", _RULER, _ROW)}</td>'
    return (
        f'<tr class="depth{min(row.depth, 6)}" data-owner="{escaped(owner)}">'
        f'<th scope="row">{button}{row.prefix}</button>{new}</th>'
        + "".join(f"<td>{cell}</td>" for cell in cells)
        + f"{levels}</tr>"
    )


def _filled(row: Block, key: Scheme) -> str:
    if row.filled is None:
        return ""
    part = max(1.0, row.filled.share * 78) if row.filled.taken else 0
    bar = box((0.5, 2.5, 79, 11), fill=CARD, stroke=EDGE)
    bar += box((1, 3, part, 10), fill=key.colours[row.region.owner])
    return f"{_hidden(bar, 'bar', 80, _ROW)}{row.filled.words}"


def _view(window: Window) -> dict[str, Any]:
    return _block(window.prefix) | {"regions": [_region(region) for region in window.drawn()]}


def _region(region: Region) -> dict[str, Any]:
    return _block(region.prefix) | {
        "prefix": str(region.prefix),
        "owner": plain(region.owner),
        "role": plain(region.role),
        "use": region.use.value,
        "note": plain(region.note),
        "nodes": _nodes(region.nodes) if region.nodes else None,
    }


def _nodes(nodes: Nodes) -> dict[str, Any]:
    return {
        "stem": nodes.stem,
        "first": nodes.first,
        "base": str(nodes.base),
        "stride": str(nodes.stride),
    }


def _block(prefix: Prefix) -> dict[str, Any]:
    """A prefix as the page's script reads it: JSON numbers have 53 bits, so the value is text."""
    return {"family": int(prefix.family), "value": str(prefix.value), "length": prefix.length}
