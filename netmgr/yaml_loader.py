"""PyYAML's safe loader with bounds, for documents of people who may err or mean ill.

Two shapes of text cost out of all proportion to their length:

- Aliases of aliases: 400 bytes stand for a thousand million nodes. PyYAML shares the objects, but whoever
  walks them (and merge keys, `<<`, within PyYAML) meets each again and again.
- Collections in each other: PyYAML's composer calls itself once for each level, in C, where Python's limit on
  recursion does not hold, and a hundred thousand levels end the process by SIGSEGV.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

MOST_LEVELS = 1000
"""Of lists and mappings in each other."""

MOST_REPEATED = 100_000
"""Nodes that aliases may add to those that are written out."""

_BRACKET = re.compile(rb"[\[{]|[\]}]")
_COMPACT = re.compile(rb"^[ \t\x00]*(?:[-?][ \t\x00]+){%d}" % MOST_LEVELS, re.MULTILINE)


class BeyondBounds(yaml.MarkedYAMLError):
    """A document that would cost more than any real one; `problem` says what it has too many of."""


class Loader(yaml.CSafeLoader):
    """As CSafeLoader.

    Raises:
        BeyondBounds: the text has too many levels, or a document's aliases stand for too much.
    """

    def __init__(self, stream: str | bytes) -> None:
        if is_too_deep(stream.encode(errors="surrogatepass") if isinstance(stream, str) else stream):
            raise BeyondBounds(problem=f"has more than {MOST_LEVELS} lists and mappings in each other")
        super().__init__(stream)

    def construct_document(self, node: Any) -> Any:  # noqa: ANN401  as in PyYAML
        """The document's objects."""
        check_aliases(node)
        try:
            return super().construct_document(node)
        except RecursionError:
            raise BeyondBounds(problem="has too many lists and mappings in each other") from None


def load(text: str | bytes) -> Any:  # noqa: ANN401  whatever the text holds
    """The one document of a text.

    Raises:
        yaml.YAMLError: it is not YAML, not one document, or beyond the bounds.
    """
    loader = Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def is_too_deep(content: bytes) -> bool:
    """Whether lists and mappings stand too deep in each other to be parsed, brackets in texts counted too."""
    level = 0
    for bracket in _BRACKET.finditer(content):
        level += 1 if bracket[0] in b"[{" else -1
        if level > MOST_LEVELS:
            return True
    return _COMPACT.search(content) is not None


def check_aliases(root: yaml.Node | None) -> None:
    """Refuse a composed document whose aliases stand for too much.

    Raises:
        BeyondBounds: they do, or a node contains itself.
    """
    sizes: dict[int, int] = {}
    above: set[int] = set()
    pending = [(root, False)] if root is not None else []
    while pending:
        node, is_counted = pending.pop()
        if is_counted:
            above.discard(id(node))
            sizes[id(node)] = 1 + sum(sizes[id(part)] for part in _parts(node))
        elif id(node) in above:
            raise BeyondBounds(problem="an alias stands for what contains it", problem_mark=node.start_mark)
        elif id(node) not in sizes:
            above.add(id(node))
            pending.append((node, True))
            pending += [(part, False) for part in _parts(node)]
        if is_counted and sizes[id(node)] - len(sizes) > MOST_REPEATED:
            raise BeyondBounds(problem=f"aliases add more than {MOST_REPEATED} nodes", problem_mark=node.start_mark)


def _parts(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []
