"""Holds what simulated kernels counted against what ledgers and pages say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from netmgr.ledger.totals import Totals
from netmgr.model import Traffic
from netmgr.simulation.machine import Machine
from netmgr.simulation.prometheus import Page

Amounts = Mapping[tuple[str, str], int]
"""Bytes by namespace and direction."""


@dataclass
class Comparison:
    """Sums over machines, each of which is compared by itself as well.

    Attributes:
        kernels: bytes that pods exchanged with the internet, by the kernels.
        ledgers: the same by the ledgers.
        pages: the same by the last scrapes.
        gaps: times that a ledger says it may have lost something, by reason.
        differing: what does not agree on which machine.
        seen: the pages.
    """

    kernels: int = 0
    ledgers: int = 0
    pages: int = 0
    gaps: Counter[str] = field(default_factory=Counter)
    differing: list[str] = field(default_factory=list)
    seen: list[Page] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """Whether all counted the same, and nothing was lost."""
        return not self.differing and not self.gaps

    def add(self, machine: Machine) -> None:
        """Compare a machine's kernel, ledger and page as of now."""
        if machine.agent is None:
            # Its Node may never have got ranges; then there has been no pod, either.
            if machine.kernel.passed:
                self.differing.append(f"{machine.name}: its pods sent something, without an agent")
            return
        totals = machine.totals()
        page = Page.of(machine)
        kernel: Amounts = {(name, str(way)): n for (name, way), n in machine.kernel.passed.items()}
        ledger = {(one["namespace"], one["traffic"]): one["bytes"] for one in totals.namespaces}
        self.kernels += sum(kernel.values())
        self.ledgers += sum(ledger.values())
        self.pages += page.namespaces.total()
        self.seen.append(page)
        self.gaps.update({gap["reason"]: n for gap in totals.gaps if (n := gap["count"])})
        found = [
            *_different("ledger", kernel, ledger),
            *_different("page", kernel, page.namespaces),
        ]
        found += _of_node(machine, totals)
        self.differing += [f"{machine.name}: {what}" for what in found]


def _different(what: str, kernel: Amounts, other: Amounts) -> Iterator[str]:
    for key in sorted(kernel.keys() | other.keys()):
        if kernel.get(key, 0) != other.get(key, 0):
            namespace, traffic = key
            yield (
                f"{traffic} of {namespace}: the {what} has {other.get(key, 0)} bytes, "
                f"the kernel {kernel.get(key, 0)}"
            )


def _of_node(machine: Machine, totals: Totals) -> Iterator[str]:
    """The node as a whole: its pods and itself, and nothing that is no one's."""
    counted = {one["traffic"]: one["bytes"] for one in totals.node}
    for traffic in Traffic:
        of_pods = (n for (_, way), n in machine.kernel.passed.items() if way is traffic)
        passed = machine.kernel.own[traffic] + sum(of_pods)
        if counted.get(traffic, 0) != passed:
            yield f"{traffic} of the node: its ledger has {counted.get(traffic, 0)}, not {passed}"
    for one in totals.unattributed(runs_pods=True):
        if one["bytes"]:
            yield f"{one['traffic']}: {one['bytes']} bytes are counted for no pod"
