"""What a table of iptables can do, whichever variant of iptables holds it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from netmgr.kernel.xtables.entries import Entry
from netmgr.prefixes import Family


class Table(Protocol):
    """One table of one family, read fresh. Valid only while it is open."""

    @property
    def family(self) -> Family:
        """The IP version of its packets."""
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

    def append(self, chain: str, entry: Entry) -> None:
        """Put a rule at the chain's end, with the counts that it has."""
        ...

    def insert(self, chain: str, entry: Entry) -> None:
        """Put a rule at the chain's head, with the counts that it has."""
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
        """Have `edit` open and change tables, and write them back.

        `edit` may be called again on fresh readings.

        Raises:
            TryAgainLater: another program kept the tables for too long, or keeps changing them.
            KernelError: the kernel refused.
        """
        ...

    def leave(self) -> None:
        """Remove the built-in tables and chains that exist only because of us, if empty."""
        ...

    def close(self) -> None:
        """Give back sockets."""
        ...
