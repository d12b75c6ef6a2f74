"""Puts limits into the kernel: two IFBs with HTB's classes, and the chains that lead there.

The order of steps keeps pods limited, and connected, whenever the agent dies: classes are there
before a chain names them, and go after it. A packet in a class that is not there passes at once.
One that is sent to a link that is not there is lost, so an IFB that was made anew gets its chains
at once.
"""

from __future__ import annotations

import errno
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack

from netmgr.errors import KernelError, SetupError
from netmgr.kernel import links, nf_tables, traffic_control
from netmgr.kernel.libnftables import LibNftables
from netmgr.kernel.netlink import Netlink, Operation
from netmgr.kernel.nf_tables import NFPROTO_NETDEV
from netmgr.kernel.nf_tables_socket import NO_NF_TABLES, NftSocket
from netmgr.kernel.traffic_control import ClassUsage, Shape
from netmgr.limits import rules, tree
from netmgr.limits.rules import IFBS, Chain
from netmgr.limits.tree import Limited, Tree
from netmgr.model import Traffic
from netmgr.prefixes import Prefix

_BLOCK = re.compile(r"^\t(?:set|chain) (\S+) \{\n(.*?)^\t\}$", re.MULTILINE | re.DOTALL)


class Shaper:
    """The limits that are in the kernel. Usable from any thread.

    Raises:
        SetupError: libnftables is not installed.
    """

    def __init__(self, internal: Sequence[Prefix]) -> None:
        self._internal = internal
        with ExitStack() as stack:
            self._channel = stack.enter_context(Netlink())
            self._nft = LibNftables()
            stack.callback(self._nft.close)
            self._socket = stack.enter_context(NftSocket())
            self._stack = stack.pop_all()
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}
        self._trees: Mapping[Traffic, Tree] = {}
        self._ifbs: dict[Traffic, int] = {}
        self._chains: frozenset[Chain] | None = None
        self._generation = -1
        self._blocks: dict[str, str] = {}
        self._unlisted: frozenset[Chain] = frozenset()
        self._placed: dict[Traffic, set[int]] = {}

    def close(self) -> None:
        """Close the sockets; the limits stay in force."""
        self._stack.close()

    def apply(self, read: Callable[[], Mapping[Traffic, Tree]]) -> list[str]:
        """Make the kernel hold the limits that `read` returns, which is called under the lock.

        Describes what another program had changed.

        Raises:
            SetupError: the kernel lacks what limits need.
            KernelError: it refused.
        """
        with self._lock:
            trees = read()
            self._numbers = tree.numbered(trees.values(), self._numbers)
            repairs = self._put_classes(trees)
            repairs += self._put_chains(self._wanted(trees))
            self._remove_classes(trees)
            self._trees = trees
        return repairs

    def add(self, trees: Mapping[Traffic, Tree]) -> None:
        """Add the limits of a new pod to those that are in the kernel, without a look at these.

        Raises:
            SetupError: the kernel lacks what limits need.
            KernelError: it refused.
        """
        with self._lock:
            self._numbers |= tree.numbered(trees.values(), self._numbers)
            for traffic, one in trees.items():
                if one.classes:
                    self._add_classes(traffic, one)
            self._add_chains(self._wanted(trees))
            self._trees = {
                traffic: self._trees[traffic].joined(one) for traffic, one in trees.items()
            }

    def _add_classes(self, traffic: Traffic, one: Tree) -> None:
        if traffic not in self._ifbs:
            self._ifbs[traffic], _ = self._ifb(traffic)
        known = self._placed.setdefault(traffic, set())
        shapes = tree.shapes(one, self._numbers)
        new = {number: shape for number, shape in shapes.items() if number not in known}
        self._put_shapes(self._ifbs[traffic], new, {})
        known |= new.keys()

    def _add_chains(self, added: frozenset[Chain]) -> None:
        present, names = self._chains or frozenset(), {chain.name for chain in added}
        wanted = added | {chain for chain in present if chain.name not in names}
        if self._chains is None or not self._change(wanted, present):
            self._nft.run(rules.whole(sorted(wanted), self._internal))
        self._chains = wanted
        self._unlisted |= added - present

    def usage(self) -> list[tuple[Limited, ClassUsage]]:
        """What each class has let pass, delayed and dropped."""
        with self._lock:
            trees, numbers, ifbs = self._trees, self._numbers, dict(self._ifbs)
        found: list[tuple[Limited, ClassUsage]] = []
        for traffic, index in ifbs.items():
            present = traffic_control.read_classes(self._channel, index)
            for limited in trees[traffic].classes.values():
                number = numbers[limited.key]
                # It may have gone meanwhile.
                if number in present:
                    found.append((limited, present[number][1]))
        return found

    def _put_classes(self, trees: Mapping[Traffic, Tree]) -> list[str]:
        repairs: list[str] = []
        for traffic, one in trees.items():
            if not one.classes and traffic not in self._ifbs:
                continue
            index, made = self._ifb(traffic)
            if self._ifbs.get(traffic, index) != index:
                # Chains lead to a link by its index.
                self._chains = None
            if traffic in self._ifbs:
                repairs += made
            self._ifbs[traffic] = index
            found = traffic_control.read_classes(self._channel, index)
            shapes = tree.shapes(one, self._numbers)
            self._put_shapes(index, shapes, found)
            self._placed[traffic] = set(shapes)
        return repairs

    def _put_shapes(
        self,
        index: int,
        shapes: Mapping[int, Shape],
        found: Mapping[int, tuple[Shape, ClassUsage]],
    ) -> None:
        # Packets wait in a pod's class, and in a namespace's only through its pods'.
        inner = {shape.parent for shape in shapes.values()}
        for number, shape in shapes.items():
            present = found.get(number)
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

    def _wanted(self, trees: Mapping[Traffic, Tree]) -> frozenset[Chain]:
        present = {name: index for index, name in socket.if_nameindex()}
        return frozenset(
            Chain(
                link,
                present[link],
                traffic,
                self._numbers[target.internet],
                self._numbers.get(target.rest, 0),
            )
            for traffic, one in trees.items()
            for link, target in one.links.items()
            if link in present
        )

    def _put_chains(self, wanted: frozenset[Chain]) -> list[str]:
        repairs: list[str] = []
        if self._chains is not None and self._is_changed(wanted & self._chains):
            repairs.append(f"table {rules.TABLE} was changed")
            self._chains = None
        if self._chains == wanted:
            return repairs
        if self._chains is None or not self._change(wanted, self._chains):
            self._nft.run(rules.whole(sorted(wanted), self._internal))
        self._chains = wanted
        # In this order: what changes after the number was read is found by the next look.
        self._generation = self._socket.generation()
        self._blocks, self._unlisted = self._listing(), frozenset()
        return repairs

    def _change(self, wanted: frozenset[Chain], present: frozenset[Chain]) -> bool:
        """Add and remove chains; False if that is not possible."""
        added, removed = sorted(wanted - present), sorted(present - wanted)
        try:
            self._nft.run(rules.changed(added, removed, self._internal))
        except KernelError:
            # Some kernels remove a chain with its link, and some leave it.
            return False
        return True

    def _is_changed(self, still: frozenset[Chain]) -> bool:
        """Whether the table is not as it was written, but for chains of links that went.

        Listed only after somebody changed a table.
        """
        generation = self._socket.generation()
        if generation == self._generation:
            return False
        self._generation = generation
        known = {chain.name for chain in self._chains or ()}
        gone = known - {chain.name for chain in still}
        now = self._listing()
        before = dict(self._blocks)
        for chain in self._unlisted:
            listed = now.get(chain.name, "")
            before[chain.name] = listed if rules.leads(listed, chain) else "not as it was written"
        self._blocks, self._unlisted = now, frozenset()
        return any(
            before.get(name) != now.get(name) for name in (before.keys() | now.keys()) - gone
        )

    def _listing(self) -> dict[str, str]:
        """The table's chains and sets, by name, as nft shows them."""
        try:
            return dict(_BLOCK.findall(self._nft.run(f"list table {rules.TABLE}\n")))
        except KernelError:
            return {}

    def _remove_classes(self, trees: Mapping[Traffic, Tree]) -> None:
        for traffic, index in self._ifbs.items():
            found = traffic_control.read_classes(self._channel, index)
            stale = found.keys() - tree.shapes(trees[traffic], self._numbers).keys()
            # A class goes after those that are in it.
            for number in sorted(stale, key=lambda each: not found[each][0].parent):
                self._channel.transact([traffic_control.delete_class(index, number)])


def remove() -> Iterator[str]:
    """Remove all limits from the machine; describes each thing done.

    Raises:
        KernelError: the kernel refused.
    """
    # The table before the links: what is sent to one that is gone is lost.
    if _remove_table():
        yield f"table {rules.TABLE} was removed"
    present = {name: index for index, name in socket.if_nameindex()}
    with Netlink() as channel:
        for name in IFBS.values():
            if name in present:
                channel.transact([links.delete_link(present[name])])
                yield f"link {name} was removed"


def _remove_table() -> bool:
    """Whether it was there."""
    with NftSocket() as channel:
        try:
            channel.commit([nf_tables.delete_table(rules.TABLE.split()[1], NFPROTO_NETDEV)])
        except KernelError as error:
            if error.errno == errno.ENOENT or error.errno in NO_NF_TABLES:
                return False
            raise
    return True
