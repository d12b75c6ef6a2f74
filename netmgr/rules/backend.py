"""What a backend must be able to do. Implemented by nftables, iptables and the tests' fake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from netmgr.model import Sample
from netmgr.rules.model import Abilities, Observed, Ruleset
from netmgr.rules.policy import PodSets
from netmgr.rules.tagged import Serving
from netmgr.rules.transaction import Operation


class RuleBackend(Protocol):
    """One kernel interface that can hold the ruleset. Thread-safe.

    Every method raises KernelError when the kernel refuses, with what and why.
    """

    @property
    def name(self) -> str:
        """`nftables` or `iptables`."""
        ...

    @property
    def abilities(self) -> Abilities:
        """What it can do."""
        ...

    def observe(self, desired: Ruleset) -> Observed:
        """Read what the kernel holds, naming the rules of `desired` that are found in it."""
        ...

    def apply(self, operations: Sequence[Operation]) -> None:
        """Carry the operations out in order; atomically where the kernel allows it."""
        ...

    def render(self, operations: Sequence[Operation]) -> str:
        """The operations as text a person can run, one command a line."""
        ...

    def read(self, desired: Ruleset) -> list[Sample]:
        """Every counter of ours that the kernel has, the pods' and the node's."""
        ...

    def read_pods(self, pods: PodSets) -> list[Sample]:
        """The counters of these elements of pods' sets, as far as they exist."""
        ...

    def tallies(self, desired: Ruleset) -> dict[str, tuple[int, int]]:
        """Packets and bytes of the counters that are neither pods' nor the node's, as far as they exist."""
        ...

    def serving(self, desired: Ruleset) -> Serving:
        """Tells which of other people's rules count in place of rules of `desired`, so that they are not told twice."""
        ...

    def remove(self, desired: Ruleset) -> None:
        """Take away everything of ours, and nothing else."""
        ...

    def close(self) -> None:
        """Give back sockets and threads; the rules stay."""
        ...
