"""Limits of connections: whose they are, and the nftables table that keeps them.

The table hangs in the hook for address translation, which the kernel asks about a connection's
first packet alone, before connection tracking takes the connection in: other packets cost nothing,
and one that is dropped there leaves no entry.

Each pod, and each namespace, that is limited has a chain. The kernel counts connections in the
chain's rule, and forgets them with it. So a chain that is as it should be is never written again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from netmgr.documents.limits import Connections, Limit
from netmgr.model import Attachment, PodRef

TABLE = "inet netmgr_limits"
_BASE = "beginning"
# The first that there can be, behind connection tracking (-200). Once a chain has translated the
# destination, the kernel asks no later one.
_HOOK = "{ type nat hook prerouting priority -199; policy accept; }"
_DEFAULT_BURST = 5
"""The kernel's; nft does not show it."""

_BLOCK = re.compile(r"^\t(chain|counter) (\S+) \{\n(.*?)^\t\}$", re.MULTILINE | re.DOTALL)
_ELEMENT = re.compile(r'"([^"]+)" : goto (\w+)')
_PACKETS = re.compile(r"packets (\d+)")


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


class Listing(NamedTuple):
    """A table as nft shows it: chains' rules, links' chains, and what counters have dropped."""

    base: str
    chains: Mapping[str, tuple[str, ...]]
    links: Mapping[str, str]
    dropped: Mapping[str, int]

    def holds(self, wanted: Wanted) -> bool:
        """Whether all is there that has no state, and nothing else; the base is not compared."""
        chains = {owner.chain: rules for owner, rules in wanted.chains.items()}
        links = {link: owner.chain for link, owner in wanted.links.items()}
        return (self.chains, self.links) == (chains, links) and self.dropped.keys() == chains.keys()

    def without(self, owner: Owner) -> Listing:
        """As if it had no chain for this owner, so that the chain is written again."""
        chains = {name: rules for name, rules in self.chains.items() if name != owner.chain}
        return self._replace(chains=chains)


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
        owner = Owner(pod.namespace, pod.name)
        chains[owner] = _rules(owner, own) + further
    return chains


def _rules(owner: Owner, given: Sequence[Connections]) -> tuple[str, ...]:
    """A chain's rules, as nft shows them; of several limits the lowest are in force."""
    rate = min(limit.new_per_second for limit in given)
    burst = "" if rate == _DEFAULT_BURST else f" burst {rate} packets"
    drop = f'counter name "{owner.chain}" drop'
    return (
        f"limit rate over {rate}/second{burst} {drop}",
        # Last: it keeps in mind what it counts, so that it should not see what is dropped anyway.
        f"ct count over {min(limit.at_once for limit in given)} {drop}",
    )


def listing(text: str) -> Listing:
    """Read what nft shows of the table."""
    blocks = {(kind, name): body for kind, name, body in _BLOCK.findall(text)}
    chains = {
        name: tuple(line.strip() for line in body.splitlines())
        for (kind, name), body in blocks.items()
        if kind == "chain" and name != _BASE
    }
    dropped = {
        name: int(match[1])
        for (kind, name), body in blocks.items()
        if kind == "counter" and (match := _PACKETS.search(body))
    }
    base = blocks.get(("chain", _BASE), "")
    return Listing(base, chains, dict(_ELEMENT.findall(base)), dropped)


def changes(want: Wanted, present: Listing) -> str:
    """Commands that make the table as it should be; chains that are so already stay untouched."""
    chains = {owner.chain: rules for owner, rules in want.chains.items()}
    stale = sorted(present.chains.keys() - chains.keys())
    new = sorted(name for name, rules in chains.items() if present.chains.get(name) != rules)
    unused = sorted(present.dropped.keys() - chains.keys())
    elements = [f'"{link}" : goto {owner.chain}' for link, owner in sorted(want.links.items())]
    lines = [
        f"add table {TABLE}",
        f"add chain {TABLE} {_BASE} {_HOOK}",
        # What leads to a chain goes first.
        f"flush chain {TABLE} {_BASE}",
        *_each("add chain", new),
        *_each("flush chain", [*new, *stale]),
        *_each("delete chain", stale),
        *_each("delete counter", unused),
        *_each("add counter", sorted(chains)),
        *(f"add rule {TABLE} {name} {rule}" for name in new for rule in chains[name]),
        f"add rule {TABLE} {_BASE} iifname vmap {{ {', '.join(elements)} }}",
    ]
    return "".join(f"{line}\n" for line in lines)


def _each(verb: str, names: Iterable[str]) -> list[str]:
    return [f"{verb} {TABLE} {name}" for name in names]


def anew(want: Wanted) -> str:
    """Commands that replace the table; what it has counted is forgotten."""
    nothing = Listing("", {}, {}, {})
    return f"add table {TABLE}\ndelete table {TABLE}\n{changes(want, nothing)}"


def trial() -> str:
    """Commands that the kernel refuses if it lacks what limits need; they leave nothing."""
    table = f"{TABLE}_trial"
    return (
        f"add table {table}\nadd chain {table} {_BASE} {_HOOK}\n"
        f"add rule {table} {_BASE} limit rate over 1/second ct count over 1 drop\n"
        f"delete table {table}\n"
    )
