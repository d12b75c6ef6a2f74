"""Traffic classes: names for prefixes whose traffic with pods is counted apart.

Of overlapping prefixes the longest decides, so classes are disjoint, and one may have a hole
that is another's. What lies in a prefix that is not internet and in no class is `internal`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, TypeVar

from netmgr.documents.fields import Document, PrefixText
from netmgr.documents.schema import Field, model_validator
from netmgr.model import PROTECTED
from netmgr.prefixes import Family, Prefix, merge

INTERNET, INTERNAL = "internet", "internal"
"""Classes that exist without being named."""

Label = TypeVar("Label")


class TrafficClass(Document):
    """One class: prefixes, or the name of a site for all of that site's."""

    name: Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,18}[a-z0-9])?$")]
    """Becomes `<name>-in` and `<name>-out` in the label `traffic`."""
    prefixes: tuple[PrefixText, ...] = ()
    """What the class consists of, where it is no site."""
    site: str | None = None
    """The site of `sites` whose every prefix is of the class."""

    @model_validator(mode="after")
    def _say_what_they_are(self) -> TrafficClass:
        if bool(self.prefixes) == (self.site is not None):
            raise ValueError(f"class {self.name}: give either prefixes or site")
        if self.name in (INTERNET, INTERNAL, PROTECTED.kind):
            raise ValueError(f"class {self.name} is there without being named; choose another name")
        for prefix in self.prefixes:
            if prefix.length == 0:
                raise ValueError(
                    f"class {self.name}: {prefix} is everything, so that no internet would be left"
                )
        return self


def resolved(
    classes: Iterable[TrafficClass], sites: Mapping[str, Iterable[Prefix]]
) -> dict[str, tuple[Prefix, ...]]:
    """Each class's prefixes by its name.

    ValueError if a class names a site that does not exist, or two have one name or one prefix.
    """
    prefixes_by_name: dict[str, tuple[Prefix, ...]] = {}
    owners: dict[Prefix, str] = {}
    for traffic_class in classes:
        if traffic_class.name in prefixes_by_name:
            raise ValueError(f"two classes are named {traffic_class.name}; name every class once")
        prefixes_by_name[traffic_class.name] = _prefixes_of(traffic_class, sites)
        for prefix in prefixes_by_name[traffic_class.name]:
            if prefix in owners:
                both = f"of class {owners[prefix]} and of class {traffic_class.name}"
                raise ValueError(f"{prefix} is {both}; it can be of one")
            owners[prefix] = traffic_class.name
    return prefixes_by_name


def _prefixes_of(
    traffic_class: TrafficClass, sites: Mapping[str, Iterable[Prefix]]
) -> tuple[Prefix, ...]:
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
    for outer, label in decided.items():
        inner = [prefix for prefix in decided if outer.covers(prefix)]
        inner.remove(outer)
        pieces[label] += _without(outer, merge(inner))
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
