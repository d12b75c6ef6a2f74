"""Pods' counters in the map that the programs at links count in.

An element is found by its link and class, and says itself whose it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count

from netmgr.documents.classes import INTERNAL
from netmgr.kernel import netlink
from netmgr.kernel.bpf import BpfMap
from netmgr.model import Counter, Sample, Traffic
from netmgr.prefixes import Address, Family
from netmgr.rules import link_programs
from netmgr.rules.at_links import AtLinks
from netmgr.rules.link_programs import ELEMENT, ELEMENT_KEY
from netmgr.rules.observed import sample


class LinkElements:
    def __init__(self, pods: BpfMap) -> None:
        self._map = pods
        self._keys: dict[Counter, bytes] = {}
        self._counters: dict[tuple[bytes, bytes, bytes], Counter] = {}
        self._numbers = {Traffic.INTERNET_IN.kind: link_programs.INTERNET}
        for _ in self.listed():
            pass

    def numbers(self, at_links: AtLinks) -> dict[str, int]:
        """The numbers of these classes."""
        kinds = [INTERNAL, *(name for name, _ in at_links.classes)] if at_links.classes else []
        return {kind: self._number(kind) for kind in kinds}

    def _number(self, kind: str) -> int:
        if kind not in self._numbers:
            taken = self._numbers.values()
            free = (number for number in count(link_programs.INTERNET) if number not in taken)
            self._numbers[kind] = next(free)
        return self._numbers[kind]

    def listed(self) -> Iterator[tuple[int, Sample]]:
        """The index of each one's link, and what it shows."""
        # As in `Samples`: nearly all are those of the last listing.
        former, self._counters = self._counters, {}
        for key, element in self._map.listed():
            *counts, packed, name = ELEMENT.unpack(element)
            link, number, row = ELEMENT_KEY.unpack(key)
            counter = former.get((key, packed, name))
            if counter is None:
                kind = netlink.string_of(name)
                # Each class keeps its number as long as an element has it.
                self._numbers[kind] = number
                address = Address.unpack(packed if row & 2 else packed[-Family.V4.octets :])
                counter = Counter.of_pod(address, Traffic(f"{kind}-{'in' if row & 1 else 'out'}"))
            self._keys[counter] = key
            self._counters[key, packed, name] = counter
            yield link, _sample(counter, *counts)

    def add(self, link: int, address: Address, traffic: Traffic, packets: int) -> None:
        """Begin one at these packets; one that is there goes on counting."""
        row = link_programs.row_of(address.family, traffic)
        key = ELEMENT_KEY.pack(link, self._number(traffic.kind), row)
        former = self._keys.setdefault(Counter.of_pod(address, traffic), key)
        if former != key:
            # Of a link that was made anew, and has another index.
            self._map.delete(former)
            self._keys[Counter.of_pod(address, traffic)] = key
        packed, name = link_programs.mapped(address), traffic.kind.encode()
        self._map.add(key, ELEMENT.pack(packets, 0, 0, 0, packed, name))

    def read(self, counters: Iterable[Counter]) -> Iterator[Sample]:
        """Those of these that are there."""
        for counter in counters:
            element = self._map.get(self._keys.get(counter, bytes(ELEMENT_KEY.size)))
            if element is not None:
                *counts, _, _ = ELEMENT.unpack(element)
                yield _sample(counter, *counts)

    def delete(self, counters: Iterable[Counter]) -> None:
        for counter in list(counters):
            if key := self._keys.pop(counter, None):
                self._map.delete(key)


def _sample(counter: Counter, packets: int, octets: int, headers: int, unknown: int) -> Sample:
    return sample(counter, octets + unknown, packets, octets + headers, octets)
