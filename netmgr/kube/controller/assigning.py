"""Decides which Node gets which allocation (pure), from the plan, the claims and the Nodes.

1. A Node keeps what it has: podCIDRs cannot change, and claims follow them, never the reverse.
2. No allocation is given to two Nodes. One that is claimed, in cooldown, or touched by any Node's
   podCIDRs is not free. podCIDRs larger than any node's are a mistake or a lie, and block nothing.
3. An allocation is in cooldown once its Node is gone, and is free after the quarantine. Until then
   only a Node of the same name gets it: it is the same machine, whose pods may still have its
   addresses.
4. A Node gets the allocation that its name asks for, if it is free, or else the free one with the
   lowest number.
5. A Node that cannot be served gets an Event that says why, and is served as soon as it can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice

from netmgr.kube.controller.allocations import Claim, NodeAllocation, NodeAllocations, NodeIndex
from netmgr.kube.controller.nodes import NodeView

# A kubelet can register its own Node with podCIDRs of its choice, and so would starve a whole pool
# with 10.0.0.0/8. kube-controller-manager's default of a /24 touches 16 allocations of a /28.
MOST_TOUCHED = 16
"""Allocations that one Node's podCIDRs may block without owning them."""

_REGISTER = (
    "podCIDRs never change, so drain and delete the Node and let its kubelet register it again; "
    "kube-controller-manager must run with --allocate-node-cidrs=false"
)


class RefusalReason(StrEnum):
    """Why a Node is not served: the reason of its Event."""

    NO_POOL = "NoNodePool"
    UNKNOWN_POOL = "UnknownNodePool"
    POOL_FULL = "NodePoolFull"
    OUTSIDE = "PodCIDROutsidePlan"
    TAKEN = "PodCIDRTaken"
    NO_ROUTE = "NoRouteToNode"
    TOO_MANY = "TooManyNodesForRoutes"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A Node that cannot be served, and what to do about it."""

    node: NodeView
    reason: RefusalReason
    message: str


@dataclass
class Decision:
    """What to write: claims first, then the Nodes."""

    claims: dict[NodeIndex, Claim | None] = field(default_factory=dict)
    """Claims that change; None: the allocation is free."""
    assignments: dict[str, NodeAllocation] = field(default_factory=dict)
    """What to write to each Node (by name): podCIDRs where it has none, and the annotation."""
    refusals: list[Refusal] = field(default_factory=list)


def decide(
    allocations: NodeAllocations,
    claims: Mapping[NodeIndex, Claim],
    nodes: Iterable[NodeView],
    now: float,
    quarantine: float,
) -> Decision:
    """Decide; `now` in seconds since the epoch, `quarantine` in seconds."""
    # Sorted: what a Node gets must not depend on the order in which a list or a watch delivers
    # them. The older Node chooses first.
    view = _View(allocations, claims, sorted(nodes, key=lambda node: (node.created, node.name)))
    # Nodes that have podCIDRs come first: what they have is fixed, and decides what is free.
    for node in view.nodes:
        if node.cidrs:
            _keep(view, node)
    _cool_down(view, now, quarantine)
    for node in view.nodes:
        # Behind the cooldowns: what has just become free is given out in the same round.
        if not node.cidrs and node.runs_pods:
            _serve(view, node, quarantine)
    return view.decision


def released(claims: Mapping[NodeIndex, Claim], decision: Decision) -> Iterator[Claim]:
    """Claims whose cooldown the decision begins: valid only if their Nodes are surely gone."""
    for index, claim in decision.claims.items():
        before = claims.get(index)
        if before is None or before.released is not None:
            continue
        if claim is None or claim.uid != before.uid or claim.released is not None:
            yield before


def takeovers(claims: Mapping[NodeIndex, Claim], decision: Decision) -> Iterator[Claim]:
    """Claims that replace another Node's: valid only if their own Nodes are surely there."""
    # A Node that is gone, and still listed with its podCIDRs, would else end the cooldown of the
    # one that had them since.
    for index, claim in decision.claims.items():
        before = claims.get(index)
        if claim is None or before is None or before.uid == claim.uid:
            continue
        # A Node that comes back has the cooldown of its own name, and no podCIDRs yet.
        if before.released is None or before.node != claim.node:
            yield claim


class _View:
    """The Nodes, and the claims as the decision changes them."""

    def __init__(
        self,
        allocations: NodeAllocations,
        claims: Mapping[NodeIndex, Claim],
        nodes: list[NodeView],
    ) -> None:
        self.allocations = allocations
        self.nodes = nodes
        self.live = {node.uid: node for node in nodes}
        self.claims = dict(claims)
        self.decision = Decision()
        # Kept apart from the claims: a podCIDR that matches no allocation of the plan blocks the
        # index, which has no holder then.
        self.blocked: set[NodeIndex] = set()
        """Indexes that some Node's podCIDRs touch without owning them."""
        self._held: dict[str, list[NodeIndex]] = {}
        for index, claim in claims.items():
            self._held.setdefault(claim.uid, []).append(index)
        self._candidates: dict[str, Iterator[NodeIndex]] = {}
        self._cooling: dict[tuple[str, str], NodeIndex] | None = None

    def of(self, node: NodeView) -> Iterator[Claim]:
        """The claims that a Node had before; two only if two controllers each gave it one."""
        for index in self._held.get(node.uid, ()):
            claim = self.claims.get(index)
            if claim and claim.uid == node.uid:
                yield claim

    def set(self, index: NodeIndex, claim: Claim | None) -> None:
        if claim is None:
            del self.claims[index]
        else:
            self.claims[index] = claim
        self.decision.claims[index] = claim

    def renew(self, claim: Claim) -> None:
        """End a claim's cooldown: its Node is there."""
        if claim.released is not None:
            self.set(claim.index, replace(claim, released=None))

    def assign(self, node: NodeView, allocation: NodeAllocation) -> None:
        if node.cidrs != allocation.cidrs or node.annotation != allocation.annotation:
            self.decision.assignments[node.name] = allocation

    def refuse(self, node: NodeView, reason: RefusalReason, message: str) -> None:
        if node.runs_pods:
            self.decision.refusals.append(Refusal(node, reason, message))

    def cooling_after(self, node: NodeView, pool: str) -> NodeIndex | None:
        """The index in cooldown after a Node of that name."""
        if self._cooling is None:
            self._cooling = {
                (claim.index.pool, claim.node): claim.index
                for claim in self.claims.values()
                if claim.released is not None
            }
        return self._cooling.pop((pool, node.name), None)

    def next_free(self, pool: str) -> NodeIndex | None:
        """The free index with the lowest number."""
        # One iterator for each pool and decision: what was not free stays so, and is not asked
        # again.
        numbers = range(self.allocations.capacity[pool])
        candidates = self._candidates.setdefault(pool, (NodeIndex(pool, n) for n in numbers))
        return next(filter(self.is_free, candidates), None)

    def is_free(self, index: NodeIndex) -> bool:
        return index not in self.claims and index not in self.blocked


def _keep(view: _View, node: NodeView) -> None:
    """Claim the allocation that a Node's podCIDRs are, whoever set them."""
    for claim in view.of(node):
        if claim.allocation.cidrs == node.cidrs:
            view.renew(claim)
            view.assign(node, claim.allocation)
            return
    # An index comes up to twice, once for each family: twice the limit and one more are enough to
    # know that it is exceeded, however large the podCIDR is.
    touched = dict.fromkeys(islice(view.allocations.touched(node.cidrs), 2 * MOST_TOUCHED + 1))
    allocation = view.allocations.at(next(iter(touched))) if len(touched) == 1 else None
    if allocation is not None and allocation.cidrs == node.cidrs:
        _adopt(view, node, allocation)
        return
    # A Node's own kubelet may have written this: it must not cost other Nodes their allocations.
    is_false = any(map(view.allocations.exceeds_a_node, node.cidrs))
    if is_false or len(touched) > MOST_TOUCHED:
        fault = "is more than one node has, so that others get their allocations of the plan"
    else:
        fault = "lies across allocations of the plan" if touched else "lies outside the plan"
        view.blocked.update(touched)
    cidrs = ", ".join(map(str, node.cidrs))
    view.refuse(
        node,
        RefusalReason.OUTSIDE,
        f"podCIDR {cidrs} {fault} of cluster {view.allocations.cluster}; {_REGISTER}",
    )


def _adopt(view: _View, node: NodeView, allocation: NodeAllocation) -> None:
    """Claim what a Node has without a claim, unless another Node has it as well."""
    claim = view.claims.get(allocation.index)
    holder = view.live.get(claim.uid) if claim else None
    if holder is not None and holder is not node and holder.cidrs == node.cidrs:
        cidrs = ", ".join(map(str, node.cidrs))
        # Neither can move, because podCIDRs are immutable once set; an administrator has to choose.
        for refused, other in ((node, holder), (holder, node)):
            view.refuse(
                refused,
                RefusalReason.TAKEN,
                f"podCIDR {cidrs} is also that of Node {other.name}; drain and delete one of them",
            )
        return
    view.set(allocation.index, Claim(allocation, node.name, node.uid))
    view.assign(node, allocation)


def _cool_down(view: _View, now: float, quarantine: float) -> None:
    """Begin and end the cooldown of claims whose Node is gone, or has another allocation."""
    for index, claim in list(view.claims.items()):
        node = view.live.get(claim.uid)
        # Empty: the claim is written, and the Node's podCIDRs are not yet.
        if node is not None and node.cidrs in ((), claim.allocation.cidrs):
            continue
        # One in the future is by another leader's clock: it counts from now on.
        if claim.released is None or claim.released > now:
            view.set(index, replace(claim, released=now))
        elif claim.released + quarantine <= now:
            view.set(index, None)


def _serve(view: _View, node: NodeView, quarantine: float) -> None:
    # A controller that ended between its two writes, of the claim and of the Node, leaves this.
    claimed = next((claim for claim in view.of(node) if claim.index not in view.blocked), None)
    if claimed is not None:
        view.renew(claimed)
        view.assign(node, claimed.allocation)
        return
    pool = node.pool
    if pool is None or pool not in view.allocations.capacity:
        _refuse_pool(view, node)
        return
    index = _choose(view, node, pool)
    allocation = view.allocations.at(index) if index else None
    if allocation is None:
        of_pool = (claim for claim in view.claims.values() if claim.index.pool == pool)
        cooling = sum(claim.released is not None for claim in of_pool)
        message = (
            f"node pool {pool} has allocations for {view.allocations.capacity[pool]} nodes and none"
            f" is free ({cooling} in cooldown for {quarantine:.0f} s after it)"
            ": raise its nodes or surge in the plan, and lock it"
        )
        view.refuse(node, RefusalReason.POOL_FULL, message)
        return
    view.set(allocation.index, Claim(allocation, node.name, node.uid))
    view.assign(node, allocation)


def _refuse_pool(view: _View, node: NodeView) -> None:
    known = ", ".join(view.allocations.capacity)
    if node.pool is None:
        message = f"no label says the node pool; label it with one of the plan's: {known}"
        view.refuse(node, RefusalReason.NO_POOL, message)
    else:
        message = (
            f"cluster {view.allocations.cluster} has no node pool {node.pool!r} in the plan; "
            f"there are: {known}"
        )
        view.refuse(node, RefusalReason.UNKNOWN_POOL, message)


def _choose(view: _View, node: NodeView, pool: str) -> NodeIndex | None:
    # Before the name: a machine that comes back keeps the addresses its pods may still have.
    cooling = view.cooling_after(node, pool)
    if cooling is not None and cooling not in view.blocked:
        return cooling
    named = view.allocations.named(node.name, pool)
    if named is not None and view.is_free(named):
        return named
    return view.next_free(pool)
