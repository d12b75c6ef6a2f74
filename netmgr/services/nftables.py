"""The nftables backend of Services: one table of its own, one transaction for each change.

Everything in table `inet netmgr-services` is ours; no other table is read. The whole table is
compared at the start, and after every transaction of another program. The generation number of
nftables shows those, so looking for drift costs a quiet host nothing.
"""

from __future__ import annotations

import errno
import functools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from netmgr.errors import KernelError, TryAgainLater
from netmgr.kernel import nf_tables
from netmgr.kernel.netlink import Operation
from netmgr.kernel.nf_tables import Chain, Expression, SetSpec
from netmgr.kernel.nf_tables_socket import NftSocket
from netmgr.prefixes import Family, Prefix
from netmgr.services import nft_diff
from netmgr.services.model import Endpoint, Frontend, ServicePort
from netmgr.services.nft_diff import Delta, Elements, Placed, State
from netmgr.services.nft_layout import (
    REFUSED,
    TABLE,
    Slots,
    chain_name,
    choice_of,
    endpoint_map,
    endpoint_of,
    fixed_chains,
    key_length,
    service_map,
    service_port_of,
    sets,
    slot_of,
    translating_chain,
    vip_set,
)

_LISTINGS, _LOOKS, _PAUSE_SECONDS = 5, 6, 0.05
_MOST_DIGITS = 9
"""Of a number of slots, which the kernel has 32 bits for."""
_NOTHING: Mapping[str, nft_diff.Elements] = {spec.name: {} for spec in sets()}
_OUT_OF_STEP = {errno.ENOENT, errno.EEXIST, errno.EBUSY}


@dataclass(frozen=True, slots=True)
class Listing:
    """Sets, chains and elements, of one generation of the namespace's nftables."""

    generation: int
    sets: frozenset[SetSpec]
    chains: Mapping[str, Chain]
    elements: Mapping[str, Elements]
    is_dormant: bool = False


class NftablesServices:
    """Holds Services in nftables.

    Whatever else goes to `ranges`, the ranges of VIPs, is refused.
    """

    def __init__(self, ranges: Iterable[Prefix]) -> None:
        self._socket = NftSocket()
        self._fixed = tuple(fixed_chains(sorted(ranges)))
        self._state: State | None = None
        self._choices: set[tuple[Family, int]] = set()
        self._generation = 0
        self._untold: list[str] = []

    def held(self) -> dict[ServicePort, Frontend]:
        """Read the table; a sound first reading is what `reconcile` continues from."""
        listing = _read(self._socket)
        state = _state_of(listing)
        if self._state is None:
            wrong, delta = self._faults(listing, state)
            if not wrong and delta.is_empty:
                self._state, self._generation = state, listing.generation
                self._choices = nft_diff.choices_of(state)
        return {vip: entry.frontend for vip, entry in state.items()}

    def reconcile(self, wanted: Mapping[ServicePort, Frontend]) -> list[str]:
        """List the table if anything can have changed, and change what differs."""
        if self._state is None:
            listing = _read(self._socket)
            before = _state_of(listing)
            repairs = self._compare(
                listing, {it: nft_diff.placed(one, before.get(it)) for it, one in wanted.items()}
            )
        else:
            # What others did is repaired before `wanted` is carried out: only the former is
            # reported as a repair.
            if self._generation != self._socket.generation():
                self._untold += self._compare(_read(self._socket), self._state)
            self.change(nft_diff.changes(self._state, wanted))
            repairs = []
        repairs, self._untold = [*self._untold, *repairs], []
        return repairs

    def change(self, changes: Mapping[ServicePort, Frontend | None]) -> None:
        """Change the elements that differ, in one transaction."""
        if self._state is None:
            raise KernelError("change services", details="what the kernel holds was not read yet")
        delta, after, choices = Delta(), dict[ServicePort, Placed | None](), set(self._choices)
        for vip, frontend in changes.items():
            before = self._state.get(vip)
            entry = None if frontend is None else nft_diff.placed(frontend, before)
            nft_diff.between(vip, before, entry, delta)
            after[vip] = entry
            if entry is not None:
                choices.add((vip.family, entry.choice))
        new = choices - self._choices
        try:
            # Chains that nothing leads to any more stay until the next start: deleting one takes
            # the kernel 20 ms.
            self._commit([*_new_chains(chain_name(*one) for one in new), *delta.operations()])
        except KernelError as error:
            if error.errno not in _OUT_OF_STEP:
                raise
            # Another program changed the table, so the delta is wrong and all of it is compared.
            self._untold += self._compare(
                _read(self._socket), nft_diff.update(dict(self._state), after)
            )
            return
        self._choices = choices
        nft_diff.update(self._state, after)

    def hits(self) -> dict[ServicePort, int]:
        """One listing of the counting sets."""
        found: dict[ServicePort, int] = {}
        for family in Family:
            request = nf_tables.list_elements(TABLE, vip_set(family))
            for part in self._socket.list_of(request, nf_tables.counts_of):
                for element, packets, _ in part:
                    if (vip := service_port_of(element)) is not None:
                        found[vip] = packets
        return found

    def remove(self) -> None:
        """Delete the table."""
        self._socket.commit([nf_tables.new_table(TABLE), nf_tables.delete_table(TABLE)])
        self._state, self._choices = None, set()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _compare(self, listing: Listing, state: State) -> list[str]:
        """Make the table hold `state`; says what else it held."""
        choices = nft_diff.choices_of(state) | self._choices
        wrong, delta = self._faults(listing, state)
        for _ in range(_LOOKS):
            if wrong or delta.is_empty:
                break
            # While the kernel resizes a set, its listing may lack or repeat elements, so faults are
            # looked at twice.
            time.sleep(_PAUSE_SECONDS)
            listing, before = _read(self._socket), delta
            wrong, delta = self._faults(listing, state)
            if delta == before:
                break
        else:
            raise TryAgainLater(f"table inet {TABLE} reads differently each time")
        self._generation = listing.generation
        used = {chain_name(*one) for one in choices}
        if wrong:
            filling = nft_diff.against(_NOTHING, state)
            self._commit([*self._anew(), *_new_chains(used), *filling.operations()])
        else:
            # In this order in one transaction: elements need the chains that they lead to, and a
            # chain goes only when no element leads to it.
            present = listing.chains.keys() - {chain.name for chain in self._fixed}
            self._commit(
                [*_new_chains(used - present), *delta.operations(), *_old_chains(present - used)]
            )
        self._state, self._choices = state, choices
        return wrong or delta.repairs()

    def _faults(self, listing: Listing, state: State) -> tuple[list[str], Delta]:
        return _table_faults(listing, self._fixed), nft_diff.against(listing.elements, state)

    def _anew(self) -> list[Operation]:
        """An empty table in place of what is there."""
        return [
            # Added first, since deleting a table that is not there is an error.
            nf_tables.new_table(TABLE),
            nf_tables.delete_table(TABLE),
            nf_tables.new_table(TABLE),
            *(nf_tables.new_set(TABLE, spec, number) for number, spec in enumerate(sets(), 1)),
            *(
                operation
                for chain in self._fixed
                for operation in nf_tables.new_chain(TABLE, chain)
            ),
        ]

    def _commit(self, operations: list[Operation]) -> None:
        if not operations:
            return
        # The number covers all of nftables, so another program's own table moves it as well.
        before = self._socket.generation()
        self._socket.commit(operations)
        # When it has moved by more than this transaction, what else happened is unknown until the
        # next full look.
        if self._generation == before and self._socket.generation() == before + 1:
            self._generation = before + 1


def _new_chains(names: Iterable[str]) -> Iterator[Operation]:
    """Add the chains that choose an endpoint; to be done before elements lead to them."""
    for name in sorted(set(names) - {REFUSED}):
        yield from nf_tables.new_chain(TABLE, translating_chain(name))


def _old_chains(names: Iterable[str]) -> Iterator[Operation]:
    """Delete chains that no element leads to any more."""
    for name in sorted(names):
        yield from nf_tables.delete_chain(TABLE, name)


def _read(socket: NftSocket) -> Listing:
    """List the table, with no transaction of any program in between.

    Raises:
        TryAgainLater: other programs change nftables all the time.
    """
    # Sets, chains and elements take a dump each, and each dump is of another moment.
    for _ in range(_LISTINGS):
        listing = _listed(socket)
        if socket.generation() == listing.generation:
            return listing
    raise TryAgainLater(
        "other programs change nftables all the time, so that they cannot be listed"
    )


def _listed(socket: NftSocket) -> Listing:
    generation = socket.generation()
    of_all = socket.list_of(nf_tables.list_all(nf_tables.GET_SET, TABLE), nf_tables.set_of)
    specs = frozenset(spec for table, spec in of_all if table == TABLE)
    present = {spec.name for spec in specs}
    elements = {
        spec.name: _elements(socket, spec.name) if spec.name in present else {} for spec in sets()
    }
    tables = socket.list_of(nf_tables.list_all(nf_tables.GET_TABLE, TABLE), nf_tables.table_of)
    return Listing(generation, specs, _chains(socket), elements, (TABLE, True) in tables)


def _table_faults(listing: Listing, fixed: Sequence[Chain]) -> list[str]:
    """What is wrong with sets and chains; whatever it is, the table must be built anew."""
    if not listing.sets and not listing.chains:
        return [f"table inet {TABLE} was missing"]
    if listing.is_dormant:
        return [f"table inet {TABLE} was dormant, so that nothing of it was in effect"]
    found = [
        f"set {spec.name} was missing or altered" for spec in sets() if spec not in listing.sets
    ]
    return found + _chain_faults(listing.chains, {chain.name: chain for chain in fixed})


def _chain_faults(listed: Mapping[str, Chain], fixed: Mapping[str, Chain]) -> list[str]:
    found = [f"chain {name} was missing or altered" for name in fixed if name not in listed]
    for name, chain in listed.items():
        expected = fixed.get(name) or _translating(name)
        if expected is None:
            found.append(f"chain {name} is not ours")
        elif not _is_listed_as(expected, chain):
            found.append(f"chain {name} was missing or altered")
    return found


def _state_of(listing: Listing) -> State:
    """What the elements translate, as far as they make sense."""
    state: State = {}
    for family in Family:
        slots: dict[bytes, dict[int, Endpoint]] = {}
        length = key_length(family)
        # Many Services share endpoints, and so may the slots of one.
        endpoint_at = functools.cache(endpoint_of)
        for element, data in listing.elements[endpoint_map(family)].items():
            slots.setdefault(element[:length], {})[slot_of(element)] = endpoint_at(data)
        for element, data in listing.elements[service_map(family)].items():
            vip = service_port_of(element)
            # A ServicePort without slots has an element all the same, which leads to `refused`.
            if vip is not None:
                state[vip] = Placed(choice_of(data), _in_order(slots.get(element, {})))
    return state


def _in_order(slots: Mapping[int, Endpoint]) -> Slots:
    return tuple(slots[number] for number in sorted(slots))


def _elements(socket: NftSocket, name: str) -> Elements:
    request = nf_tables.list_elements(TABLE, name)
    return {
        element: data
        for part in socket.list_of(request, nf_tables.elements_of)
        for element, data in part
    }


def _chains(socket: NftSocket) -> dict[str, Chain]:
    rules: dict[str, list[tuple[Expression, ...]]] = {}
    for table, chain, rule in socket.list_of(
        nf_tables.list_all(nf_tables.GET_RULE, TABLE), nf_tables.rule_of
    ):
        if table == TABLE:
            rules.setdefault(chain, []).append(rule)
    listed = socket.list_of(nf_tables.list_all(nf_tables.GET_CHAIN, TABLE), nf_tables.chain_of)
    return {
        name: Chain(name, tuple(rules.get(name, ())), hook)
        for table, name, hook in listed
        if table == TABLE
    }


def _translating(name: str) -> Chain | None:
    head, dash, count = name.partition("-")
    is_number = count.isdecimal() and len(count) <= _MOST_DIGITS
    known = dash and head[:-1] in ("any", "client") and head[-1:] in ("4", "6") and is_number
    return translating_chain(name) if known else None


def _is_listed_as(chain: Chain, listed: Chain) -> bool:
    if chain.hook != listed.hook or len(chain.rules) != len(listed.rules):
        return False
    pairs = zip(_flat(chain), _flat(listed), strict=False)
    same_lengths = [len(rule) for rule in chain.rules] == [len(rule) for rule in listed.rules]
    return same_lengths and all(ours.is_listed_as(theirs) for ours, theirs in pairs)


def _flat(chain: Chain) -> Iterator[Expression]:
    return (expression for rule in chain.rules for expression in rule)
