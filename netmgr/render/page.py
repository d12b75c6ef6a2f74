"""The picture of an address space as one HTML page that fetches nothing and tells what one points at.

Text of the plan gets into the page in two ways: as escaped XML text, and as JSON in which
every "<" is written as an escape, so that no name can end the script it stands in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from importlib.resources import files
from typing import Any
from xml.sax.saxutils import escape

from netmgr.render import svg
from netmgr.render.picture import Nodes, Picture, Region, Window, plain


def draw(picture: Picture) -> str:
    """The page, ending with a newline."""
    views = [*picture.windows, *picture.before]
    data: dict[str, Any] = {
        "changed": bool(picture.before),
        "meanings": {use.value: meaning for use, meaning in svg.MEANINGS.items()},
        "owners": {plain(owner): colour for owner, colour in picture.colours().items() if owner},
        "views": [_view(window) for window in views],
    }
    shown = len(picture.windows)
    parts = {
        "TITLE": escape(plain(picture.title)),
        "AFTER": "\n".join(_figures(picture, enumerate(views[:shown]))),
        "BEFORE": "\n".join(_figures(picture, enumerate(views[shown:], start=shown))),
        "CHANGED": ", framed is new" if picture.before else "",
        "DATA": json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
    }
    # The pieces between the marks are the template's alone: a name that looks like a mark stays a name.
    pieces = files("netmgr.render").joinpath("map.html").read_text("utf-8").split("@@")
    return "".join(parts[piece] if number % 2 else piece for number, piece in enumerate(pieces))


def _figures(picture: Picture, views: Iterable[tuple[int, Window]]) -> Iterator[str]:
    for number, window in views:
        yield f'<figure data-view="{number}"><h2>{escape(plain(window.name))}: {window.prefix}</h2>'
        yield f'<svg xmlns="{svg.NAMESPACE}" viewBox="0 0 {svg.SIDE} {svg.SIDE}" font-size="12">'
        yield from svg.definitions(picture.colours())
        yield from svg.square(window, picture.colours(), picture.added(window))
        yield "</svg></figure>"


def _view(window: Window) -> dict[str, Any]:
    return _block(window) | {"regions": [_region(region) for region in window.drawn()]}


def _region(region: Region) -> dict[str, Any]:
    return _block(region) | {
        "prefix": str(region.prefix),
        "owner": plain(region.owner),
        "role": plain(region.role),
        "use": region.use.value,
        "note": plain(region.note),
        "nodes": _nodes(region.nodes) if region.nodes else None,
    }


def _nodes(nodes: Nodes) -> dict[str, Any]:
    return {"stem": nodes.stem, "first": nodes.first, "base": str(nodes.base), "stride": str(nodes.stride)}


def _block(item: Window | Region) -> dict[str, Any]:
    """The prefix as the page computes with it: JSON numbers have 53 bits, so the value is text."""
    return {"family": int(item.prefix.family), "value": str(item.prefix.value), "length": item.prefix.length}
