"""The nftables backend: one table, `inet netmgr`, one atomic transaction per change.

Pods' counters live in set elements and the node's in named counter objects, so filling a chain
again loses no count.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from netmgr.errors import Ignoring
from netmgr.kernel import flowtables
from netmgr.model import Counter, Sample
from netmgr.prefixes import Address
from netmgr.rules import nft_chains, nft_elements, nft_listing, nft_pairs, nft_table, nft_text
from netmgr.rules.model import Abilities, Count, DropBetween, Ruleset, Sets
from netmgr.rules.nft_elements import NAME
from netmgr.rules.nft_table import Listing, NftTable
from netmgr.rules.nft_text import TABLE
from netmgr.rules.observed import Observed, Samples
from netmgr.rules.policy import FLOWTABLE
from netmgr.rules.tagged import Serving
from netmgr.rules.transaction import DropChain, EndFlows, FillChain, Operation


class NftablesBackend:
    """Holds the ruleset in nftables.

    Raises:
        SetupError: libnftables is not installed.
    """

    name = "nftables"

    _shares_table = False

    def __init__(self) -> None:
        self._table = NftTable(TABLE)
        self._socket = self._table.socket
        self.abilities = Abilities(flowtables=flowtables.is_supported(self._socket))
        self._samples = Samples()
        self._seen: tuple[Listing, Ruleset, Observed] | None = None

    def observe(self, desired: Ruleset) -> Observed:
        """Read the table, unless no program has changed any table since the last time."""
        listing = self._table.listing()
        if self._seen is None or self._seen[0] is not listing or self._seen[1] != desired:
            self._seen = listing, desired, nft_listing.observed(listing, desired)
        return self._seen[2]

    def apply(self, operations: Sequence[Operation]) -> None:
        """Run the operations as one transaction: all of them, or none."""
        kinds = {type(operation) for operation in operations}
        if FillChain in kinds:
            # Only a plan does that: an element alone, as the ledger's mark at a start, would wake
            # it before anybody has seen that nothing was counted.
            self._table.wake()
        changes_rules = kinds & {FillChain, DropChain, EndFlows}
        with self._all_meeting_rules() if changes_rules else nullcontext():
            elements = nft_elements.encoded(operations)
            if elements is None:
                self._table.run(self.render(operations))
            elif elements:
                self._socket.commit(elements)
        filled: set[str] = set()
        for operation in operations:
            if isinstance(operation, FillChain | EndFlows):
                hook = operation.hook
                filled |= {hook.value, nft_text.family_chain(hook)}
                filled |= nft_text.class_chains(operation.rules).keys()
        if filled:
            # At once, while nft surely shows what we wrote.
            self._table.listing(filled)

    @contextmanager
    def _all_meeting_rules(self) -> Iterator[None]:
        """Have no packet skip the rules while they change."""
        # To a packet, Linux 6.12 shows the elements of a transaction that is still being prepared:
        # what is to be internal is handed over by rules that count it as internet.
        with flowtables.DEVICES:
            while own := [
                flowtable
                for flowtable in flowtables.read_flowtables(self._socket)
                if (flowtable.table, flowtable.name) == (TABLE, FLOWTABLE.name)
                and flowtable.devices
            ]:
                # A link that goes meanwhile takes itself out; with it, the others were refused.
                with Ignoring(errno.ENOENT):
                    self._socket.commit(flowtables.remove_devices(own[0]))
            yield

    def render(self, operations: Sequence[Operation]) -> str:
        return nft_chains.script(nft_text.commands(operations))

    def read(self, desired: Ruleset) -> list[Sample]:
        """The node's counters, then the pods' from the sets."""
        # By messages of our own: libnftables' listing takes ten times as long.
        node = desired.node_counters()
        # No named counter can be put back, or made again, but together with the table.
        life = self._socket.table_handle(NAME)
        samples = [
            Sample(node[name], octets, packets, life)
            for name, packets, octets in self._table.counters()
            if name in node
        ]
        for spec in desired.sets:
            if spec.counts is not None and not spec.at_links:
                samples += self._samples.of(spec, self._socket.counts(NAME, spec.name))
        return samples

    def read_pods(self, pods: Sets) -> list[Sample]:
        # Each element by itself costs the same however many pods there are.
        return nft_elements.read(self._socket, pods)

    def tallies(self, desired: Ruleset) -> dict[str, tuple[int, int]]:
        wanted = frozenset(desired.tallies())
        tallies = {
            name: (packets, octets)
            for name, packets, octets in self._table.counters()
            if name in wanted
        }
        for action in desired.actions(DropBetween):
            tallies.update(nft_pairs.read(action, self._socket.counts(NAME, action.counts)))
        return tallies

    def dynamic(self, desired: Ruleset) -> list[Sample]:
        return [
            Sample(Counter.of_pod(Address.unpack(key), count.counter.traffic), octets, packets)
            for count in desired.actions(Count)
            if count.also_by is not None
            for key, packets, octets in self._socket.counts(NAME, count.also_by[1])
        ]

    def serving(self, desired: Ruleset) -> Serving:  # noqa: ARG002 - whatever the policy is, its counters are our own
        return lambda _place, _entries: ()

    def share_table(self, *, shared: bool) -> None:
        self._shares_table = shared

    def remove(self) -> None:
        if not self._shares_table:
            nft_table.remove(TABLE)

    def close(self) -> None:
        self._table.close()
