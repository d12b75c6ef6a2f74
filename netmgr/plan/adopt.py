"""Adopting what exists already: from a list to the plan's `pinned` and `exclude`.

plan.yaml is its author's file: lines are added, none is changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain
from operator import itemgetter

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
from netmgr.prefixes import Address, Prefix, overlaps

Pinned = dict[str, list[Prefix]]

_LONGEST_NAME, _DIGEST = 32, 6
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Existing:
    """Prefixes by owner, and (network, subnet, prefix) of every subnet that is listed."""

    prefixes: Pinned
    subnets: tuple[tuple[str, str, Prefix], ...] = ()
    ids: Mapping[str, str] = field(default_factory=dict)
    """By owner, where the list has any."""

    def owner(self, option: str, text: str) -> str:
        """That of a name, or of a resource id; ConfigError, which names the option, if none is."""
        for owner in self.prefixes:
            if to_name(text) == owner or text.lower() == self.ids.get(owner, "").lower():
                return owner
        has = listed(self.prefixes)
        raise ConfigError(f"{option}: the list has no {text!r}; it has {has}")


def read_existing(text: str, source: str) -> Existing:
    """Read a list of prefixes and their owners.

    Three forms are understood: lines or CSV (`name prefix`), a mapping of YAML or JSON (name to
    prefix or prefixes), and the networks that a cloud's own tool lists as JSON. A prefix may be a
    range `FIRST-LAST`. ConfigError if it has none of these forms, or a prefix is malformed.
    """
    prefixes_by_owner: Pinned = {}
    subnets, ids = [], {}
    for network in _listed(text, source):
        owner, where = to_name(network.name), f"{source}: {network.name}"
        prefixes = [network.prefixes] if isinstance(network.prefixes, str) else network.prefixes
        if not isinstance(prefixes, list):
            raise ConfigError(f"{where}: is no prefix and no list of prefixes")
        prefixes_by_owner.setdefault(owner, []).extend(_prefixes(prefixes, where))
        ids[owner] = network.id
        for name, parts in network.subnets:
            subnets += [(owner, name, prefix) for prefix in _prefixes(parts, f"{where}/{name}")]
    if not prefixes_by_owner:
        remedy = "az prints those of one subscription: az account set --subscription NAME"
        raise ConfigError(f"{source}: lists no network and no prefix", remedy)
    return Existing(prefixes_by_owner, tuple(subnets), ids)


def _listed(text: str, source: str) -> Iterable[ListedNetwork]:
    try:
        data = yaml_loader.load(text)
    except Unusable as error:
        raise ConfigError(f"{source}: {error.problem}") from None
    except yaml.YAMLError as error:
        if text.lstrip().startswith(("{", "[")):
            raise ConfigError(
                f"{source}: is no whole JSON: {' '.join(str(error).split())}"
            ) from None
        # Lines and CSV need not be YAML.
        data = None
    if (networks := registry.read_networks(data, source)) is not None:
        return networks
    if data in ([], {"value": []}):
        return ()
    if isinstance(data, Mapping):
        return [ListedNetwork(str(name), prefixes, ()) for name, prefixes in data.items()]
    return _lines(text, source)


def called(
    existing: Existing,
    plan: PlanDocument,
    names: Iterable[str] | None = None,
    only: Iterable[str] | None = None,
    skip: Iterable[str] | None = None,
) -> Existing:
    """`existing` with the plan's names for owners; `names` are `OWNER=SITE`.

    With `only`, nobody else's, and never those of `skip`. ConfigError if the list has no such
    owner, or the plan no such cluster.
    """
    sites = dict(_assigned(existing, plan, names or ()))
    wanted = {existing.owner("--only", text) for text in only or ()} or set(existing.prefixes)
    wanted -= {existing.owner("--skip", text) for text in skip or ()}
    prefixes_by_site: Pinned = {}
    for owner in sorted(wanted, key=list(existing.prefixes).index):
        if owner not in sites:
            _refuse_ambiguous(existing, plan, owner, sites.values())
        prefixes_by_site.setdefault(sites.get(owner, owner), []).extend(existing.prefixes[owner])
    subnets = (
        (sites.get(owner, owner), name, prefix)
        for owner, name, prefix in existing.subnets
        if owner in wanted
    )
    ids = {sites.get(owner, owner): existing.ids[owner] for owner in wanted}
    return Existing(prefixes_by_site, tuple(subnets), ids)


def _assigned(
    existing: Existing, plan: PlanDocument, names: Iterable[str]
) -> Iterator[tuple[str, str]]:
    for assignment in names:
        name, _, site = assignment.rpartition("=")
        if not name:
            raise ConfigError(f"--as {assignment}: has to be OWNER=SITE, such as VNET={assignment}")
        owner = existing.owner(f"--as {assignment}", name)
        # An unknown site would be pinned as taken, and the cluster would get other addresses.
        if not plan.is_site(site):
            raise ConfigError(
                f"--as {assignment}: the plan has no cluster {site!r}; "
                f"it has {listed(plan.clusters)}"
            )
        yield owner, site


def _refuse_ambiguous(
    existing: Existing, plan: PlanDocument, owner: str, assigned: Iterable[str]
) -> None:
    # Its own name, which the list may give to others, too, or to a peer without its subnets.
    name = to_name((existing.ids[owner] or owner).rpartition("/")[-1])
    if plan.is_site(name) and name not in {*existing.prefixes, *assigned}:
        message = f"{owner} ({existing.ids[owner]}) may be the plan's {name}"
        raise ConfigError(message, f"if it is, --as {owner}={name}; if not, --skip {owner}")


def refuse_overlaps(existing: Existing, source: str) -> None:
    """ConfigError with every pair of owners that share an address."""
    every = [(prefix, name) for name, prefixes in existing.prefixes.items() for prefix in prefixes]
    lines = [
        f"{source}: {inner} overlaps {outer}; they are of {other} and {owner}: "
        f"leave one out, for example --skip {existing.ids.get(other) or other}"
        for (outer, owner), (inner, other) in overlaps(every, itemgetter(0))
        if owner != other
    ]
    if lines:
        raise ConfigError("\n".join(lines), "nothing was written; or name all others with --only")


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
    """A name as the plan spells names: at most 32 lower case letters, digits and hyphens."""
    name = _NOT_IN_NAMES.sub("-", text.lower()).strip("-")
    # A name becomes part of resources' and nodes' names, and so begins with a letter.
    name = name if name[:1].isalpha() else f"net-{name}".rstrip("-")
    if len(name) <= _LONGEST_NAME:
        return name
    # Names that differ behind it must not become one.
    kept = name[: _LONGEST_NAME - _DIGEST - 1].rstrip("-")
    return f"{kept}-{sha256(name.encode()).hexdigest()[:_DIGEST]}"


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
                    f"{source}:{number}: is not a name and a prefix: {line.strip()!r}; "
                    "of az take: --output json"
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
