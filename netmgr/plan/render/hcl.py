"""Terraform's language, as much of it as rendering needs, formatted as `terraform fmt` would.

Attributes that stand together line up at their equals signs; a blank line parts attributes from
blocks (Terraform, "Style Conventions").
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import indent

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
    return "\n\n".join(map(_block, blocks)) + "\n"


def quote(text: str) -> str:
    """A string literal; `${` and `%{`, which would begin a template, are escaped."""
    return json.dumps(text, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")


def _block(block: Block) -> str:
    head = " ".join([block.type, *map(quote, block.labels)])
    attributes = [_attributes(block.attributes)] if block.attributes else []
    return f"{head} {_braces([*attributes, *map(_block, block.blocks)])}"


def _braces(parts: Sequence[str]) -> str:
    inside = indent("\n\n".join(parts), _INDENT)
    return f"{{\n{inside}\n}}" if parts else "{}"


def _attributes(attributes: Mapping[str, Value]) -> str:
    """Runs of one-line attributes are aligned; one of several lines ends a run and is not."""
    lines: list[str] = []
    run: dict[str, str] = {}
    for name, value in attributes.items():
        text = _value(value)
        if "\n" in text:
            lines += [*_aligned(run), f"{name} = {text}"]
            run = {}
        else:
            run[name] = text
    return "\n".join([*lines, *_aligned(run)])


def _aligned(run: Mapping[str, str]) -> Iterator[str]:
    width = max(map(len, run), default=0)
    return (f"{name:<{width}} = {text}" for name, text in run.items())


def _value(value: Value) -> str:
    match value:
        case HclExpression():
            return value.text
        case str():
            return quote(value)
        case bool() | int():
            # HCL writes true and false as JSON does, Python does not.
            return json.dumps(value)
        case Mapping():
            return _braces([_attributes(value)])
        case _:
            items = list(map(_value, value))
            line = f"[{', '.join(items)}]"
            # `terraform fmt` leaves either form as it is: this is for people.
            if len(line) <= _LONGEST_LIST:
                return line
            return "\n".join(["[", *(indent(f"{item},", _INDENT) for item in items), "]"])
