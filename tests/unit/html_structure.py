"""What a page has to have so that people find their way in it without seeing it, or its mouse."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser

EMPTY = {"meta", "br", "img", "input", "link"}
REFERENCES = ("aria-labelledby", "aria-describedby", "for", "list")
FOCUSABLE = ("a", "button", "input", "summary", "select", "textarea")

Attributes = dict[str, str]


class Element:
    """A start tag, what it is in, and the text in it."""

    def __init__(self, tag: str, attributes: Attributes, parents: tuple[Element, ...]) -> None:
        self.tag, self.attributes, self.parents = tag, attributes, parents
        self.text = ""

    def is_in(self, *tags: str) -> bool:
        return any(parent.tag in tags for parent in self.parents)


class Page(HTMLParser):
    """Every element of a page, in order; raises AssertionError where tags are not nested."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = Element(tag, {name: value or "" for name, value in attributes}, tuple(self._open))
        self.elements.append(found)
        if tag not in EMPTY:
            self._open.append(found)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in EMPTY:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().tag == tag

    def handle_data(self, text: str) -> None:
        for element in self._open:
            element.text += text

    def all(self, *tags: str) -> list[Element]:
        return [element for element in self.elements if element.tag in tags]


def faults(html: str) -> list[str]:
    """Whatever is missing, in words."""
    page = Page(html)
    checks = (_document, _headings, _references, _tables, _controls, _pictures, _inline)
    return [fault for check in checks for fault in check(page)]


def _document(page: Page) -> Iterator[str]:
    if [one.attributes.get("lang") for one in page.all("html")] != ["en"]:
        yield "html has no language"
    for tag in ("title", "h1", "main"):
        found = [one for one in page.all(tag) if one.text.strip() and not one.is_in("svg")]
        if len(found) != 1:
            yield f"{len(found)} {tag}"
    first = next(one for one in page.elements if one.tag in FOCUSABLE)
    if not (first.tag == "a" and first.attributes.get("href", "").startswith("#")):
        yield "the first thing that gets the focus is no skip link"


def _headings(page: Page) -> Iterator[str]:
    level = 0
    for one in page.all("h1", "h2", "h3", "h4"):
        if int(one.tag[1]) > level + 1:
            yield f"{one.tag} {one.text} after h{level}"
        level = int(one.tag[1])


def _references(page: Page) -> Iterator[str]:
    names = [one.attributes["id"] for one in page.elements if "id" in one.attributes]
    yield from (f"id {name} twice" for name in sorted({n for n in names if names.count(n) > 1}))
    for one in page.elements:
        wanted = [name for key in REFERENCES for name in one.attributes.get(key, "").split()]
        if one.attributes.get("href", "").startswith("#"):
            wanted.append(one.attributes["href"][1:])
        yield from (f"{one.tag} names {name}" for name in wanted if name not in names)


def _tables(page: Page) -> Iterator[str]:
    for one in page.all("th"):
        if one.attributes.get("scope") not in ("col", "row") or not one.text.strip():
            yield f"th {one.text} has no scope or no text"
    for table in page.all("table"):
        inside = [one for one in page.elements if table in one.parents]
        if not any(one.tag == "caption" and one.text.strip() for one in inside):
            yield "a table has no caption"
        for row in (one for one in inside if one.tag == "tr" and one.is_in("tbody")):
            if not any(one.tag == "th" and row in one.parents for one in inside):
                yield f"row {row.text} has no header"


def _controls(page: Page) -> Iterator[str]:
    labelled = {one.attributes.get("for") for one in page.all("label")}
    for one in page.all("input"):
        if one.attributes.get("id") not in labelled and not one.is_in("label"):
            yield "an input has no label"
    for one in page.all("button", "a", "summary"):
        if not one.text.strip():
            yield f"a {one.tag} says nothing"
    for one in page.elements:
        if one.attributes.get("tabindex", "0") not in ("0", "-1"):
            yield f"{one.tag} changes the order of focus"
        if one.attributes.get("tabindex") == "0" and not _is_named(one):
            yield f"{one.tag} can have the focus and has no role or name"


def _is_named(one: Element) -> bool:
    named = {"aria-label", "aria-labelledby"} & one.attributes.keys()
    return bool(named and "role" in one.attributes)


def _pictures(page: Page) -> Iterator[str]:
    for one in page.all("svg"):
        is_named = one.attributes.get("role") == "img" and "aria-label" in one.attributes
        around = (one, *one.parents)
        is_hidden = any(each.attributes.get("aria-hidden") == "true" for each in around)
        if not is_named and not is_hidden:
            yield "an svg is neither named nor hidden"


def _inline(page: Page) -> Iterator[str]:
    """What a content security policy with digests forbids."""
    for one in page.elements:
        for name in one.attributes:
            if name == "style" or name.startswith("on"):
                yield f"{one.tag} has {name}"
