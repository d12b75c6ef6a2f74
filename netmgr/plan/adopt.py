"""Adopting what exists already: from a list to the plan's `pinned` and `exclude`.

plan.yaml is its author's file: lines are added, none is changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import netaddr
import yaml

from netmgr.documents import yaml_loader
from netmgr.documents.diagnostics import listed
from netmgr.documents.yaml_loader import Loader, Unusable
from netmgr.errors import ConfigError
from netmgr.plan.clouds import registry
from netmgr.plan.clouds.cloud import ListedNetwork
from netmgr.plan.derive import locked_subnets
from netmgr.plan.document import Exclusion, PlanDocument
from netmgr.plan.lock import LockDocument
from netmgr.prefixes import Address, Prefix

Pinned = dict[str, list[Prefix]]

_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Existing:
    """Prefixes by owner, and (network, subnet, prefix) of every subnet that is listed."""

    prefixes: Pinned
    subnets: tuple[tuple[str, str, Prefix], ...] = ()


def read_existing(text: str, source: str) -> Existing:
    """Read a list of prefixes and their owners.

    Three forms are understood: lines or CSV (`name prefix`), a mapping of YAML or JSON (name to
    prefix or prefixes), and the networks that a cloud's own tool lists as JSON. A prefix may be a
    range `FIRST-LAST`. ConfigError if it has none of these forms, or a prefix is malformed.
    """
    prefixes_by_owner: Pinned = {}
    subnets = []
    for network in _listed(text, source):
        owner, where = to_name(network.name), f"{source}: {network.name}"
        prefixes = [network.prefixes] if isinstance(network.prefixes, str) else network.prefixes
        if not isinstance(prefixes, list):
            raise ConfigError(f"{where}: is no prefix and no list of prefixes")
        prefixes_by_owner.setdefault(owner, []).extend(_prefixes(prefixes, where))
        for name, parts in network.subnets:
            subnets += [(owner, name, prefix) for prefix in _prefixes(parts, f"{where}/{name}")]
    return Existing(prefixes_by_owner, tuple(subnets))


def _listed(text: str, source: str) -> list[ListedNetwork]:
    try:
        data = yaml_loader.load(text)
    except Unusable as error:
        raise ConfigError(f"{source}: {error.problem}") from None
    except yaml.YAMLError:
        # Lines and CSV need not be YAML.
        data = None
    if isinstance(data, Mapping):
        return [ListedNetwork(str(name), prefixes, ()) for name, prefixes in data.items()]
    if isinstance(data, list) and data and all(isinstance(item, Mapping) for item in data):
        return registry.read_networks(data, source)
    return list(_lines(text, source))


def called(existing: Existing, names: Iterable[str], plan: PlanDocument) -> Existing:
    """`existing` with the plan's names for owners; `names` are `OWNER=SITE`.

    ConfigError if the list has no such owner, or the plan no such cluster.
    """
    sites = {}
    for assignment in names:
        name, _, site = assignment.partition("=")
        if to_name(name) not in existing.prefixes:
            raise ConfigError(
                f"--as {assignment}: the list has no {name!r}; it has {listed(existing.prefixes)}"
            )
        # An unknown site would be pinned as taken, and the cluster would get other addresses.
        if not plan.is_site(site):
            raise ConfigError(
                f"--as {assignment}: the plan has no cluster {site!r}; "
                f"it has {listed(plan.clusters)}"
            )
        sites[to_name(name)] = site
    prefixes_by_site: Pinned = {}
    for name, prefixes in existing.prefixes.items():
        prefixes_by_site.setdefault(sites.get(name, name), []).extend(prefixes)
    subnets = [(sites.get(owner, owner), name, prefix) for owner, name, prefix in existing.subnets]
    return Existing(prefixes_by_site, tuple(subnets))


def live_subnets(
    plan: PlanDocument, lock: LockDocument | None, existing: Existing
) -> list[Exclusion]:
    """Subnets of the plan's own networks that neither plan nor lock has: never allocated from.

    Other networks are avoided as a whole.
    """
    own = {subnet.name: subnet.prefixes for subnet in locked_subnets(lock)} if lock else {}
    known = [exclusion.prefix for exclusion in plan.exclude]
    for _, spec in plan.node_pools():
        known += chain.from_iterable(spec.subnets)
    return [
        Exclusion(prefix=prefix, reason=f"subnet {name} of {owner}")
        for owner, name, prefix in existing.subnets
        if plan.is_site(owner)
        and prefix not in own.get(name, ())
        and not any(known_prefix.covers(prefix) for known_prefix in known)
    ]


def to_name(text: str) -> str:
    """A name as the plan spells names: lower case letters, digits and hyphens."""
    name = _NOT_IN_NAMES.sub("-", text.lower()).strip("-")
    # A name becomes part of resources' and nodes' names, and so begins with a letter.
    return name if name[:1].isalpha() else f"net-{name}"


def with_adopted(
    text: str, plan: PlanDocument, adopted: Existing, live: Iterable[Exclusion], source: str
) -> str:
    """The plan's text with what it lacks under `pinned` and `exclude`.

    Raises:
        ConfigError: a name has other prefixes already, or one of the two is written in a way that
            lines cannot be added to.
    """
    pinned: list[str] = []
    for name, prefixes in sorted(adopted.prefixes.items()):
        has = plan.pinned.get(name)
        if has is None:
            pinned += [f"{name}:", *(f"  - {prefix}" for prefix in prefixes)]
        elif not set(prefixes) <= set(has):
            raise ConfigError(
                f"{source}: pinned.{name}: has {listed(has)}; "
                f"add what is missing of {listed(prefixes)} by hand"
            )
    excluded: list[str] = []
    for exclusion in live:
        # JSON's string is one in YAML, too, whatever characters a subnet's name has.
        excluded += [f"- prefix: {exclusion.prefix}", f"  reason: {json.dumps(exclusion.reason)}"]
    return _with_lines(_with_lines(text, "pinned", pinned, source), "exclude", excluded, source)


def _with_lines(text: str, key: str, added: Sequence[str], source: str) -> str:
    """The text with lines added to a key's block, or with key and lines at the end."""
    if not added:
        return text
    # The nodes of YAML have line and column; dumping the parsed plan would lose comments and order.
    root = yaml.compose(text, Loader=Loader)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    value = next((value for name, value in pairs if name.value == key), None)
    if value is None:
        return text.rstrip("\n") + f"\n\n{key}:\n" + "".join(f"  {line}\n" for line in added)
    if not isinstance(value, yaml.CollectionNode) or value.flow_style or not value.value:
        raise ConfigError(
            f"{source}:{value.start_mark.line + 1}: {key}: "
            "write it with one name or item a line, then adopt again"
        )
    # A mapping's block begins with its first key, a list's with the hyphen before its first item.
    first = value.start_mark
    whole = text.splitlines(keepends=True)
    whole[first.line : first.line] = [f"{' ' * first.column}{line}\n" for line in added]
    return "".join(whole)


def _lines(text: str, source: str) -> Iterator[ListedNetwork]:
    for number, line in enumerate(text.splitlines(), 1):
        match line.partition("#")[0].replace(",", " ").split():
            case []:
                continue
            case ["name", "prefix"] if number == 1:
                continue
            case [name, prefix]:
                yield ListedNetwork(name, prefix, ())
            case _:
                raise ConfigError(
                    f"{source}:{number}: is not a name and a prefix: {line.strip()!r}"
                )


def _prefixes(texts: Iterable[object], where: str) -> Iterator[Prefix]:
    """Prefixes, and those of ranges `FIRST-LAST`, as other address managers list them."""
    for text in map(str, texts):
        try:
            yield from _range(text) if "-" in text else (Prefix.parse(text),)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None


def _range(text: str) -> Iterator[Prefix]:
    first, last = map(Address.parse, text.split("-", 1))
    if first.family is not last.family or first > last:
        raise ValueError(f"{text} is no range: its first address has to come before its last")
    return map(Prefix.parse, map(str, netaddr.iprange_to_cidrs(str(first), str(last))))
