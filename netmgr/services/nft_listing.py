"""Table `inet netmgr-services` as the kernel lists it, and how it differs from what it should be."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from netmgr.dataplane import nft_messages
from netmgr.dataplane.nft_messages import Chain, Expression, SetSpec
from netmgr.dataplane.nft_socket import NftSocket
from netmgr.errors import TryAgainLater
from netmgr.prefixes import Family
from netmgr.services.model import Endpoint
from netmgr.services.nft_diff import Elements, Placed, State
from netmgr.services.nft_layout import (
    TABLE,
    Slots,
    choice_of,
    endpoint_map,
    endpoint_of,
    key_length,
    seen_of,
    service_map,
    sets,
    slot_of,
    translating_chain,
)

_LOOKS = 5


@dataclass(frozen=True, slots=True)
class Listing:
    """Sets, chains and elements, of one generation of the namespace's nftables."""

    generation: int
    sets: frozenset[SetSpec]
    chains: Mapping[str, Chain]
    elements: Mapping[str, Elements]
    is_dormant: bool = False


def read(socket: NftSocket) -> Listing:
    """List the table, with no transaction of anybody's in between.

    Raises:
        TryAgainLater: other programs change nftables all the time.
    """
    for _ in range(_LOOKS):
        before = socket.generation()
        of_all = socket.list_of(nft_messages.list_all(nft_messages.GET_SET, TABLE), nft_messages.set_of)
        specs = frozenset(spec for table, spec in of_all if table == TABLE)
        present = {spec.name for spec in specs}
        elements = {spec.name: _elements(socket, spec.name) if spec.name in present else {} for spec in sets()}
        tables = socket.list_of(nft_messages.list_all(nft_messages.GET_TABLE, TABLE), nft_messages.table_of)
        listing = Listing(before, specs, _chains(socket), elements, (TABLE, True) in tables)
        if socket.generation() == before:
            return listing
    raise TryAgainLater("other programs change nftables all the time, so that they cannot be listed")


def faults(listing: Listing, fixed: Sequence[Chain]) -> list[str]:
    """Sentences about sets and chains; whatever it is, the table must be built anew."""
    if not listing.sets and not listing.chains:
        return [f"table inet {TABLE} was missing"]
    if listing.is_dormant:
        return [f"table inet {TABLE} was dormant, so that nothing of it was in effect"]
    found = [f"set {spec.name} was missing or altered" for spec in sets() if spec not in listing.sets]
    expected = {chain.name: chain for chain in fixed}
    expected |= {name: made for name in listing.chains.keys() - expected if (made := _translating(name))}
    for name, chain in expected.items():
        if name not in listing.chains or not _is_seen_as(chain, listing.chains[name]):
            found.append(f"chain {name} was missing or altered")
    return found + [f"chain {name} is not ours" for name in listing.chains.keys() - expected]


def state_of(listing: Listing) -> State:
    """What the elements translate, as far as they make sense."""
    state: State = {}
    for family in Family:
        slots: dict[bytes, dict[int, Endpoint]] = {}
        length = key_length(family)
        endpoint_at = functools.cache(endpoint_of)  # many Services share endpoints, and the slots of one may
        for element, data in listing.elements[endpoint_map(family)].items():
            slots.setdefault(element[:length], {})[slot_of(element)] = endpoint_at(data)
        for element, data in listing.elements[service_map(family)].items():
            state[seen_of(element)] = Placed(choice_of(data), _in_order(slots.get(element, {})))
    return state


def _in_order(slots: Mapping[int, Endpoint]) -> Slots:
    return tuple(slots[number] for number in sorted(slots))


def _elements(socket: NftSocket, name: str) -> Elements:
    request = nft_messages.list_elements(TABLE, name)
    return {element: data for part in socket.list_of(request, nft_messages.elements_of) for element, data in part}


def _chains(socket: NftSocket) -> dict[str, Chain]:
    rules: dict[str, list[tuple[Expression, ...]]] = {}
    for table, chain, rule in socket.list_of(nft_messages.list_all(nft_messages.GET_RULE, TABLE), nft_messages.rule_of):
        if table == TABLE:
            rules.setdefault(chain, []).append(rule)
    listed = socket.list_of(nft_messages.list_all(nft_messages.GET_CHAIN, TABLE), nft_messages.chain_of)
    return {name: Chain(name, tuple(rules.get(name, ())), hook) for table, name, hook in listed if table == TABLE}


def _translating(name: str) -> Chain | None:
    head, dash, count = name.partition("-")
    known = dash and head[:-1] in ("any", "client") and head[-1:] in ("4", "6") and count.isdecimal()
    return translating_chain(name) if known else None


def _is_seen_as(chain: Chain, seen: Chain) -> bool:
    if chain.hook != seen.hook or len(chain.rules) != len(seen.rules):
        return False
    pairs = zip(_flat(chain), _flat(seen), strict=False)
    same_lengths = [len(rule) for rule in chain.rules] == [len(rule) for rule in seen.rules]
    return same_lengths and all(ours.is_seen_as(theirs) for ours, theirs in pairs)


def _flat(chain: Chain) -> Iterator[Expression]:
    return (expression for rule in chain.rules for expression in rule)
