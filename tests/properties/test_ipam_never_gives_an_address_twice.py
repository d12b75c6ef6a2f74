"""No order of ADD, DEL, crash and restart gives an address to two pods, or gives it again too
early.

The model remembers who was told which address, and when it was given back. The process dies
before any SQL statement, or right after a commit; what the next one finds is the file as it
then was. Meanwhile people set the clock, the disk fills up, the machine is rebooted, and ranges
come and go.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from netmgr.errors import CapacityError, StateError
from netmgr.ipam.leases import Leases
from netmgr.ipam.pool import Timing
from netmgr.ipam.store import LeaseStore
from netmgr.model import Attachment, AttachmentKey, PodRef
from netmgr.prefixes import Address, Prefix
from tests.fakes.ledger_tools import folder_in_memory

RANGES = [Prefix.parse(text) for text in ("10.1.0.0/30", "10.1.0.9/32", "2001:db8::/126")]
OTHER_RANGES = [Prefix.parse(text) for text in ("10.1.0.2/31", "10.1.0.32/31")]
COOLDOWN, CONNECTION_WAIT = 30.0, 60.0
KEYS = [AttachmentKey(f"container-{number}", "eth0") for number in range(7)]


class Death(BaseException):
    """The process ends here."""


class MortalConnection:
    """An SQLite connection whose process dies `steps_left` statements from now;
    None is for ever."""

    def __init__(self, connection, store):
        self._connection = connection
        self._store = store

    def execute(self, statement: str, *arguments: object):
        self._store.step()
        result = self._connection.execute(statement, *arguments)
        if statement == "COMMIT":
            self._store.step()
        return result

    def executemany(self, statement: str, rows: Sequence[tuple[object, ...]]):
        for row in rows:
            self._store.step()
            self._connection.execute(statement, row)

    def __getattr__(self, name: str):
        return getattr(self._connection, name)


class MortalStore(LeaseStore):
    steps_left: int | None = None

    def arm(self, steps: int | None) -> None:
        self.steps_left = steps
        self._connection = MortalConnection(self._connection, self)

    def step(self) -> None:
        if self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left < 0:
                raise Death


class ManualClock:
    """What the model knows as true time, and what the machine's two clocks say of it."""

    def __init__(self):
        self.time = self.wall = 1000.0
        self.booted_at = 0.0

    def now(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.time - self.booted_at

    def advance(self, seconds: float) -> None:
        self.time += seconds
        self.wall += seconds


class Ipam(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = folder_in_memory()
        self.clock = ManualClock()
        self.connected: set[Address] = set()
        self.told: dict[AttachmentKey, tuple[Address, ...]] = {}
        """What runtimes were told and have not deleted."""
        self.released: dict[Address, float] = {}
        self.released_before_boot: set[Address] = set()
        self.full = False
        self.ranges = RANGES

    @initialize()
    def start(self):
        self._open()

    def _open(self, steps: int | None = None):
        self.store = MortalStore(self.folder / "ipam.sqlite")
        timing = Timing(COOLDOWN, CONNECTION_WAIT)
        self.leases = Leases(self.store, self.ranges, timing, self.clock, self.connected_of)
        self.store.arm(steps)
        self.full = False

    def connected_of(self, addresses: Iterable[Address]) -> set[Address]:
        return self.connected.intersection(addresses)

    def _add(self, key: AttachmentKey) -> None:
        attachment = self.leases.get(key)
        if attachment is None:
            pod = PodRef("ns", key.container_id)
            try:
                attachment = self.leases.reserve(Attachment(key, pod, (), "nm0", "/run/netns/x"))
            except CapacityError:
                self._check_pool_is_really_empty()
                return
            except StateError:
                assert self.full
                return
            self._check_may_be_given(attachment)
        self.told[key] = attachment.addresses

    def _check_pool_is_really_empty(self):
        for family in {block.family for block in self.ranges}:
            usable = {
                Address(family, value)
                for block in self.ranges
                if block.family is family
                for value in range(block.value, block.last + 1)
            }
            since = self.clock.time - COOLDOWN
            in_cooldown = {a for a in usable if self.released.get(a, -1e9) > since}
            # How long ago exactly an address was released before a reboot nobody can know.
            if usable <= self._held() | in_cooldown | self.connected | self.released_before_boot:
                return
        raise AssertionError("refused although an address of each family was free")

    def _held(self) -> set[Address]:
        return {address for attachment in self.leases.all() for address in attachment.addresses}

    def _is_of_the_ranges(self, address: Address) -> bool:
        return any(block.holds(address) for block in self.ranges)

    def _check_may_be_given(self, attachment: Attachment):
        for address in attachment.addresses:
            released_for = self.clock.time - self.released.get(address, float("-inf"))
            assert released_for >= COOLDOWN, f"{address} was given again after {released_for} s"
            assert address not in self.connected or released_for >= COOLDOWN + CONNECTION_WAIT
        families = {address.family for address in attachment.addresses}
        assert families == {block.family for block in self.ranges}
        assert all(map(self._is_of_the_ranges, attachment.addresses))

    def _delete(self, key: AttachmentKey) -> None:
        attachment = self.leases.get(key)
        if attachment is not None:
            # The moment counts from which the store knows of it: an unanswered DEL may be undone by
            # a crash.
            self.leases.release(attachment)
            for address in attachment.addresses:
                self.released[address] = self.clock.time
                self.released_before_boot.discard(address)
        self.told.pop(key, None)

    @rule(key=st.sampled_from(KEYS))
    def add(self, key):
        self._add(key)

    @rule(key=st.sampled_from(KEYS), connections_linger=st.booleans())
    def delete(self, key, connections_linger):
        if connections_linger:
            self.connected.update(self.told.get(key, ()))
        self._delete(key)

    @rule(ranges=st.sampled_from([RANGES, OTHER_RANGES]))
    def ranges_come_and_go(self, ranges):
        self.ranges = ranges
        self.leases.set_ranges(ranges)

    @rule(seconds=st.sampled_from([1.0, 29.0, 31.0, 100.0]))
    def time_passes(self, seconds):
        self.clock.advance(seconds)

    @rule(seconds=st.sampled_from([-1e6, -40.0, 40.0, 1e6]))
    def somebody_sets_the_clock(self, seconds):
        self.clock.wall += seconds

    @rule(full=st.booleans())
    def disk_fills_up_or_gets_room(self, full):
        self.full = full
        self.store._connection._connection.execute(f"PRAGMA query_only = {int(full)}")
        if not full:
            self.store.checkpoint()
            assert self.store.durable

    @rule()
    def machine_is_rebooted(self):
        self.clock.booted_at = self.clock.time
        self._restart_from_the_files_as_they_are()
        for attachment in self.leases.all():
            self._delete(attachment.key)
        self.released_before_boot = set(self.released) - {
            a for a, at in self.released.items() if at == self.clock.time
        }
        self.told.clear()

    @rule()
    def settle(self):
        self.leases.end_cooldowns()

    @rule()
    def connections_end(self):
        self.connected.clear()

    @rule(steps=st.integers(0, 9), key=st.sampled_from(KEYS), adding=st.booleans())
    def dies_in_the_middle(self, steps, key, adding):
        """A killed request was never answered: an ADD's runtime sends DEL, a DEL's runtime repeats
        it.
        """
        self.store.steps_left = steps
        before = self.leases.get(key)
        try:
            (self._add if adding else self._delete)(key)
        except Death:
            pass
        else:
            self.store.steps_left = None
            return
        self._restart_from_the_files_as_they_are()
        after = self.leases.get(key)
        if before is not None and after is None:
            self.released |= dict.fromkeys(before.addresses, self.clock.time)
            self.told.pop(key)
        if not adding or before is None:
            self._delete(key)

    @rule()
    def restarts(self):
        self._restart_from_the_files_as_they_are()

    def _restart_from_the_files_as_they_are(self):
        former = self.folder
        self.folder = Path(shutil.copytree(former, f"{former}+"))
        # Of a file that is opened anew this is made anew.
        (self.folder / "ipam.sqlite-shm").unlink(missing_ok=True)
        self.store.steps_left = None
        self.store.close()
        shutil.rmtree(former)
        self._open()

    @invariant()
    def nobody_shares_an_address(self):
        told = [address for addresses in self.told.values() for address in addresses]
        assert len(told) == len(set(told)), told

    @invariant()
    def withdrawn_are_exactly_the_held_ones_of_no_range(self):
        if hasattr(self, "leases"):
            orphans = {address for address in self._held() if not self._is_of_the_ranges(address)}
            assert set(self.leases.withdrawn()) == orphans
            states = self.leases.occupancy().values()
            assert sum(state["withdrawn"] for state in states) == len(orphans)

    @invariant()
    def what_a_runtime_was_told_is_remembered(self):
        if hasattr(self, "leases"):
            held = {attachment.key: attachment.addresses for attachment in self.leases.all()}
            assert self.told.items() <= held.items()

    def teardown(self):
        if hasattr(self, "leases"):
            self.store.close()
        shutil.rmtree(self.folder)


Ipam.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestIpam = Ipam.TestCase
