"""Terraform's language, as much of it as rendering needs, formatted as `terraform fmt` would.

Attributes that stand together line up at their equals signs; a blank line parts attributes from
blocks (Terraform, "Style Conventions").
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_INDENT = "  "
_LONGEST_LIST = 100


@dataclass(frozen=True, slots=True)
class HclExpression:
    """Text as it is, for example the reference `azurerm_subnet.nodes.id`."""

    text: str


Value = HclExpression | str | int | bool | Sequence["Value"] | Mapping[str, "Value"]


@dataclass(frozen=True, slots=True)
class Block:
    """`type "label" "label" { … }`: its attributes, then the blocks in it."""

    type: str
    labels: tuple[str, ...] = ()
    attributes: Mapping[str, Value] = field(default_factory=dict)
    blocks: tuple[Block, ...] = ()


def render(blocks: Iterable[Block]) -> str:
    """A file of blocks, a blank line between each two."""
    return "\n\n".join("\n".join(_block(block, 0)) for block in blocks) + "\n"


def quote(text: str) -> str:
    """A string literal; `${` and `%{`, which would begin a template, are escaped."""
    return json.dumps(text, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")


def _block(block: Block, depth: int) -> Iterator[str]:
    indent = _INDENT * depth
    head = " ".join([block.type, *map(quote, block.labels)])
    if not (block.attributes or block.blocks):
        yield f"{indent}{head} {{}}"
        return
    yield f"{indent}{head} {{"
    yield from _attributes(block.attributes, depth + 1)
    for number, inner in enumerate(block.blocks):
        if block.attributes or number:
            yield ""
        yield from _block(inner, depth + 1)
    yield f"{indent}}}"


def _attributes(attributes: Mapping[str, Value], depth: int) -> Iterator[str]:
    """Runs of one-line attributes are aligned; one of several lines ends a run and is not."""
    indent = _INDENT * depth
    run: dict[str, str] = {}
    for name, value in attributes.items():
        text = _value(value, depth)
        if "\n" in text:
            yield from _aligned(run, indent)
            run = {}
            yield f"{indent}{name} = {text}"
        else:
            run[name] = text
    yield from _aligned(run, indent)


def _aligned(run: Mapping[str, str], indent: str) -> Iterator[str]:
    width = max(map(len, run), default=0)
    for name, text in run.items():
        yield f"{indent}{name:<{width}} = {text}"


def _value(value: Value, depth: int) -> str:
    match value:
        case HclExpression():
            return value.text
        case str():
            return quote(value)
        case bool() | int():
            # HCL writes true and false as JSON does, Python does not.
            return json.dumps(value)
        case Mapping():
            return "\n".join(["{", *_attributes(value, depth + 1), f"{_INDENT * depth}}}"])
        case _:
            return _list([_value(item, depth + 1) for item in value], depth)


def _list(items: list[str], depth: int) -> str:
    line = f"[{', '.join(items)}]"
    if len(line) <= _LONGEST_LIST:
        return line
    indent = _INDENT * (depth + 1)
    return "\n".join(["[", *(f"{indent}{item}," for item in items), f"{_INDENT * depth}]"])
