"""What the rules need of a table of iptables, whichever variant of it holds the table."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from netmgr.prefixes import Family


@dataclass(frozen=True, slots=True)
class Entry:
    """One rule as the table has it: the bytes of `xt_entries`, counts included.

    `target` is a verdict, a chain or an extension, or empty; `handle` the rule's number where rules have one.
    """

    raw: bytes
    target: str
    family: Family
    handle: int = 0


class Table(Protocol):
    """One table of one family, read fresh. Valid only while it is open."""

    @property
    def family(self) -> Family:
        """Whose packets it meets."""
        ...

    def entries(self, chain: str) -> list[Entry]:
        """The chain's rules in order; none if there is no such chain."""
        ...

    def has_chain(self, chain: str) -> bool:
        """Whether the table has this chain."""
        ...

    def create_chain(self, chain: str) -> None:
        """Make an empty chain."""
        ...

    def flush_chain(self, chain: str) -> None:
        """Remove the chain's rules."""
        ...

    def delete_chain(self, chain: str) -> None:
        """Remove an empty chain that nothing jumps to."""
        ...

    def append(self, chain: str, entry: bytes) -> None:
        """Put a rule at the chain's end, with the counts that its bytes hold."""
        ...

    def insert(self, chain: str, entry: bytes) -> None:
        """Put a rule at the chain's head, with the counts that its bytes hold."""
        ...

    def delete(self, chain: str, entry: Entry) -> None:
        """Remove this rule, or the first one of the chain that equals it."""
        ...


Opener = Callable[[str, Family], AbstractContextManager[Table]]
"""Reads a table of a name and a family."""


class Tables(Protocol):
    """The tables of one variant. Thread-safe."""

    @property
    def name(self) -> str:
        """As `backend` in the node document names the variant."""
        ...

    def opened(self, name: str, family: Family) -> AbstractContextManager[Table]:
        """A table to look at.

        Raises:
            TryAgainLater: others change it all the time.
            KernelError: the kernel refused.
        """
        ...

    def change(self, edit: Callable[[Opener], None]) -> None:
        """Have `edit` open tables and change them, and write them back; it may be called again on fresh readings.

        Raises:
            TryAgainLater: another program kept the tables for too long, or changed them all the time.
            KernelError: the kernel refused.
        """
        ...

    def leave(self) -> None:
        """Take away what of iptables' own was not there before us, as far as nothing is in it."""
        ...

    def close(self) -> None:
        """Give back sockets."""
        ...
