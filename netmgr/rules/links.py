"""The backend that counts at links what is forwarded; all else is nftables' as ever."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from netmgr.kernel import netlink
from netmgr.model import REMOTE_PODS, Counter, Sample, Sender
from netmgr.prefixes import Address
from netmgr.rules import link_programs, transaction
from netmgr.rules.at_links import AtLinks
from netmgr.rules.classifier import pod_set
from netmgr.rules.link_elements import LinkElements
from netmgr.rules.link_filters import LinkFilters
from netmgr.rules.link_programs import ONLY_KEY, PODS_MAP, SUMS_MAP, Peers
from netmgr.rules.model import Element, Hook, Ruleset, Sets
from netmgr.rules.nftables import NftablesBackend
from netmgr.rules.observed import Observed


class LinksBackend(NftablesBackend):
    """Holds the ruleset in nftables, but for what counts what is forwarded."""

    name = "links"

    def __init__(self) -> None:
        super().__init__()
        self.share_table(shared=False)
        self._filters = LinkFilters()
        self._lock = threading.RLock()
        # Where pods' packets come in, as far as it is known.
        self._links: dict[Element, str] = {}

    @cached_property
    def _elements(self) -> LinkElements:
        return LinkElements(self._filters.maps[PODS_MAP])

    @cached_property
    def _life(self) -> int:
        """Of the node's counters, which nobody can put back but together with their map."""
        return self._filters.maps[SUMS_MAP].number

    def share_table(self, *, shared: bool) -> None:
        super().share_table(shared=shared)
        self.abilities = replace(self.abilities, counts_at_links=True, counts_by_rules=shared)

    def observe(self, desired: Ruleset) -> Observed:
        with self._lock:
            observed, at_links = super().observe(desired), desired.at_links
            if at_links is None:
                return observed
            self._know(element for members in desired.members.values() for element in members)
            wanted = {
                spec.name: desired.members[spec.name] for spec in desired.sets if spec.at_links
            }
            counting = frozenset(
                self._links[element] for members in wanted.values() for element in members
            )
            members, orphans = self._held(wanted)
            lacking = self._filters.look(counting, at_links, self._peers(at_links))
            return replace(
                observed,
                members={**observed.members, **members},
                orphans=observed.orphans | orphans,
                link_faults=tuple(lacking.faults),
                counting=counting,
            )

    def _know(self, elements: Iterable[Element]) -> None:
        self._links |= {
            element.address: element.link for element in elements if isinstance(element, Sender)
        }

    def _held(
        self, wanted: Mapping[str, frozenset[Element]]
    ) -> tuple[dict[str, frozenset[Element]], set[str]]:
        """Pods with an element, by set, and sets that have no business there."""
        present = _present()
        numbers = {address: present.get(name, 0) for address, name in self._links.items()}
        linked = {address for address, number in numbers.items() if number}
        # Where there is no link, there is nothing that could be lost.
        held: dict[str, set[Element]] = {name: {*wanted[name]} - linked for name in wanted}
        orphans: set[str] = set()
        for link, shown in self._elements.listed():
            name, address = _set_name(shown.counter), shown.counter.subject
            if name not in held:
                orphans.add(name)
            elif isinstance(address, Address) and numbers.get(address, 0) in (0, link):
                held[name].add(address)
        return {name: frozenset(held[name]) for name in held}, orphans

    def _peers(self, at_links: AtLinks) -> Peers:
        return link_programs.peers(at_links, self._elements.numbers(at_links))

    def apply(self, operations: Sequence[transaction.Operation]) -> None:
        """Carry the operations out; what is nftables' in one transaction."""
        with self._lock:
            added = [part for part in operations if isinstance(part, transaction.AddElements)]
            for addition in added:
                self._know(addition.elements)
            pods = {element for part in added if part.spec.at_links for element in part.elements}
            numbers = self._indexes(pods)
            try:
                # Before they have counters: killed in between, an agent leaves a new link without
                # one, which is no loss, and not one that may have passed packets uncounted.
                self._filters.join(numbers.values())
            finally:
                # Also where a link is refused, as one is for good that has another's `ingress`.
                self._apply(operations, numbers)

    def _apply(
        self, operations: Sequence[transaction.Operation], numbers: Mapping[str, int]
    ) -> None:
        of_rules = [part for part in operations if not self._carries_out(part, numbers)]
        try:
            for part in operations:
                if isinstance(part, transaction.CountAtLinks):
                    self._filters.put(part.links, part.at_links, self._peers(part.at_links))
        finally:
            if of_rules:
                super().apply(of_rules)

    def _indexes(self, pods: Iterable[Element]) -> dict[str, int]:
        """Of these pods' links, those that are there."""
        names = {self._links.get(address, "") for address in pods}
        return {name: number for name in names if (number := netlink.index_of(name))}

    def _carries_out(self, operation: transaction.Operation, numbers: Mapping[str, int]) -> bool:
        """Carry it out if it is about what counts at links, of which these are there."""
        match operation:
            case transaction.CountAtLinks():
                pass  # `_apply`
            case transaction.AddElements(spec=spec, elements=elements) if spec.at_links:
                for address in elements:
                    # Without a link it is added when there is one (`_held`).
                    link = numbers.get(self._links.get(address, ""))
                    if link and spec.counts and isinstance(address, Address):
                        self._elements.add(link, address, spec.counts, operation.packets)
            case transaction.RemoveElements(spec=spec, elements=elements) if spec.at_links:
                self._elements.delete(map(spec.counter, elements))
                for element in elements:
                    self._links.pop(element, None)
            case transaction.DeleteOrphan(name=name) if name.startswith("link_"):
                counters = [shown.counter for _, shown in self._elements.listed()]
                self._elements.delete(filter(lambda counter: _set_name(counter) == name, counters))
            case _:
                return isinstance(operation, transaction.CreateSet) and operation.spec.at_links
        return True

    def read(self, desired: Ruleset) -> list[Sample]:
        """The node's counters, then the pods'."""
        with self._lock:
            # While one way of counting takes over from the other, both have the same counters.
            samples = {shown.counter: shown for shown in super().read(desired)}
            samples |= {shown.counter: shown for shown in self._sums(desired)}
            samples |= {shown.counter: shown for _, shown in self._elements.listed()}
            return list(samples.values())

    def _sums(self, desired: Ruleset) -> Iterator[Sample]:
        cluster = desired.at_links.cluster if desired.at_links else ()
        remote = {prefix.family for prefix in cluster}
        shown = link_programs.sums(self._filters.maps[SUMS_MAP].get(ONLY_KEY) or b"")
        for (family, traffic), by_subject in shown.items():
            packets, octets = map(sum, zip(*by_subject.values(), strict=True))
            forwarded = Counter(Hook.FORWARD.upper(), family, traffic)
            yield Sample(forwarded, octets, packets, self._life)
            for subject, (number, size) in by_subject.items():
                if subject != REMOTE_PODS or family in remote:
                    yield Sample(Counter(subject, family, traffic), size, number, self._life)

    def read_pods(self, pods: Sets) -> list[Sample]:
        of_rules = {spec: members for spec, members in pods.items() if not spec.at_links}
        at_links = pods.keys() - of_rules.keys()
        counters = (spec.counter(element) for spec in at_links for element in pods[spec])
        with self._lock:
            return [*super().read_pods(of_rules), *self._elements.read(counters)]

    def remove(self) -> None:
        self._filters.remove()
        super().remove()

    def close(self) -> None:
        super().close()
        self._filters.close()


def _present() -> dict[str, int]:
    """The index of each link by its name."""
    # Not by asking for each pod's: for one that is gone the kernel looks for a module (dev_load).
    return {name: index for index, name in socket.if_nameindex()}


def _set_name(counter: Counter) -> str:
    return pod_set(counter.traffic, counter.family, at_links=True).name
