"""Prefixes that exist already, from a list that somebody keeps, into the plan's `pinned`.

plan.yaml is its author's file: lines are added, none is changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from netmgr.errors import ConfigError
from netmgr.prefixes import Prefix

Pinned = dict[str, tuple[Prefix, ...]]

_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_PAIR = 2


def read_existing(text: str, source: str) -> Pinned:
    """Read a list of prefixes and their owners.

    Three forms are understood: lines or CSV (`name prefix`), a mapping of YAML or JSON (name to
    prefix or prefixes), and what `az network vnet list` prints as JSON.

    Raises:
        ConfigError: it is none of these, or a prefix is malformed.
    """
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError:
        data = text
    if isinstance(data, Mapping):
        pairs = [(str(name), prefixes) for name, prefixes in data.items()]
    elif isinstance(data, list) and all(isinstance(item, Mapping) for item in data):
        pairs = [_vnet(item, source) for item in data]
    else:
        pairs = list(_lines(text, source))
    found: Pinned = {}
    for name, prefixes in pairs:
        key = to_name(name)
        listed = [prefixes] if isinstance(prefixes, str) else prefixes
        if not isinstance(listed, list):
            raise ConfigError(f"{source}: {name}: is no prefix and no list of prefixes")
        found[key] = (*found.get(key, ()), *(_prefix(item, f"{source}: {name}") for item in listed))
    return found


def to_name(text: str) -> str:
    """A name as the plan spells names: lower case letters, digits and hyphens."""
    name = _NOT_IN_NAMES.sub("-", text.lower()).strip("-")
    return name if name[:1].isalpha() else f"net-{name}"


def add_pinned(text: str, known: Mapping[str, tuple[Prefix, ...]], wanted: Pinned, source: str) -> str:
    """The plan's text with what is missing of `wanted` under `pinned`; the same text when nothing is.

    Raises:
        ConfigError: a name has other prefixes already, or `pinned` is written in a way that
            lines cannot be added to.
    """
    missing = {}
    for name, prefixes in wanted.items():
        if name in known and set(prefixes) - set(known[name]):
            has, wants = (", ".join(map(str, some)) for some in (known[name], prefixes))
            raise ConfigError(f"{source}: pinned.{name}: has {has}; add what is missing of {wants} by hand")
        if name not in known:
            missing[name] = prefixes
    if not missing:
        return text
    root = yaml.compose(text, Loader=yaml.CSafeLoader)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    value = next((value for key, value in pairs if key.value == "pinned"), None)
    if value is None:
        return text.rstrip("\n") + "\n\npinned:\n" + "".join(_entries(missing, "  "))
    if not isinstance(value, yaml.MappingNode) or value.flow_style or not value.value:
        raise ConfigError(
            f"{source}:{value.start_mark.line + 1}: pinned: write it with one name a line, then adopt again"
        )
    first = value.value[0][0].start_mark
    lines = text.splitlines(keepends=True)
    lines[first.line : first.line] = _entries(missing, " " * first.column)
    return "".join(lines)


def _entries(pinned: Pinned, indent: str) -> list[str]:
    return [
        line
        for name in sorted(pinned)
        for line in (f"{indent}{name}:\n", *(f"{indent}  - {prefix}\n" for prefix in pinned[name]))
    ]


def _vnet(item: Mapping[str, Any], source: str) -> tuple[str, object]:
    space = item.get("addressSpace")
    if "name" not in item or not isinstance(space, Mapping) or "addressPrefixes" not in space:
        raise ConfigError(
            f"{source}: an entry has no name or no addressSpace.addressPrefixes, as az network vnet list has"
        )
    return str(item["name"]), space["addressPrefixes"]


def _lines(text: str, source: str) -> Iterable[tuple[str, object]]:
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words or (number == 1 and words == ["name", "prefix"]):
            continue
        if len(words) != _PAIR:
            raise ConfigError(f"{source}:{number}: is not a name and a prefix: {line.strip()!r}")
        yield words[0], words[1]


def _prefix(text: object, where: str) -> Prefix:
    try:
        return Prefix.parse(str(text))
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
