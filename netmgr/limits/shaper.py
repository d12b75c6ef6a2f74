"""Puts limits into the kernel: two IFBs with HTB's classes, and the chains that lead there.

The order of steps keeps pods limited, and connected, whenever the agent dies.
"""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing

from netmgr.errors import KernelError, SetupError
from netmgr.kernel import links, traffic_control
from netmgr.kernel.netlink import Netlink, Operation
from netmgr.kernel.traffic_control import ClassUsage, Shape
from netmgr.limits import quotas, rules, tree
from netmgr.limits.budgets import NodeBudget
from netmgr.limits.quotas import NodeQuota, QuotaReading, Standing
from netmgr.limits.rules import IFBS, KnownPeers, LinkChain, QuotaObject
from netmgr.limits.tree import Limited, Tree
from netmgr.model import Traffic
from netmgr.rules import nft_table
from netmgr.rules.nft_table import Listing, NftTable

Used = Callable[[Iterable[NodeQuota]], Mapping[NodeQuota, int]]
"""Bytes of budgets that are used, by the ledger."""


class Shaper:
    """The limits that are in the kernel. Usable from any thread.

    `peers` decide which class a packet is in. New quotas begin with what is `used`; what
    passes until they are there is added by `correct_quotas`. Pods' links count with `at_links`.

    Raises:
        SetupError: libnftables is not installed, or the kernel lacks what limits need.
        KernelError: it refused.
    """

    def __init__(self, peers: KnownPeers, used: Used, *, at_links: bool = False) -> None:
        self._peers = peers
        self._used = used
        # What a pod's link counts has waited; rules count what comes in before it waits.
        self._late = set(Traffic) if at_links else {Traffic.INTERNET_OUT}
        with ExitStack() as stack:
            self._channel = stack.enter_context(Netlink())
            self._table = stack.enter_context(closing(NftTable(rules.TABLE)))
            self._stack = stack.pop_all()
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}
        self._trees: dict[Traffic, Tree] = {}
        self._ifbs: dict[Traffic, int] = {}
        self._chains: frozenset[LinkChain] | None = None
        self._listing: Listing | None = None
        self._placed: dict[Traffic, set[int]] = {}
        self._budgets: dict[str, NodeQuota] = {}
        self._standings: dict[NodeQuota, Standing] = {}
        """By quotas without their sizes."""
        self._losses: object = None

    def close(self) -> None:
        """Close the sockets; the limits stay in force."""
        self._stack.close()

    def apply(self, read: Callable[[], Mapping[Traffic, Tree]]) -> list[str]:
        """Make the kernel hold the limits that `read` returns, which is called under the lock.

        Describes what another program had changed.
        """
        with self._lock:
            trees = read()
            self._numbers = tree.numbered(trees.values(), self._numbers)
            # Classes are there before a chain names them, and go after it: a packet in a class that
            # is not there passes at once.
            repairs = self._put_classes(trees)
            repairs += self._put_chains(trees)
            self._remove_classes(trees)
            self._trees = dict(trees)
        return repairs

    def add(self, trees: Mapping[Traffic, Tree]) -> None:
        """Add the limits of a new pod to those that are in the kernel, without a look at these."""
        with self._lock:
            self._numbers |= tree.numbered(trees.values(), self._numbers)
            for traffic, class_tree in trees.items():
                if class_tree.classes:
                    self._add_classes(traffic, class_tree)
            added = self._wanted(trees)
            names = {chain.name for chain in added}
            kept = {chain for chain in self._chains or () if chain.name not in names}
            self._write(added | kept, self._budgets | _budgets(trees, added))
            for traffic, class_tree in trees.items():
                # Budgets that are there have their rates until `retune` changes them.
                former = self._trees[traffic].classes
                there = {key: limited for key, limited in former.items() if limited.budget}
                joined = self._trees[traffic].joined(class_tree).joined(Tree(there, {}))
                self._trees[traffic] = joined

    def retune(self, read: Callable[[], Sequence[NodeBudget]]) -> None:
        """Have budgets that are in the kernel have other rates, without a look at the kernel.

        `read` is called under the lock. Bytes of the day are changed by `correct_quotas`, then.
        """
        with self._lock:
            held = read()
            for traffic, index in self._ifbs.items():
                changed = tree.retuned(self._trees[traffic], held)
                retuned = self._trees[traffic].joined(Tree(changed, {}))
                # Without a number it is one that is to go, where the kernel refused the rest.
                for key in filter(self._numbers.__contains__, changed):
                    shape = tree.shape(retuned, changed[key], self._numbers)
                    number = self._numbers[key]
                    self._channel.transact([traffic_control.put_class(index, number, shape)])
                # Not before the kernel has them: it is asked again for what it refused.
                self._trees[traffic] = retuned
            for quota in filter(None, (budget.quota for budget in held)):
                if quota.object in self._budgets:
                    self._budgets[quota.object] = quota

    def _add_classes(self, traffic: Traffic, class_tree: Tree) -> None:
        if traffic not in self._ifbs:
            self._ifbs[traffic], _ = self._ifb(traffic)
        known = self._placed.setdefault(traffic, set())
        shapes = tree.shapes(class_tree, self._numbers)
        new = {number: shape for number, shape in shapes.items() if number not in known}
        self._put_shapes(self._ifbs[traffic], new, {})
        known.update(new)

    @property
    def budgets(self) -> Sequence[NodeQuota]:
        """The quotas in force."""
        return tuple(self._budgets.values())

    def correct_quotas(self, read: Used, losses: Callable[[], object], now: float) -> None:
        """Have each quota be spent when what is left of its budget has passed.

        What passes before its day has begun by the node's clock the ledger has for the day before.

        `read` returns what is used, after a reading; `losses` something that differs after the
        ledger has missed anything. Where the kernel refuses, quotas are spent as they were to be.
        """
        with self._lock:
            if not self._budgets:
                return
            before, waiting = self._objects(), self._waiting()
            used, missed = read(self._budgets.values()), losses()
            # Once more: what passes during the look is in the ledger or not.
            after = self._objects()
            is_whole, self._losses = missed == self._losses, missed
            changes: dict[str, int] = {}
            begun: list[str] = []
            standings: dict[NodeQuota, Standing] = {}
            for name in self._budgets.keys() & before.keys() & after.keys():
                budget, quota = self._budgets[name], after[name]
                counts = quota.bound, before[name].counted, quota.counted
                size = before.get(budget.size_object, QuotaObject(budget.bytes, 0)).bound
                # What a quota that is over has counted is not shown, so it goes on from 0.
                look = QuotaReading(
                    *((0, 0, 0) if quota.is_over else counts), waiting[budget], used[budget], size
                )
                key, is_seen = budget.without_size, is_whole and budget.began <= now
                former = self._standings.get(key)
                standing = quotas.corrected(budget, look, former, is_whole=is_seen)
                standings[key] = standing
                if quota.is_over and standing.bound:
                    begun.append(name)
                if (standing.bound, standing.size) != (quota.bound, size):
                    # In the same transaction.
                    changes |= dict.fromkeys(budget.objects[1:], standing.size)
                    changes[name] = standing.bound
            if begun:
                # By a bound of 0 nothing passes: whoever resets the count, or kills the agent
                # between these steps, opens nothing.
                self._table.run(rules.bounds(dict.fromkeys(begun, 0)))
                self._table.run(rules.resets(begun))
            if changes:
                self._table.run(rules.bounds(changes))
            # Not before the kernel has them: by its size others are lent what is left.
            self._standings |= standings
            self._forget_periods()

    def missed(self, budget: NodeQuota) -> int:
        """At least how many bytes of a budget passed that the ledger has not seen."""
        standing = self._standings.get(budget.without_size)
        return standing.least if standing else 0

    def size(self, budget: NodeQuota) -> int:
        """The bytes that the kernel has for it; less cannot be had of one that was lowered."""
        standing = self._standings.get(budget.without_size)
        return standing.size if standing and budget.object in self._budgets else budget.bytes

    def _forget_periods(self) -> None:
        # Only of periods that are over: a pod may come back until then.
        current = {budget.began for budget in self._budgets.values()}
        for budget in list(self._standings):
            if budget.began not in current:
                del self._standings[budget]

    def _objects(self) -> dict[str, QuotaObject]:
        objects = self._table.objects("quotas table")
        listed = [item["quota"] for item in objects if "quota" in item]
        return {quota["name"]: QuotaObject(quota["bytes"], quota["used"]) for quota in listed}

    def _waiting(self) -> Mapping[NodeQuota, int]:
        """Bytes that were charged to each budget and are not in the ledger yet, since they wait."""
        backlogs = dict.fromkeys(self._budgets.values(), 0)
        for limited, amounts in self._read_usage(self._trees, self._numbers, self._ifbs):
            for budget in backlogs:
                if (
                    budget.traffic in self._late
                    and limited.traffic == budget.traffic
                    and budget.charges(limited.namespace, limited.pod, limited.budget)
                ):
                    backlogs[budget] += amounts.backlog
        return backlogs

    def usage(self) -> list[tuple[Limited, ClassUsage]]:
        """What each class has let pass, delayed and dropped."""
        # Not held while the kernel lists classes, which no ADD should wait for.
        with self._lock:
            known = self._trees, self._numbers, dict(self._ifbs)
        return self._read_usage(*known)

    def _read_usage(
        self, trees: Mapping[Traffic, Tree], numbers: Mapping[str, int], ifbs: dict[Traffic, int]
    ) -> list[tuple[Limited, ClassUsage]]:
        usage: list[tuple[Limited, ClassUsage]] = []
        for traffic, index in ifbs.items():
            present = traffic_control.read_classes(self._channel, index)
            # One may have gone meanwhile.
            usage += [
                (limited, present[number][1])
                for key, limited in trees[traffic].classes.items()
                if (number := numbers.get(key)) in present
            ]
        return usage

    def _put_classes(self, trees: Mapping[Traffic, Tree]) -> list[str]:
        repairs: list[str] = []
        for traffic, class_tree in trees.items():
            if not class_tree.classes and traffic not in self._ifbs:
                continue
            index, made = self._ifb(traffic)
            if self._ifbs.get(traffic, index) != index:
                # Chains lead to a link by its index, and what is sent to one that is not there is
                # lost. So all are written at once.
                self._chains = None
            if traffic in self._ifbs:
                repairs += made
            self._ifbs[traffic] = index
            existing = traffic_control.read_classes(self._channel, index)
            shapes = tree.shapes(class_tree, self._numbers)
            self._put_shapes(index, shapes, existing)
            self._placed[traffic] = set(shapes)
        return repairs

    def _put_shapes(
        self,
        index: int,
        shapes: Mapping[int, Shape],
        existing: Mapping[int, tuple[Shape, ClassUsage]],
    ) -> None:
        # Packets wait in a pod's class, and in a namespace's only through its pods'.
        inner = {shape.parent for shape in shapes.values()}
        for number, shape in shapes.items():
            present = existing.get(number)
            if present is None or not present[0].is_like(shape):
                self._channel.transact([traffic_control.put_class(index, number, shape)])
            if present is None and number not in inner:
                traffic_control.add_queue(self._channel, index, number, shape)

    def _ifb(self, traffic: Traffic) -> tuple[int, list[str]]:
        """The index of a direction's IFB, and what of it was missing and has been made."""
        name, made = IFBS[traffic], list[str]()
        if self._attempt("IFB links (CONFIG_IFB)", links.create_ifb(name)):
            made.append(f"link {name} was missing")
        link = self._channel.query(links.show_link(name), links.link_of)
        if not link.up:
            self._channel.transact([links.raise_index(link.number)])
            made.append(f"link {name} was down")
        if self._attempt("HTB (CONFIG_NET_SCH_HTB)", traffic_control.make_root(link.number)):
            made.append(f"{name} had no HTB")
        return link.number, made

    def _attempt(self, needed: str, operation: Operation) -> bool:
        """Whether something was made that was not there."""
        try:
            self._channel.transact([operation])
        except KernelError as error:
            if error.errno == errno.EEXIST:
                return False
            raise SetupError(f"limits need {needed}: {error}") from None
        return True

    def _wanted(self, trees: Mapping[Traffic, Tree]) -> frozenset[LinkChain]:
        present = {name: index for index, name in socket.if_nameindex()}
        return frozenset(
            LinkChain(
                link,
                present[link],
                traffic,
                self._numbers.get(target.internet, 0),
                self._numbers.get(target.rest, 0),
                tuple(
                    (budget.object, self._numbers.get(slow, 0)) for budget, slow in target.charges
                ),
                tuple((kind, self._numbers[key]) for kind, key in target.classes),
            )
            for traffic, class_tree in trees.items()
            for link, target in class_tree.links.items()
            if link in present
        )

    def _put_chains(self, trees: Mapping[Traffic, Tree]) -> list[str]:
        repairs: list[str] = []
        wanted = self._wanted(trees)
        if self._chains is not None and self._is_changed(wanted & self._chains):
            repairs.append(f"table {rules.TABLE} was changed")
            self._chains = None
        budgets = _budgets(trees, wanted)
        if self._chains == wanted and self._budgets == budgets:
            return repairs
        # Not taken for what was written: another program may have been between.
        self._table.listing(rules.names(self._write(wanted, budgets)))
        return repairs

    def _write(
        self, wanted: frozenset[LinkChain], budgets: dict[str, NodeQuota]
    ) -> frozenset[LinkChain]:
        """Have the table hold these chains and quotas; returns the chains that were written."""
        written = wanted - (self._chains or frozenset())
        if self._chains is None or not self._change(wanted, self._chains, budgets):
            written = wanted
            listing = self._table.listing()
            kept = listing.quotas & _objects(budgets).keys()
            removed = [
                *(("chain", name) for name in listing.chains),
                *(("set", name) for name in listing.sets),
                *(("quota", name) for name in listing.quotas - kept),
            ]
            made = self._made(budgets, kept)
            self._table.wake()
            self._table.run(rules.whole(sorted(wanted), self._peers, removed, made))
        self._chains, self._budgets = wanted, budgets
        return written

    def _change(
        self,
        wanted: frozenset[LinkChain],
        present: frozenset[LinkChain],
        budgets: Mapping[str, NodeQuota],
    ) -> bool:
        """Add and remove chains; False if that is not possible."""
        added, removed = sorted(wanted - present), sorted(present - wanted)
        made = self._made(budgets, self._budgets)
        unused = sorted(_objects(self._budgets).keys() - _objects(budgets).keys())
        try:
            self._table.run(rules.changed(added, removed, self._peers, made, unused))
        except KernelError:
            # Some kernels remove a chain with its link, and some leave it.
            return False
        return True

    def _made(
        self, budgets: Mapping[str, NodeQuota], present: Collection[str]
    ) -> dict[str, QuotaObject]:
        """The objects that are not there yet."""
        missing = {name: budget for name, budget in budgets.items() if name not in present}
        used = self._used(missing.values()) if missing else {}
        made: dict[str, QuotaObject] = {}
        for name, budget in missing.items():
            size, key = budget.bytes, budget.without_size
            # A pod that comes back by its name has what is left.
            former = self._standings.get(key)
            new = Standing(size, size - used[budget], used[budget], size)
            self._standings[key] = former.resized(size) if former else new
            made |= {other: QuotaObject(size, 0) for other in budget.objects}
            # The kernel refuses one of which more is used than there is (nft_quota_do_init).
            made[name] = QuotaObject(size, min(used[budget] + self.missed(budget), size))
        return made

    def _is_changed(self, still: frozenset[LinkChain]) -> bool:
        """Whether the table is not as it was written, but for chains of links that went."""
        listing = self._table.listing()
        if listing is self._listing:
            return False
        self._listing = listing
        # Asked for last: a chain may go with its link, or stay without it.
        present = {(name, index) for index, name in socket.if_nameindex()}
        still = frozenset(chain for chain in still if (chain.link, chain.link_index) in present)
        gone = rules.names(self._chains or ()) - rules.names(still)
        return not rules.holds(listing, still, gone, self._peers)

    def _remove_classes(self, trees: Mapping[Traffic, Tree]) -> None:
        for traffic, index in self._ifbs.items():
            existing = traffic_control.read_classes(self._channel, index)
            stale = existing.keys() - tree.shapes(trees[traffic], self._numbers).keys()
            parents = {number: shape.parent for number, (shape, _) in existing.items()}
            # A class goes after those that are in it.
            for number in sorted(stale, key=lambda number: _depth(number, parents), reverse=True):
                self._channel.transact([traffic_control.delete_class(index, number)])


def _budgets(trees: Mapping[Traffic, Tree], chains: Iterable[LinkChain]) -> dict[str, NodeQuota]:
    """The budgets that chains charge, by the names of their objects."""
    charged = {name for chain in chains for name, _ in chain.quotas}
    targets = [target for class_tree in trees.values() for target in class_tree.links.values()]
    budgets = {budget.object: budget for target in targets for budget, _ in target.charges}
    return {name: budget for name, budget in budgets.items() if name in charged}


def _depth(number: int, parents: Mapping[int, int]) -> int:
    return 1 + _depth(parents[number], parents) if number in parents else 0


def _objects(budgets: Mapping[str, NodeQuota]) -> dict[str, NodeQuota]:
    """The budgets by the names of all their objects."""
    return {name: budget for budget in budgets.values() for name in budget.objects}


def remove() -> Iterator[str]:
    """Remove all limits from the machine; describes each thing done."""
    # The table before the links: what is sent to one that is gone is lost.
    if nft_table.remove(rules.TABLE):
        yield f"table {rules.TABLE} was removed"
    present = {name: index for index, name in socket.if_nameindex()}
    with Netlink() as channel:
        for name in IFBS.values():
            if name in present:
                channel.transact([links.delete_link(present[name])])
                yield f"link {name} was removed"
