"""PyYAML's safe loader with bounds, for text from people who may err or mean harm.

Two shapes of text cost far more than their length:

- Aliases of aliases: 400 bytes stand for a thousand million nodes. PyYAML shares the objects, but
  whoever walks them (and merge keys, `<<`, within PyYAML) meets each again and again.
- Nested collections: PyYAML's composer calls itself once for each level, in C, where Python's
  recursion limit does not hold. A hundred thousand levels end the process by SIGSEGV.
"""

from __future__ import annotations

from typing import Any

import yaml

MOST_LEVELS = 1000
"""Of nested lists and mappings."""

MOST_REPEATED = 100_000
"""Nodes that aliases may add to those written out."""


_NO_VALUE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
"""What PyYAML raises for a value that is not what it looks like: a 13th month, an empty `!!int`,
a number that no float holds."""


class Unusable(yaml.MarkedYAMLError):
    """A document that cannot be used, though it may be YAML; `problem` says why."""


class BeyondBounds(Unusable):
    """A document that would cost more than any real one."""


class Loader(yaml.CSafeLoader):
    """As CSafeLoader.

    Raises:
        BeyondBounds: the text has too many levels, or a document's aliases stand for too much.
        Unusable: a value cannot be one.
    """

    def __init__(self, stream: str | bytes) -> None:
        if _is_too_deep(stream):
            raise BeyondBounds(
                problem=f"has more than {MOST_LEVELS} lists and mappings in each other"
            )
        super().__init__(stream)

    def construct_document(self, node: Any) -> Any:  # noqa: ANN401  as in PyYAML
        check_aliases(node)
        try:
            return super().construct_document(node)
        except RecursionError:
            raise BeyondBounds(problem="has too many lists and mappings in each other") from None
        except _NO_VALUE as error:
            raise Unusable(problem=f"has a value that cannot be one: {error}") from None


def load(text: str | bytes) -> Any:  # noqa: ANN401  whatever the text holds
    """The one document of a text; YAMLError if it is not YAML, not one document, or too much."""
    return yaml.load(text, Loader=Loader)  # noqa: S506  it is CSafeLoader with bounds


def compose(text: str) -> yaml.Node | None:
    """The nodes of a text's one document, which know where they are in it."""
    root: yaml.Node | None = yaml.compose(text, Loader=Loader)
    check_aliases(root)
    return root


def _is_too_deep(stream: str | bytes) -> bool:
    """Whether lists and mappings are nested too deep for the composer."""
    level = 0
    try:
        # By events, as the composer goes, and reading them does not recurse. Counting brackets
        # would be faster, but those within quoted texts would count as well: a text of closing
        # brackets would hide as many opening ones.
        for event in yaml.parse(stream, Loader=yaml.CSafeLoader):
            if isinstance(event, yaml.CollectionStartEvent):
                level += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                level -= 1
            if level > MOST_LEVELS:
                return True
    except yaml.YAMLError:
        # The composer comes no further than this, and reports the error with its line.
        return False
    return False


def check_aliases(root: yaml.Node | None) -> None:
    """Raise BeyondBounds if aliases stand for too much, or a node contains itself."""
    sizes: dict[int, int] = {}
    above: set[int] = set()
    # Each node is met twice, before and after its parts; not by recursion, whose depth is bounded.
    pending = [(root, False)] if root is not None else []
    while pending:
        node, is_complete = pending.pop()
        if is_complete:
            above.discard(id(node))
            _measure(node, sizes)
            continue
        if id(node) in above:
            message = "an alias refers to what contains it"
            raise BeyondBounds(problem=message, problem_mark=node.start_mark)
        # An alias is the same node: its parts are measured once, or this itself would explode.
        if id(node) not in sizes:
            above.add(id(node))
            pending.append((node, True))
            pending += [(part, False) for part in _parts(node)]


def _measure(node: yaml.Node, sizes: dict[int, int]) -> None:
    """Count the nodes below a node, what aliases stand for included each time it is met."""
    sizes[id(node)] = 1 + sum(sizes[id(part)] for part in _parts(node))
    if sizes[id(node)] - len(sizes) > MOST_REPEATED:
        message = f"aliases add more than {MOST_REPEATED} nodes"
        raise BeyondBounds(problem=message, problem_mark=node.start_mark)


def _parts(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []
