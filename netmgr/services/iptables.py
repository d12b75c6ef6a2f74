"""The iptables backend of Services: chains of our own in the legacy tables, no programs started.

A change touches the chains of the ServicePorts that changed, in one commit for each table and
family, under the lock that iptables takes; the kernel always gets the whole table, so that its
cost grows with it, unlike on nftables. Everything is compared when the backend begins and
whenever a table was changed, by us or by others: its fingerprint tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from netmgr.errors import KernelError
from netmgr.prefixes import Family, Prefix
from netmgr.rules import xt_listing, xtables_lock
from netmgr.rules.legacy_tables import LegacyTable, opened
from netmgr.services import xt_diff
from netmgr.services.model import Frontend, ServicePort
from netmgr.services.xt_diff import Wanted

_TABLES = ("nat", "filter")


class IptablesServices:
    """Holds Services in the tables nat and filter; whatever else goes to `ranges`, the seen prefixes, is refused.

    `lock_wait_seconds` bounds how long a change waits for another program to finish its own.
    """

    name = "iptables"

    def __init__(
        self,
        ranges: Iterable[Prefix],
        *,
        lock_path: Path = xtables_lock.LOCK_PATH,
        lock_wait_seconds: float = 5,
    ) -> None:
        self._ranges = tuple(sorted(ranges))
        self._families = tuple(sorted({prefix.family for prefix in self._ranges}))
        self._lock_path = lock_path
        self._lock_wait_seconds = lock_wait_seconds
        self._state: dict[ServicePort, Frontend] | None = None
        self._untold: list[str] = []
        self._fingerprints: dict[tuple[str, Family], bytes] = {}

    def held(self) -> dict[ServicePort, Frontend]:
        """Read the tables."""
        found: dict[ServicePort, Frontend] = {}
        for family in self._families:
            found |= xt_diff.state_of(xt_listing.read("nat", family), family)
        return found

    def put_right(self, wanted: Mapping[ServicePort, Frontend]) -> list[str]:
        """Compare each table that is not as it was left, and change what differs."""
        if self._state is None:
            self._untold = self._leave_other_families()
            self._state = dict(wanted)
        # What others did is put right before what is wanted anew is done: only the one is told as a repair.
        for family in self._families:
            for name in _TABLES:
                if self._fingerprints.get((name, family)) != xt_listing.read(name, family).fingerprint():
                    self._untold += self._compare(name, family, self._state)
        self.change(xt_diff.changes(self._state, wanted))
        repairs, self._untold = self._untold, []
        return repairs

    def change(self, changes: Mapping[ServicePort, Frontend | None]) -> None:
        """Fill the chains of what changed."""
        if self._state is None:
            raise KernelError("change services", details="what the kernel holds was not read yet")
        after = {seen: frontend for seen, frontend in {**self._state, **changes}.items() if frontend is not None}
        for family in self._families:
            try:
                self._apply(family, {seen: it for seen, it in changes.items() if seen.family is family})
            except KernelError:
                # Somebody took chains away, so that what is to be done cannot be known without comparing all.
                self._untold += self._compare("nat", family, after)
        self._state = after

    def hits(self) -> dict[ServicePort, int]:
        """The counters of the rules that lead to ServicePorts' chains."""
        found: dict[ServicePort, int] = {}
        for family in self._families:
            found |= xt_diff.hits_of(xt_listing.read("nat", family), family)
        return found

    def remove(self) -> None:
        """Take our chains, and the jumps to them, away."""
        for family in self._families:
            self._leave(family)
        self._state, self._fingerprints = None, {}

    def close(self) -> None:
        """Nothing is held open."""

    def _apply(self, family: Family, changes: Mapping[ServicePort, Frontend | None]) -> None:
        if changes:
            with self._edited("nat", family) as table:
                xt_diff.apply(table, changes)

    def _leave(self, family: Family) -> list[str]:
        repairs: list[str] = []
        for name in _TABLES:
            with self._edited(name, family) as table:
                repairs += xt_diff.converge(table, xt_listing.read(name, family), Wanted.nothing(name))
        return repairs

    def _leave_other_families(self) -> list[str]:
        """Take away what was opened of a family that has no range any more; tables nobody uses stay unmade."""
        others = [family for family in Family if family not in self._families and "nat" in xt_listing.in_use(family)]
        return [sentence for family in others for sentence in self._leave(family)]

    def _compare(self, name: str, family: Family, wanted: Mapping[ServicePort, Frontend]) -> list[str]:
        mine = _of(wanted, family)
        ranges = [prefix for prefix in self._ranges if prefix.family is family]
        with self._locked():
            # Read under the lock, so that nobody changes it before it is written back.
            listed = xt_listing.read(name, family)
            with opened(name, family) as table:
                repairs = xt_diff.converge(table, listed, Wanted.of(name, mine, ranges))
            left = xt_listing.read(name, family) if repairs else listed
            self._fingerprints[name, family] = left.fingerprint()
        return repairs

    @contextmanager
    def _edited(self, name: str, family: Family) -> Iterator[LegacyTable]:
        """Change a table under the lock. How it is left is not known before it was compared."""
        self._fingerprints.pop((name, family), None)
        with self._locked(), opened(name, family) as table:
            yield table

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with xtables_lock.held(self._lock_path, wait_seconds=self._lock_wait_seconds):
            yield
        xt_listing.give_memory_back()


def _of(services: Mapping[ServicePort, Frontend], family: Family) -> dict[ServicePort, Frontend]:
    return {seen: frontend for seen, frontend in services.items() if seen.family is family}
