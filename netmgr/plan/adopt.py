"""What exists already, from a list that somebody keeps or the cloud prints, into the plan's `pinned` and `exclude`.

plan.yaml is its author's file: lines are added, none is changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from netmgr import yaml_loader
from netmgr.errors import ConfigError
from netmgr.plan.derive import segment_name
from netmgr.plan.document import Exclusion, PlanDocument
from netmgr.plan.lock import LockDocument
from netmgr.prefixes import Prefix
from netmgr.sites import HUB
from netmgr.yaml_loader import BeyondBounds, Loader

Pinned = dict[str, tuple[Prefix, ...]]

_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_PAIR = 2


@dataclass(frozen=True, slots=True)
class Existing:
    """What is there: prefixes by owner, and (VNet, subnet, prefix) of every subnet that the cloud names."""

    prefixes: Pinned
    subnets: tuple[tuple[str, str, Prefix], ...] = ()


def read_existing(text: str, source: str) -> Existing:
    """Read a list of prefixes and their owners.

    Three forms are understood: lines or CSV (`name prefix`), a mapping of YAML or JSON (name to
    prefix or prefixes), and what `az network vnet list` prints as JSON. Of that are read: a
    VNet's `name` and `addressSpace.addressPrefixes`, and of each of its `subnets` `name`,
    `addressPrefix` and `addressPrefixes`; nothing else.

    Raises:
        ConfigError: it is none of these, or a prefix is malformed.
    """
    try:
        data = yaml_loader.load(text)
    except BeyondBounds as error:
        raise ConfigError(f"{source}: {error.problem}") from None
    except yaml.YAMLError:
        data = text
    vnets = data if isinstance(data, list) and all(isinstance(item, Mapping) for item in data) else []
    if isinstance(data, Mapping):
        pairs = [(str(name), prefixes) for name, prefixes in data.items()]
    elif vnets:
        pairs = [_vnet(item, source) for item in vnets]
    else:
        pairs = list(_lines(text, source))
    found: Pinned = {}
    for name, prefixes in pairs:
        key = to_name(name)
        listed = [prefixes] if isinstance(prefixes, str) else prefixes
        if not isinstance(listed, list):
            raise ConfigError(f"{source}: {name}: is no prefix and no list of prefixes")
        found[key] = (*found.get(key, ()), *(_prefix(item, f"{source}: {name}") for item in listed))
    return Existing(found, tuple(subnet for item in vnets for subnet in _subnets(item, source)))


def called(existing: Existing, names: Iterable[str], plan: PlanDocument) -> Existing:
    """What exists, with owners called as the plan calls them; `names` are `OWNER=SITE`.

    Raises:
        ConfigError: the list has no such owner, or the plan no such cluster.
    """
    sites = {}
    for each in names:
        name, _, site = each.partition("=")
        if to_name(name) not in existing.prefixes:
            raise ConfigError(f"--as {each}: the list has no {name!r}; it has {', '.join(existing.prefixes)}")
        if site != HUB and site not in plan.clusters:
            raise ConfigError(f"--as {each}: the plan has no cluster {site!r}; it has {', '.join(plan.clusters)}")
        sites[to_name(name)] = site
    found: Pinned = {}
    for name, prefixes in existing.prefixes.items():
        site = sites.get(name, name)
        found[site] = (*found.get(site, ()), *prefixes)
    subnets = tuple((sites.get(vnet, vnet), name, prefix) for vnet, name, prefix in existing.subnets)
    return Existing(found, subnets)


def live_subnets(plan: PlanDocument, lock: LockDocument | None, existing: Existing) -> list[Exclusion]:
    """Subnets of the plan's own VNets that nothing may be allocated from: what neither plan nor lock has already.

    Other VNets are kept out of as a whole.
    """
    own = set(_allocated(lock)) if lock else set()
    pinned = {
        prefix
        for cluster in plan.clusters.values()
        for spec in cluster.node_pools.values()
        for pin in spec.subnets
        for prefix in (*pin.hosts, *pin.pods)
    }
    known = (*pinned, *(each.prefix for each in plan.exclude))
    return [
        Exclusion(prefix=prefix, reason=f"subnet {name} of {vnet}")
        for vnet, name, prefix in existing.subnets
        if (vnet in plan.clusters or vnet == HUB)
        and (name, prefix) not in own
        and not any(each.covers(prefix) for each in known)
    ]


def _allocated(lock: LockDocument) -> Iterator[tuple[str, Prefix]]:
    """The lock's own subnets, by the names that they are rendered with."""
    yield from ((f"{HUB}_routers", prefix) for prefix in lock.hub.routers.prefixes)
    for number, subnet in enumerate(lock.hub.researchers):
        yield from ((f"{HUB}_researchers-{number}", prefix) for prefix in subnet.prefixes)
    for name, held in lock.clusters.items():
        yield from ((f"{name}_nat", prefix) for prefix in held.nat.prefixes)
        for pool, spec in held.node_pools.items():
            for number, segment in enumerate(spec.segments):
                full = f"{name}-{segment_name(pool, number)}"
                yield from ((full, prefix) for part in segment.layouts for prefix in (part.hosts, part.pods))


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
    lines = [line for name in sorted(missing) for line in (f"{name}:", *(f"  - {prefix}" for prefix in missing[name]))]
    return _with_lines(text, "pinned", lines, source)


def add_excluded(text: str, missing: Iterable[Exclusion], source: str) -> str:
    """The plan's text with exclusions added.

    Raises:
        ConfigError: `exclude` is written in a way that lines cannot be added to.
    """
    lines = [line for each in missing for line in (f"- prefix: {each.prefix}", f"  reason: {json.dumps(each.reason)}")]
    return _with_lines(text, "exclude", lines, source)


def _with_lines(text: str, key: str, lines: Iterable[str], source: str) -> str:
    """The text with lines at the beginning of a key's block, or, where the key is missing, with both at the end."""
    added = list(lines)
    if not added:
        return text
    root = yaml.compose(text, Loader=Loader)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    value = next((value for name, value in pairs if name.value == key), None)
    if value is None:
        return text.rstrip("\n") + f"\n\n{key}:\n" + "".join(f"  {line}\n" for line in added)
    if not isinstance(value, yaml.CollectionNode) or value.flow_style or not value.value:
        raise ConfigError(
            f"{source}:{value.start_mark.line + 1}: {key}: write it with one name or item a line, then adopt again"
        )
    # A mapping's block begins with its first key, a list's with the hyphen before its first item.
    first = value.start_mark
    whole = text.splitlines(keepends=True)
    whole[first.line : first.line] = [f"{' ' * first.column}{line}\n" for line in added]
    return "".join(whole)


def _vnet(item: Mapping[str, Any], source: str) -> tuple[str, object]:
    space = item.get("addressSpace")
    if "name" not in item or not isinstance(space, Mapping) or "addressPrefixes" not in space:
        raise ConfigError(
            f"{source}: an entry has no name or no addressSpace.addressPrefixes, as az network vnet list has"
        )
    return str(item["name"]), space["addressPrefixes"]


def _subnets(item: Mapping[str, Any], source: str) -> Iterable[tuple[str, str, Prefix]]:
    vnet = str(item["name"])
    for subnet in item.get("subnets") or ():
        name = str(subnet.get("name", "")) if isinstance(subnet, Mapping) else ""
        prefixes = (subnet.get("addressPrefixes") or [subnet.get("addressPrefix")]) if name else []
        if not prefixes or prefixes == [None]:
            raise ConfigError(f"{source}: {vnet}: a subnet has no name, or neither addressPrefix nor addressPrefixes")
        yield from ((to_name(vnet), name, _prefix(prefix, f"{source}: {vnet}/{name}")) for prefix in prefixes)


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
