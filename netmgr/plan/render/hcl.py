"""Terraform's language, as much of it as rendering needs, formatted as `terraform fmt` would.

A body is a list of attributes and blocks. Attributes that stand together line up at their
equals signs; a blank line parts attributes from blocks (Terraform, "Style Conventions").
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

_INDENT = "  "
_LONGEST_LIST = 100


@dataclass(frozen=True, slots=True)
class Expression:
    """Text as it is, for example the reference `azurerm_subnet.nodes.id`."""

    text: str


Value = Expression | str | int | bool | Sequence["Value"] | Mapping[str, "Value"]


@dataclass(frozen=True, slots=True)
class Attribute:
    """`name = value`."""

    name: str
    value: Value


@dataclass(frozen=True, slots=True)
class Block:
    """`type "label" "label" { … }`."""

    type: str
    labels: tuple[str, ...]
    body: tuple[Attribute | Block, ...]


def render(blocks: Iterable[Block]) -> str:
    """A file of blocks, a blank line between each two."""
    return "\n\n".join("\n".join(_block(block, 0)) for block in blocks) + "\n"


def quote(text: str) -> str:
    """A string literal; `${` and `%{`, which would begin a template, are escaped."""
    return json.dumps(text, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")


def _block(block: Block, depth: int) -> Iterator[str]:
    indent = _INDENT * depth
    head = " ".join([block.type, *map(quote, block.labels)])
    if not block.body:
        yield f"{indent}{head} {{}}"
        return
    yield f"{indent}{head} {{"
    attributes = [part for part in block.body if isinstance(part, Attribute)]
    yield from _attributes(attributes, depth + 1)
    inner_blocks = [part for part in block.body if isinstance(part, Block)]
    for number, inner in enumerate(inner_blocks):
        if attributes or number:
            yield ""
        yield from _block(inner, depth + 1)
    yield f"{indent}}}"


def _attributes(attributes: list[Attribute], depth: int) -> Iterator[str]:
    """Runs of one-line attributes are aligned; one of several lines ends a run and is not."""
    indent = _INDENT * depth
    run: list[tuple[str, str]] = []
    for attribute in attributes:
        text = _value(attribute.value, depth)
        if "\n" in text:
            yield from _aligned(run, indent)
            run = []
            yield f"{indent}{attribute.name} = {text}"
        else:
            run.append((attribute.name, text))
    yield from _aligned(run, indent)


def _aligned(run: list[tuple[str, str]], indent: str) -> Iterator[str]:
    width = max((len(name) for name, _ in run), default=0)
    for name, text in run:
        yield f"{indent}{name:<{width}} = {text}"


def _value(value: Value, depth: int) -> str:
    match value:
        case Expression():
            text = value.text
        case str():
            text = quote(value)
        case bool() | int():
            # HCL writes true and false as JSON does, Python does not.
            text = json.dumps(value)
        case Mapping():
            inner = _attributes([Attribute(name, item) for name, item in value.items()], depth + 1)
            text = "\n".join(["{", *inner, f"{_INDENT * depth}}}"])
        case _:
            text = _list([_value(item, depth + 1) for item in value], depth)
    return text


def _list(items: list[str], depth: int) -> str:
    line = f"[{', '.join(items)}]"
    if len(line) <= _LONGEST_LIST:
        return line
    indent = _INDENT * (depth + 1)
    return "\n".join(["[", *(f"{indent}{item}," for item in items), f"{_INDENT * depth}]"])
