"""The nftables backend: one table, `inet netmgr`, one atomic transaction per change.

Pods' counters live in set elements and the node's in named counter objects, so filling a
chain again loses no count. Whatever is in the table of this name is ours; no other table is
looked at.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Sequence
from typing import Any

from netmgr.errors import KernelError
from netmgr.kernel import flowtables
from netmgr.kernel.libnftables import LibNftables
from netmgr.kernel.nf_tables_socket import NftSocket
from netmgr.model import Counter, Sample, Traffic
from netmgr.prefixes import Address
from netmgr.rules import nft_elements, nft_listing, nft_pairs, nft_text
from netmgr.rules.model import (
    Abilities,
    Ruleset,
)
from netmgr.rules.nft_listing import Fingerprints
from netmgr.rules.nft_text import TABLE
from netmgr.rules.observed import Observed
from netmgr.rules.policy import PodSets
from netmgr.rules.tagged import Serving
from netmgr.rules.transaction import EndFlows, FillChain, Operation


class NftablesBackend:
    """Holds the ruleset in nftables.

    Raises:
        SetupError: libnftables is not installed.
    """

    name = "nftables"

    def __init__(self) -> None:
        self._nft = LibNftables()
        self._socket = NftSocket()
        self.abilities = Abilities(flowtables=flowtables.is_supported(self._socket))
        self._fingerprints = Fingerprints()
        self._is_asleep = False

    def observe(self, desired: Ruleset) -> Observed:
        """Read the table."""
        found = nft_listing.observed(self._fingerprints.compared(self._listing()), desired)
        self._is_asleep = found.asleep
        return found

    def apply(self, operations: Sequence[Operation]) -> None:
        """Run the operations as one transaction: all of them, or none."""
        if operations and self._is_asleep:
            # Adding it without the flag wakes it; the kernel takes no change of chains in the same
            # transaction.
            self._nft.run(f"add table {TABLE}\n")
            self._is_asleep = False
        elements = nft_elements.encoded(operations)
        if elements is None:
            self._nft.run(self.render(operations))
        elif elements:
            self._socket.commit(elements)
        filled: set[str] = set()
        for operation in operations:
            if isinstance(operation, FillChain | EndFlows):
                filled |= {operation.hook.value, *nft_text.class_chains(operation.rules)}
        # At once, while nft surely shows what we wrote.
        if filled:
            self._fingerprints.learn(self._listing(), filled)

    def render(self, operations: Sequence[Operation]) -> str:
        """The operations as input for `nft -f`."""
        return "".join(f"{line}\n" for line in nft_text.commands(operations))

    def read(self, desired: Ruleset) -> list[Sample]:
        """Every counter in the table, from one listing."""
        counting = {spec.name: spec for spec in desired.sets if spec.counts is not None}
        node = desired.node_counters()
        samples: list[Sample] = []
        for item in self._listing():
            listed, named = item.get("set", {}), item.get("counter", {})
            if listed.get("name") in counting:
                spec = counting[listed["name"]]
                for element, counter in nft_listing.elements(listed):
                    counted = Sample(spec.counter(element), counter["bytes"], counter["packets"])
                    samples.append(counted)
            elif named.get("name") in node:
                samples.append(Sample(node[named["name"]], named["bytes"], named["packets"]))
        return samples

    def read_pods(self, pods: PodSets) -> list[Sample]:
        """Ask for each element by itself, which costs the same however many pods there are."""
        return nft_elements.read(self._socket, pods)

    def tallies(self, desired: Ruleset) -> dict[str, tuple[int, int]]:
        """The named counters, and those of pairs of spokes.

        The table is listed for them: asked for counters alone, libnftables loads every table of the
        machine first, down to the last element of a Service (1.0.6: 5 s for 10,000 of them).
        """
        wanted = frozenset(desired.tallies())
        pairs = desired.pair_sets()
        found: dict[str, tuple[int, int]] = {}
        for item in self._listing():
            named, listed = item.get("counter", {}), item.get("set", {})
            if named.get("name") in wanted:
                found[named["name"]] = named["packets"], named["bytes"]
            elif listed.get("name") in pairs:
                found.update(nft_pairs.read(pairs[listed["name"]], listed))
        return found

    def dynamic(self, desired: Ruleset) -> list[Sample]:
        """The elements of the dynamic sets, from one listing."""
        if not (wanted := desired.dynamic_sets()):
            return []
        listed = [item["set"] for item in self._listing() if "set" in item]
        return [
            sample
            for one in listed
            if one["name"] in wanted
            for sample in _counted(one, wanted[one["name"]])
        ]

    def serving(self, desired: Ruleset) -> Serving:  # noqa: ARG002 - whatever the policy is, its counters are our own
        """None: what counts here is in our table."""
        return lambda _place, _entries: ()

    def remove(self, desired: Ruleset) -> None:  # noqa: ARG002 - the table is ours, whatever the policy was
        """Delete the table."""
        # Added first, since deleting a table that is not there is an error.
        self._nft.run(f"add table {TABLE}\ndelete table {TABLE}\n")

    def close(self) -> None:
        """Close the library's context and the socket."""
        self._nft.close()
        self._socket.close()

    def _listing(self) -> list[dict[str, Any]]:
        try:
            output = self._nft.run(f"list table {TABLE}", json=True)
        except KernelError as error:
            if error.errno == errno.ENOENT:
                return []
            raise
        try:
            listing: list[dict[str, Any]] = json.loads(output)["nftables"]
        except ValueError:
            # nft 1.0.6 prints a remark between the objects of a table that another program owns.
            raise KernelError(
                f"nft list table {TABLE}", details="another program owns the table"
            ) from None
        return listing


def _counted(listed: dict[str, Any], traffic: Traffic) -> Iterator[Sample]:
    for element, counter in nft_listing.elements(listed):
        # Without a counter: another program added it.
        if isinstance(element, Address) and counter:
            counted = Counter.of_pod(element, traffic)
            yield Sample(counted, counter["bytes"], counter["packets"])
