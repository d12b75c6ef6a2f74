"""Who gets which place (pure): decided from the plan, the claims and the Nodes there are.

1. What a Node has it keeps: podCIDRs cannot change, and claims follow them, never the reverse.
2. No place is given to two: one that is claimed, rests, or is touched by any Node's podCIDRs is not free.
   podCIDRs that are more than any node has are a mistake or a lie, and keep nobody from a place.
3. A place rests once its Node is gone, and is free after the quarantine. Until then only a Node
   of the same name gets it: it is the same machine, whose pods may still have its addresses.
4. A Node gets the place that its name asks for, if it is free, or else the free one with the lowest number.
5. A Node that cannot be served is told why, and is served as soon as it can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice

from netmgr.kube.claims import Claim
from netmgr.kube.places import Place, Places, Slot
from netmgr.prefixes import Prefix

MOST_TOUCHED = 16
"""Places that one Node's podCIDRs may keep from others without being theirs.

A kubelet can register its own Node with podCIDRs of its choice, and so would starve a whole pool with 10.0.0.0/8.
kube-controller-manager's default of a /24 for a node touches 16 places of a /28.
"""


class Reason(StrEnum):
    """Why a Node is not served: the reason of its Event."""

    NO_POOL = "NoNodePool"
    UNKNOWN_POOL = "UnknownNodePool"
    POOL_FULL = "NodePoolFull"
    OUTSIDE = "PodCIDROutsidePlan"
    TAKEN = "PodCIDRTaken"


@dataclass(frozen=True, slots=True)
class NodeView:
    """What matters of a Node object."""

    name: str
    uid: str
    created: str
    pool: str | None
    cidrs: tuple[Prefix, ...] = ()
    annotation: str = ""
    runs_pods: bool = True
    """A NAT host or a router needs no ranges."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A Node that cannot be served, and what to do about it."""

    node: NodeView
    reason: Reason
    message: str


@dataclass
class Decision:
    """What to write: claims first, then the Nodes."""

    claims: dict[Slot, Claim | None] = field(default_factory=dict)
    """Claims that change; None: the place is free."""
    assignments: dict[str, Place] = field(default_factory=dict)
    """What each Node (by name) is to be told: podCIDRs where it has none, and the annotation."""
    refusals: list[Refusal] = field(default_factory=list)


def decide(
    places: Places, claims: Mapping[Slot, Claim], nodes: Iterable[NodeView], now: float, quarantine: float
) -> Decision:
    """Decide; `now` in seconds since the epoch, `quarantine` in seconds."""
    view = _View(places, claims, sorted(nodes, key=lambda node: (node.created, node.name)))
    for node in view.nodes:
        if node.cidrs:
            _keep(view, node)
    _rest(view, now, quarantine)
    for node in view.nodes:
        if not node.cidrs and node.runs_pods:
            _serve(view, node, quarantine)
    return view.decision


def ended(claims: Mapping[Slot, Claim], decision: Decision) -> Iterator[Claim]:
    """Claims whose rest the decision begins: to be believed only if their Nodes are surely gone."""
    for slot, claim in decision.claims.items():
        before = claims.get(slot)
        if (
            before is not None
            and before.released is None
            and (claim is None or claim.uid != before.uid or claim.released is not None)
        ):
            yield before


class _View:
    """The claims as they become while deciding."""

    def __init__(self, places: Places, claims: Mapping[Slot, Claim], nodes: list[NodeView]) -> None:
        self.places = places
        self.nodes = nodes
        self.live = {node.uid: node for node in nodes}
        self.claims = dict(claims)
        self.decision = Decision()
        self.blocked: set[Slot] = set()
        """Places that some Node's podCIDRs touch without being theirs."""
        self._held: dict[str, list[Slot]] = {}
        for slot, claim in claims.items():
            self._held.setdefault(claim.uid, []).append(slot)
        self._free: dict[str, Iterator[Slot]] = {}
        self._resting: dict[tuple[str, str], Slot] | None = None

    def of(self, node: NodeView) -> Iterator[Claim]:
        """The claims of a Node; more than one only when two controllers gave it a place each."""
        found = (self.claims.get(slot) for slot in self._held.get(node.uid, ()))
        return (claim for claim in found if claim and claim.uid == node.uid)

    def set(self, slot: Slot, claim: Claim | None) -> None:
        if claim is None:
            del self.claims[slot]
        else:
            self.claims[slot] = claim
            self._held.setdefault(claim.uid, []).append(slot)
        self.decision.claims[slot] = claim

    def refuse(self, node: NodeView, reason: Reason, message: str) -> None:
        if node.runs_pods:
            self.decision.refusals.append(Refusal(node, reason, message))

    def rests_after(self, node: NodeView, pool: str) -> Slot | None:
        """The place that rests after a Node of that name."""
        if self._resting is None:
            resting = (claim for claim in self.claims.values() if claim.released is not None)
            self._resting = {(claim.place.slot.pool, claim.node): claim.place.slot for claim in resting}
        return self._resting.pop((pool, node.name), None)

    def next_free(self, pool: str) -> Slot | None:
        """The free place with the lowest number."""
        slots = (Slot(pool, number) for number in range(self.places.capacity[pool]))
        return next(filter(self.is_free, self._free.setdefault(pool, slots)), None)

    def is_free(self, slot: Slot) -> bool:
        return slot not in self.claims and slot not in self.blocked


def _keep(view: _View, node: NodeView) -> None:
    for claim in view.of(node):
        if claim.place.cidrs == node.cidrs:
            if claim.released is not None:
                view.set(claim.place.slot, replace(claim, released=None))
            _tell(view, node, claim.place)
            return
    touched = dict.fromkeys(islice(view.places.touched(node.cidrs), 2 * MOST_TOUCHED + 1))
    place = view.places.at(next(iter(touched))) if len(touched) == 1 else None
    if place is None or place.cidrs != node.cidrs:
        had = ", ".join(map(str, node.cidrs))
        fault = "lies across places of the plan" if touched else "lies outside the plan"
        if len(touched) > MOST_TOUCHED or any(view.places.is_beyond_a_node(cidr) for cidr in node.cidrs):
            fault = "is more than one node has, so that others get their places of the plan"
        else:
            view.blocked.update(touched)
        view.refuse(node, Reason.OUTSIDE, f"podCIDR {had} {fault} of cluster {view.places.cluster}; {_REGISTER}")
    else:
        _adopt(view, node, place)


_REGISTER = (
    "podCIDRs never change, so delete the Node and let its kubelet register it again; "
    "kube-controller-manager must run with --allocate-node-cidrs=false"
)


def _adopt(view: _View, node: NodeView, place: Place) -> None:
    """Write down what a Node has without a claim, unless another Node has it, too."""
    claim = view.claims.get(place.slot)
    holder = view.live.get(claim.uid) if claim else None
    if holder is not None and holder is not node and holder.cidrs == node.cidrs:
        cidrs = ", ".join(map(str, node.cidrs))
        for one, other in ((node, holder), (holder, node)):
            view.refuse(one, Reason.TAKEN, f"podCIDR {cidrs} is also that of Node {other.name}; delete one of the two")
        return
    view.set(place.slot, Claim(place, node.name, node.uid))
    _tell(view, node, place)


def _tell(view: _View, node: NodeView, place: Place) -> None:
    if node.cidrs != place.cidrs or node.annotation != place.annotation:
        view.decision.assignments[node.name] = place


def _rest(view: _View, now: float, quarantine: float) -> None:
    """Begin and end the rest of places whose Node is gone, or has another place."""
    for slot, claim in list(view.claims.items()):
        node = view.live.get(claim.uid)
        if node is not None and node.cidrs in ((), claim.place.cidrs):
            continue
        if claim.released is None:
            view.set(slot, replace(claim, released=now))
        elif claim.released + quarantine <= now:
            view.set(slot, None)


def _serve(view: _View, node: NodeView, quarantine: float) -> None:
    claimed = next((claim for claim in view.of(node) if claim.place.slot not in view.blocked), None)
    if claimed is not None:
        if claimed.released is not None:
            view.set(claimed.place.slot, replace(claimed, released=None))
        _tell(view, node, claimed.place)
        return
    pool = node.pool
    if pool is None or pool not in view.places.capacity:
        _refuse_pool(view, node)
        return
    slot = _choose(view, node, pool)
    place = view.places.at(slot) if slot else None
    if slot is None or place is None:
        resting = sum(1 for s, claim in view.claims.items() if s.pool == pool and claim.released is not None)
        view.refuse(
            node,
            Reason.POOL_FULL,
            f"node pool {pool} has {view.places.capacity[pool]} places and none is free ({resting} rest for "
            f"{quarantine:.0f} s after their Node): raise its nodes or surge in the plan, and lock it",
        )
        return
    view.set(slot, Claim(place, node.name, node.uid))
    _tell(view, node, place)


def _refuse_pool(view: _View, node: NodeView) -> None:
    known = ", ".join(view.places.capacity) or "none"
    if node.pool is None:
        view.refuse(node, Reason.NO_POOL, f"no label says the node pool; label it with one of the plan's: {known}")
    else:
        view.refuse(
            node,
            Reason.UNKNOWN_POOL,
            f"cluster {view.places.cluster} has no node pool {node.pool!r} in the plan; there are: {known}",
        )


def _choose(view: _View, node: NodeView, pool: str) -> Slot | None:
    rested = view.rests_after(node, pool)
    if rested is not None and rested not in view.blocked:
        return rested
    asked = view.places.named(node.name, pool)
    if asked is not None and view.is_free(asked):
        return asked
    return view.next_free(pool)
