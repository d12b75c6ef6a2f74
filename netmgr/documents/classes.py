"""Traffic classes: names for prefixes whose traffic with pods is counted apart.

Of overlapping prefixes the longest decides, so classes are disjoint, and one may have a hole
that is another's. What lies in a prefix that is not internet and in no class is `internal`. A class
may have prefixes of the internet, also those that a cloud publishes: they are internet no more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, TypeVar

from netmgr.documents.fields import AbsolutePath, Document, PrefixText
from netmgr.documents.schema import Field, PrivateAttr, model_validator
from netmgr.model import PROTECTED
from netmgr.prefixes import Family, Prefix, merge, overlaps

INTERNET, INTERNAL = "internet", "internal"
"""Classes that exist without being named."""

Label = TypeVar("Label")


MOST_PUBLISHED = 2000
"""Prefixes that a class takes from a list: every repair compares them with the kernel's."""
_DATES = ("createDate", "creationTime", "changeNumber")
_PREFIXES = ("ip_prefix", "ipv6_prefix", "ipv4Prefix", "ipv6Prefix")
"""Keys in the lists of Amazon, Google and Microsoft."""


class Published(Document):
    """Prefixes of a list that a cloud publishes: Amazon's, Google's or Microsoft's JSON."""

    file: AbsolutePath
    """The list, as it was downloaded; it is read when the agent starts."""
    region: str | None = None
    """Only what is of this region; Google calls it scope."""
    service: str | None = None
    """Only what is of this service; Microsoft calls it systemService."""
    _prefixes: tuple[Prefix, ...] = PrivateAttr(())

    @property
    def prefixes(self) -> tuple[Prefix, ...]:
        return self._prefixes

    @model_validator(mode="after")
    def _read(self) -> Published:
        try:
            self._prefixes = tuple(merge(map(Prefix.parse, self._listed())))
        except OSError as error:
            raise ValueError(f"{self.file}: {error.strerror}; download the list there") from None
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            raise ValueError(f"{self.file} is no list of a cloud's prefixes: {error}") from None
        if not 0 < (number := len(self._prefixes)) <= MOST_PUBLISHED:
            number_of = f"{self.file} has {number:,} prefixes of this region and service"
            raise ValueError(f"{number_of}; choose others that have 1 to {MOST_PUBLISHED:,}")
        return self

    def _listed(self) -> Iterator[str]:
        listed = json.loads(self.file.read_bytes())
        if not {*_DATES} & listed.keys():
            raise ValueError(f"without {', '.join(_DATES)}, nobody knows how old it is")
        for ranges in _entries(listed):
            regions = {ranges.get("region"), ranges.get("scope"), None}
            services = {ranges.get("service"), ranges.get("systemService"), None}
            if self.region in regions and self.service in services:
                yield from ranges.get("addressPrefixes", ())
                yield from (ranges[key] for key in _PREFIXES if key in ranges)


def _entries(listed: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from listed.get("prefixes", ())
    yield from listed.get("ipv6_prefixes", ())
    yield from (tag["properties"] for tag in listed.get("values", ()))


class TrafficClass(Document):
    """One class: prefixes, a site for all of that site's, or what a published list has."""

    name: Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,18}[a-z0-9])?$")]
    """Becomes `<name>-in` and `<name>-out` in the label `traffic`."""
    prefixes: tuple[PrefixText, ...] = ()
    """What the class consists of, where it is no site."""
    site: str | None = None
    """The site of `sites` whose every prefix is of the class."""
    published: Published | None = None
    """A list of prefixes that a cloud publishes."""

    @model_validator(mode="after")
    def _say_what_they_are(self) -> TrafficClass:
        if [*map(bool, (self.prefixes, self.site, self.published))].count(True) != 1:
            raise ValueError(f"class {self.name}: give either prefixes, site or published")
        if self.name in (INTERNET, INTERNAL, PROTECTED.kind):
            raise ValueError(f"class {self.name} is there without being named; choose another name")
        for prefix in self.published.prefixes if self.published else self.prefixes:
            if prefix.length == 0:
                raise ValueError(
                    f"class {self.name}: {prefix} is everything, so that no internet would be left"
                )
        return self


def resolved(
    classes: Iterable[TrafficClass], sites: Mapping[str, Iterable[Prefix]]
) -> dict[str, tuple[Prefix, ...]]:
    """Each class's prefixes by its name.

    Of published lists, some hold others: a prefix is of the first class that has it.

    ValueError if a class names a site that does not exist, or two have one name or one prefix.
    """
    prefixes_by_name: dict[str, tuple[Prefix, ...]] = {}
    owners: dict[Prefix, str] = {}
    for traffic_class in classes:
        if traffic_class.name in prefixes_by_name:
            raise ValueError(f"two classes are named {traffic_class.name}; name every class once")
        prefixes_by_name[traffic_class.name] = _prefixes_of(traffic_class, sites, owners)
        for prefix in prefixes_by_name[traffic_class.name]:
            if prefix in owners:
                both = f"of class {owners[prefix]} and of class {traffic_class.name}"
                raise ValueError(f"{prefix} is {both}; it can be of one")
            owners[prefix] = traffic_class.name
    return prefixes_by_name


def _prefixes_of(
    traffic_class: TrafficClass,
    sites: Mapping[str, Iterable[Prefix]],
    owners: Mapping[Prefix, str],
) -> tuple[Prefix, ...]:
    if published := traffic_class.published:
        return tuple(prefix for prefix in published.prefixes if prefix not in owners)
    if traffic_class.site is None:
        return traffic_class.prefixes
    if traffic_class.site not in sites:
        known = ", ".join(sites) or "not given"
        raise ValueError(
            f"class {traffic_class.name}: there is no site {traffic_class.site}; sites are {known}"
        )
    return tuple(sites[traffic_class.site])


def disjoint(labelled: Iterable[tuple[Prefix, Label]]) -> dict[Label, list[Prefix]]:
    """Disjoint prefixes for each label: the longest prefix that holds an address decides.

    Of equal prefixes the last one's label counts. Sorted, and as few as possible.
    """
    # Of equal prefixes a dictionary keeps the last.
    decided = dict(labelled)
    pieces: dict[Label, list[Prefix]] = {label: [] for label in decided.values()}
    holes: dict[Prefix, list[Prefix]] = {prefix: [] for prefix in decided}
    for outer, inner in overlaps(decided, lambda prefix: prefix):
        holes[outer].append(inner)
    for outer, label in decided.items():
        pieces[label] += _without(outer, holes[outer])
    return {label: merge(prefixes) for label, prefixes in pieces.items()}


def _without(outer: Prefix, holes: Iterable[Prefix]) -> Iterator[Prefix]:
    """What is left of a prefix without disjoint, sorted holes."""
    first = outer.value
    for hole in holes:
        yield from _span(outer.family, first, hole.value - 1)
        first = hole.last + 1
    yield from _span(outer.family, first, outer.last)


def _span(family: Family, first: int, last: int) -> Iterator[Prefix]:
    """The fewest prefixes from one address to another, both included."""
    while first <= last:
        # The lowest set bit is the size of the largest block that can begin here; 0 has none, and
        # any block can begin there.
        aligned = first & -first or 1 << family.width
        size = min(aligned, 1 << (last - first + 1).bit_length() - 1)
        yield Prefix(family, first, family.width - size.bit_length() + 1)
        first += size
