"""Limits of connections: whose they are, and the nftables table that keeps them.

Each pod, and each namespace, that is limited has a chain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from netmgr.documents.limits import Connections, Limit
from netmgr.model import Attachment, PodRef
from netmgr.rules import nft_chains
from netmgr.rules.nft_chains import Base
from netmgr.rules.nft_table import Listing

TABLE = "inet netmgr_limits"
FIRST = "beginning"
# The kernel asks the hook for address translation about a connection's first packet alone, before
# connection tracking takes the connection in: other packets cost nothing, and one that is dropped
# leaves no entry. The priority is the first behind connection tracking (-200): once a chain has
# translated the destination, the kernel asks no later one.
_BASE = Base("nat", "prerouting", -199)


class Owner(NamedTuple):
    """A pod, or (`pod` empty) the pods that a namespace has on this node."""

    namespace: str
    pod: str

    @property
    def chain(self) -> str:
        """Name of its chain, and of the counter of what the chain drops."""
        # Names together may be longer than a chain's.
        return f"of_{hashlib.sha256('/'.join(self).encode()).hexdigest()[:32]}"


@dataclass(frozen=True)
class Wanted:
    """What the kernel is to hold: the rules of each owner's chain, and each link's owner."""

    chains: Mapping[Owner, tuple[str, ...]]
    links: Mapping[str, Owner]

    @property
    def rules(self) -> dict[str, tuple[str, ...]]:
        """The rules of owners' chains, by name."""
        return {owner.chain: rules for owner, rules in self.chains.items()}

    @property
    def first_rules(self) -> tuple[str, ...]:
        """Those of the base chain, which leads from links to owners' chains."""
        elements = ", ".join(
            f'"{link}" : goto {owner.chain}' for link, owner in sorted(self.links.items())
        )
        return (f"iifname vmap {{ {elements} }}",)


def wanted(limits: Sequence[Limit], attachments: Iterable[Attachment]) -> Wanted:
    """What follows from the document for these pods."""
    chains: dict[Owner, tuple[str, ...]] = {}
    links: dict[str, Owner] = {}
    for attachment in attachments:
        if attachment.host_link and (pod_chains := _chains(limits, attachment.pod)):
            # The last one is the pod's own, if it has one.
            links[attachment.host_link] = list(pod_chains)[-1]
            chains |= pod_chains
    return Wanted(chains, links)


def _chains(limits: Iterable[Limit], pod: PodRef) -> dict[Owner, tuple[str, ...]]:
    """The chain of a pod's namespace, and then the pod's own, which goes on to the namespace's."""
    shared: list[Connections] = []
    own: list[Connections] = []
    for limit in limits:
        if limit.connections and limit.covers(pod):
            (own if limit.pods else shared).append(limit.connections)
    chains: dict[Owner, tuple[str, ...]] = {}
    further: tuple[str, ...] = ()
    if shared:
        namespace = Owner(pod.namespace, "")
        chains[namespace] = _rules(namespace, shared)
        further = (f"goto {namespace.chain}",)
    if own:
        # Its own first, so that the namespace's does not count what the pod's own drops.
        owner = Owner(pod.namespace, pod.name)
        chains[owner] = _rules(owner, own) + further
    return chains


def _rules(owner: Owner, given: Sequence[Connections]) -> tuple[str, ...]:
    """A chain's rules; of several limits the lowest are in force."""
    rate = min(limit.new_per_second for limit in given)
    drop = f'counter name "{owner.chain}" drop'
    return (
        f"limit rate over {rate}/second burst {rate} packets {drop}",
        # Last: it keeps in mind what it counts, so that it should not see what is dropped anyway.
        f"ct count over {min(limit.at_once for limit in given)} {drop}",
    )


def holds(listing: Listing, want: Wanted) -> bool:
    """Whether all is there as it is written, and nothing else."""
    if not want.chains:
        return not listing.chains
    marks = {name: nft_chains.marks(name, rules) for name, rules in want.rules.items()}
    marks[FIRST] = nft_chains.marks(FIRST, want.first_rules)
    return listing.holds(marks, {FIRST: _BASE}) and listing.counters == want.rules.keys()


def to_write(want: Wanted, listing: Listing, new: Owner | None = None) -> list[str]:
    """The owners' chains that are not as they should be, and that of a new owner."""
    # No others: the kernel counts connections in a chain's rule, and forgets them with it.
    return sorted(
        name
        for name, rules in want.rules.items()
        if listing.comments.get(name) != nft_chains.marks(name, rules)
        or (new and name == new.chain)
    )


def changes(want: Wanted, listing: Listing, names: Iterable[str]) -> str:
    """Commands that make the table as it should be, and write these owners' chains."""
    chains = want.rules
    stale = sorted(listing.chains.keys() - chains.keys() - {FIRST})
    # What leads to a chain goes first.
    lines = [f"add table {TABLE}", *nft_chains.fill(TABLE, FIRST, (), _BASE)]
    for name in (*names, *stale):
        lines += nft_chains.fill(TABLE, name, ())
    lines += [f"delete chain {TABLE} {name}" for name in stale]
    lines += [f"delete counter {TABLE} {name}" for name in sorted(listing.counters - chains.keys())]
    lines += [f"add counter {TABLE} {name}" for name in sorted(chains)]
    for name in names:
        lines += nft_chains.fill(TABLE, name, chains[name])
    lines += nft_chains.fill(TABLE, FIRST, want.first_rules, _BASE)
    return nft_chains.script(lines)


def anew(want: Wanted) -> str:
    """Commands that replace the table; what it has counted is forgotten."""
    made = changes(want, Listing(), sorted(want.rules))
    return f"add table {TABLE}\ndelete table {TABLE}\n{made}"


def trial() -> str:
    """Commands that the kernel refuses if it lacks what limits need."""
    # Deleted in the same transaction, so that nothing is ever there.
    table = f"{TABLE}_trial"
    return (
        f"add table {table}\nadd chain {table} {FIRST} {{ {_BASE} }}\n"
        f"add rule {table} {FIRST} limit rate over 1/second ct count over 1 drop\n"
        f"delete table {table}\n"
    )
