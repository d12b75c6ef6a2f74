"""The nftables backend of Services: one table of its own, one transaction for each change.

Everything in table `inet netmgr-services` is ours; no other table is looked at. The whole is
compared when the backend begins, and whenever nftables have seen a transaction that was not
ours: their generation number tells, so that looking for drift costs a quiet host nothing.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable, Iterator, Mapping

from netmgr.dataplane import nft_messages
from netmgr.dataplane.nft_socket import NftSocket
from netmgr.dataplane.rtnetlink import Operation
from netmgr.errors import KernelError, TryAgainLater
from netmgr.prefixes import Family, Prefix
from netmgr.services import nft_diff, nft_listing
from netmgr.services.model import Frontend, ServicePort
from netmgr.services.nft_diff import Delta, Placed, State
from netmgr.services.nft_layout import (
    REFUSED,
    TABLE,
    chain_name,
    fixed_chains,
    seen_of,
    seen_set,
    sets,
    translating_chain,
)
from netmgr.services.nft_listing import Listing

_LOOKS, _PAUSE_SECONDS = 6, 0.05
_NOTHING: Mapping[str, nft_diff.Elements] = {spec.name: {} for spec in sets()}
_OUT_OF_STEP = {errno.ENOENT, errno.EEXIST, errno.EBUSY}


class NftablesServices:
    """Holds Services in nftables; whatever else goes to `ranges`, the seen prefixes, is refused."""

    name = "nftables"

    def __init__(self, ranges: Iterable[Prefix]) -> None:
        self._socket = NftSocket()
        self._fixed = tuple(fixed_chains(sorted(ranges)))
        self._state: State | None = None
        self._choices: set[tuple[Family, int]] = set()
        self._generation = 0
        self._untold: list[str] = []

    def held(self) -> dict[ServicePort, Frontend]:
        """Read the table; the first reading, if all is sound, is what `put_right` goes on from."""
        listing = nft_listing.read(self._socket)
        state = nft_listing.state_of(listing)
        if self._state is None:
            wrong, delta = self._faults(listing, state)
            if not wrong and delta.is_empty:
                self._state, self._generation = state, listing.generation
                self._choices = nft_diff.choices_of(state)
        return {seen: place.frontend for seen, place in state.items()}

    def put_right(self, wanted: Mapping[ServicePort, Frontend]) -> list[str]:
        """List the table if anything can have changed, and change what differs."""
        if self._state is None:
            listing = nft_listing.read(self._socket)
            before = nft_listing.state_of(listing)
            repairs = self._compare(listing, {it: nft_diff.placed(one, before.get(it)) for it, one in wanted.items()})
        else:
            # What others did is put right before what is wanted anew is done: only the one is told as a repair.
            if self._generation != self._socket.generation():
                self._untold += self._compare(nft_listing.read(self._socket), self._state)
            self.change(nft_diff.changes(self._state, wanted))
            repairs = []
        repairs, self._untold = [*self._untold, *repairs], []
        return repairs

    def change(self, changes: Mapping[ServicePort, Frontend | None]) -> None:
        """Change the elements that differ, in one transaction."""
        if self._state is None:
            raise KernelError("change services", details="what the kernel holds was not read yet")
        delta, after = Delta(), dict[ServicePort, Placed | None]()
        for seen, frontend in changes.items():
            before = self._state.get(seen)
            after[seen] = None if frontend is None else nft_diff.placed(frontend, before)
            nft_diff.between(seen, before, after[seen], delta)
        new = {(seen.family, place.choice) for seen, place in after.items() if place} - self._choices
        try:
            # Chains that nothing leads to any more stay until the next start: deleting one takes the kernel 20 ms.
            self._commit([*_new_chains(chain_name(*one) for one in new), *delta.operations()])
        except KernelError as error:
            if error.errno not in _OUT_OF_STEP:
                raise
            # Another program was at the table, so what is to be done cannot be known without looking at all of it.
            self._untold += self._compare(nft_listing.read(self._socket), nft_diff.merged(self._state, after))
            return
        self._choices |= new
        for seen, place in after.items():
            if place is None:
                self._state.pop(seen, None)
            else:
                self._state[seen] = place

    def hits(self) -> dict[ServicePort, int]:
        """One listing of the counting sets."""
        found: dict[ServicePort, int] = {}
        for family in Family:
            request = nft_messages.list_elements(TABLE, seen_set(family))
            for part in self._socket.list_of(request, nft_messages.counts_of):
                found.update((seen_of(element), count) for element, count in part)
        return found

    def remove(self) -> None:
        """Delete the table."""
        self._socket.commit([nft_messages.new_table(TABLE), nft_messages.delete_table(TABLE)])
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
            # While the kernel resizes a set, its listing may lack or repeat elements, so faults are looked at twice.
            time.sleep(_PAUSE_SECONDS)
            listing, before = nft_listing.read(self._socket), delta
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
            present = listing.chains.keys() - {chain.name for chain in self._fixed}
            self._commit([*_new_chains(used - present), *delta.operations(), *_old_chains(present - used)])
        self._state, self._choices = state, choices
        return wrong or delta.sentences()

    def _faults(self, listing: Listing, state: State) -> tuple[list[str], Delta]:
        return nft_listing.faults(listing, self._fixed), nft_diff.against(listing.elements, state)

    def _anew(self) -> list[Operation]:
        """An empty table in place of what is there."""
        return [
            nft_messages.new_table(TABLE),
            nft_messages.delete_table(TABLE),
            nft_messages.new_table(TABLE),
            *(nft_messages.new_set(TABLE, spec, place) for place, spec in enumerate(sets(), 1)),
            *(operation for chain in self._fixed for operation in nft_messages.new_chain(TABLE, chain)),
        ]

    def _commit(self, operations: list[Operation]) -> None:
        if not operations:
            return
        before = self._socket.generation()
        self._socket.commit(operations)
        # When it has moved by more than this transaction, what else happened is unknown until the next full look.
        if self._generation == before and self._socket.generation() == before + 1:
            self._generation = before + 1


def _new_chains(names: Iterable[str]) -> Iterator[Operation]:
    """Add the chains that choose an endpoint; to be done before elements lead to them."""
    for name in sorted(set(names) - {REFUSED}):
        yield from nft_messages.new_chain(TABLE, translating_chain(name))


def _old_chains(names: Iterable[str]) -> Iterator[Operation]:
    """Delete chains that no element leads to any more."""
    for name in sorted(names):
        yield from nft_messages.delete_chain(TABLE, name)
