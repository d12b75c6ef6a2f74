"""The agent's accounting killed between any two of its steps: reading, posting, removing,
repairing, and the rest.

A step is the beginning or the end of one call to the kernel, or one statement or row of the
ledger's transaction. The kernel is the tests' own, through whose rules packets are sent; it
outlives every agent.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from netmgr.agent.accounting import changeover
from netmgr.agent.accounting.accounting import examine
from netmgr.agent.accounting.accounts import Accounts
from netmgr.documents.accounting import NodeRules
from netmgr.documents.node import Backend
from netmgr.documents.special_use import PRIVATE_USE, SPECIAL_USE
from netmgr.ledger.history import By, Period
from netmgr.ledger.ledger import Ledger
from netmgr.ledger.store import LedgerStore
from netmgr.model import Attachment, AttachmentKey, PodRef
from netmgr.prefixes import Address, Prefix, merge
from netmgr.rules.engine import Rules
from netmgr.rules.policy import Policy
from tests.failpoints import steps
from tests.fakes.ledger_tools import LINGER, Clock, counts
from tests.fakes.rules import FakeBackend, Packet

RANGE = Prefix.parse("10.1.0.0/24")
POLICY = Policy(
    internal=tuple(merge((*SPECIAL_USE, *PRIVATE_USE))),
    ranges=(RANGE,),
    masquerade=True,
    node_rules=NodeRules.CORRECTED,
    rule_owner="netmgr",
    exact_prefix=Prefix.parse("10.0.0.0/8"),
)
MEMORY = Path("/dev/shm")  # noqa: S108  mkdtemp's names are safe; hundreds of syncs to a disk are slow
INTERNET = Address.parse("203.0.113.1")


@pytest.fixture
def room() -> Iterator[Path]:
    made = Path(
        tempfile.mkdtemp(prefix="netmgr-accounts-", dir=MEMORY if MEMORY.is_dir() else None)
    )
    yield made
    shutil.rmtree(made)


class Death(BaseException):
    """The process ends here."""


@dataclass
class Life:
    """How many steps are left; None is for ever."""

    steps_left: int | None = None
    taken: int = 0

    def step(self) -> None:
        self.taken += 1
        if self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left < 0:
                self.steps_left = None
                raise Death


class MortalStore(LedgerStore):
    """A store whose process may die at any statement and row, and after each transaction."""

    def __init__(self, path: Path, life: Life) -> None:
        self._life, self._is_open = life, False
        with steps.connections(self._step):
            super().__init__(path)
        self._is_open = True

    @contextmanager
    def _step(self, _kind: str, statement: str) -> Iterator[None]:
        # Not while it reads, when it opens and closes.
        may_die = self._is_open and not statement.startswith(("SELECT", "close", "ROLLBACK"))
        if may_die:
            self._life.step()
        yield
        if may_die and statement == "COMMIT":
            self._life.step()


class MortalCalls:
    """The kernel, called by somebody who may die just before a call or just after it."""

    def __init__(self, kernel: FakeBackend, life: Life) -> None:
        self._kernel, self._life = kernel, life

    def __getattr__(self, name: str) -> object:
        found = getattr(self._kernel, name)
        if not callable(found):
            return found

        def called(*arguments: object, **named: object) -> object:
            self._life.step()
            answer = found(*arguments, **named)
            self._life.step()
            return answer

        return called


def pod(name: str, address: str) -> Attachment:
    owner = PodRef("team-a", name, f"uid-{name}")
    return Attachment(
        AttachmentKey(f"container-{name}", "eth0"),
        owner,
        (Address.parse(address),),
        "nm0",
        "/run/x",
    )


WEB, DB, NEXT = pod("web", "10.1.0.5"), pod("db", "10.1.0.6"), pod("next", "10.1.0.5")


class Named(FakeBackend):
    """One of two kernel interfaces, both of which see every packet."""

    def __init__(self, name: Backend) -> None:
        super().__init__()
        self.name = name


@dataclass
class World:
    """One node: what the kernel and the file hold, what the runtime believes, and which backend
    the document says is to count.
    """

    folder: Path
    life: Life = field(default_factory=Life)
    chosen: Backend = Backend.NFTABLES
    kernels: dict[Backend, Named] = field(
        default_factory=lambda: {
            name: Named(name) for name in (Backend.NFTABLES, Backend.IPTABLES_LEGACY)
        }
    )
    held: dict[AttachmentKey, Attachment] = field(default_factory=dict)
    linked: set[AttachmentKey] = field(default_factory=set)
    sent: dict[str, int] = field(default_factory=dict)
    lives: int = 0

    @property
    def path(self) -> Path:
        return self.folder / f"life-{self.lives}" / "ledger.sqlite"

    def start(self) -> None:
        folder = self.path.parent
        folder.mkdir(exist_ok=True)
        self.store = MortalStore(self.path, self.life)
        ledger = Ledger(self.store, clock=Clock(), linger_seconds=LINGER, boot_id="boot")
        rules = self._rules(self.chosen)
        change = changeover.begin(folder, ledger, rules, self._rules)
        missing = examine(ledger, rules, *(change.rules if change else ()))
        assert not missing, "these were the true books"
        if change is None:
            changeover.note_only_backend(folder, ledger, rules)
        self.accounts, self.ledger = Accounts(rules, ledger, Clock(), 0, change), ledger
        # As the agent does, which lets go of attachments that have no link before.
        self.accounts.start([held for held in self.held.values() if held.key in self.linked])

    def _rules(self, name: Backend) -> Rules:
        return Rules(MortalCalls(self.kernels[name], self.life), POLICY)

    def surely(self, operation: Callable[[], None]) -> None:
        """Do it, and after a death again, as the runtime and the launcher's spool do."""
        while True:
            try:
                return operation()
            except Death:
                self.restart()

    def restart(self) -> None:
        while True:
            self.settle()  # or the copy would be of a file that is just being changed
            former, self.lives = self.path, self.lives + 1
            shutil.copytree(former.parent, self.path.parent)
            self.store.close()
            try:
                return self.start()
            except Death:
                continue

    def settle(self) -> None:
        if self.accounts._syncing is not None:
            self.accounts._syncing.join()

    def end(self) -> None:
        self.settle()
        self.store.close()
        shutil.rmtree(self.folder)

    def add(self, attachment: Attachment) -> None:
        self.held[attachment.key] = attachment
        self.accounts.begin(attachment)
        self.linked.add(attachment.key)

    def delete(self, attachment: Attachment) -> None:
        self.linked.discard(attachment.key)
        self.accounts.end(attachment)
        self.held.pop(attachment.key, None)

    def send(self, attachment: Attachment, size: int) -> None:
        packet = Packet(
            attachment.addresses[0], INTERNET, iif="nm0", way_back="nm0", oif="eth0", length=size
        )
        outcomes = [kernel.send(packet) for kernel in self.kernels.values()]
        assert any(outcome.counted for outcome in outcomes), "nobody counted"
        self.sent[attachment.pod.name] = self.sent.get(attachment.pod.name, 0) + size

    def read(self) -> None:
        self.accounts.read()

    def reconcile(self) -> None:
        self.accounts.reconcile()

    def tidy(self) -> None:
        self.accounts.tidy()

    def flush(self) -> None:
        kernel = self.kernels[self.chosen]
        kernel.state = type(kernel.state)()

    def choose(self, name: Backend) -> None:
        self.chosen = name
        self.restart()


def a_day(world: World) -> None:
    world.surely(lambda: world.add(WEB))
    world.send(WEB, 1000)
    world.surely(world.read)
    world.send(WEB, 500)
    world.surely(lambda: world.add(DB))
    world.send(DB, 300)
    world.surely(lambda: world.delete(WEB))
    world.surely(lambda: world.add(NEXT))
    world.send(NEXT, 77)
    world.surely(world.read)
    world.flush()
    world.surely(world.reconcile)
    world.send(DB, 60)
    world.surely(world.tidy)
    world.surely(lambda: world.delete(DB))
    world.surely(lambda: world.delete(NEXT))


def a_quiet_day(world: World) -> None:
    """Nobody takes anything away."""
    world.surely(lambda: world.add(WEB))
    world.send(WEB, 1000)
    world.surely(lambda: world.add(DB))
    world.surely(world.reconcile)
    world.surely(lambda: world.delete(WEB))
    world.surely(lambda: world.add(NEXT))
    world.surely(lambda: world.delete(NEXT))
    world.surely(lambda: world.delete(DB))


def lived(folder: Path, *deaths: int, day: Callable[[World], None] = a_day) -> World:
    """A world whose agent dies after so many steps, and so many steps after that."""
    folder.mkdir(exist_ok=True)
    world = World(folder)
    life = world.life
    pending = list(deaths)
    world.start()
    life.taken = 0
    life.steps_left = pending.pop(0) if pending else None
    restart = world.restart

    def restart_and_die_again() -> None:
        life.steps_left = pending.pop(0) if pending else None
        restart()

    world.restart = restart_and_die_again
    day(world)
    return world


def check(world: World, when: str) -> None:
    totals = world.ledger.totals()
    counted = {one["pod"]: one["bytes"] for one in totals.pods if one["traffic"] == "internet-out"}
    assert counted == world.sent, when
    assert {one["traffic"]: one["bytes"] for one in totals.namespaces} == {
        "internet-in": 0,
        "internet-out": sum(world.sent.values()),
    }, when
    usage = world.accounts.usage(Period(0, 1 << 40), [By.POD])
    assert {row["pod"]: row["bytes"] for row in usage} == world.sent, when
    assert not any(one["live"] for one in totals.pods), when
    assert counts(totals).keys() == {"removed"}, when
    assert all(one.missed.bytes == 0 for one in totals.audits), when


@pytest.mark.slow
def test_an_agent_killed_between_any_two_steps_loses_and_invents_nothing(room: Path) -> None:
    whole = lived(room)
    taken = whole.life.taken
    check(whole, "undisturbed")
    assert taken > 150
    for death in range(taken):
        world = lived(room / str(death), death)
        assert world.lives == 1
        check(world, f"killed after {death} of {taken} steps")
        world.end()


@pytest.mark.slow
@pytest.mark.parametrize("again", [5, 41])
def test_an_agent_killed_again_while_it_recovers_loses_and_invents_nothing(
    room: Path, again: int
) -> None:
    for death in range(3, 150, 11):
        world = lived(room / str(death), death, again)
        check(world, f"killed after {death} and {again} steps")
        world.end()


@pytest.mark.slow
def test_an_agent_killed_while_nobody_takes_anything_away_reports_no_gap(room: Path) -> None:
    """Not for a pod that never had a link either, nor for one that was read for the last time."""
    taken = lived(room, day=a_quiet_day).life.taken
    assert taken > 80
    for death in range(taken):
        world = lived(room / str(death), death, day=a_quiet_day)
        found = counts(world.ledger.totals())
        assert found == {}, f"killed after {death} of {taken} steps"
        assert sum(one["bytes"] for one in world.ledger.totals().namespaces) == 1000
        world.end()


def days_of_changes(world: World) -> None:
    world.surely(lambda: world.add(WEB))
    world.send(WEB, 1000)
    world.surely(lambda: world.choose(Backend.IPTABLES_LEGACY))
    world.send(WEB, 300)
    world.surely(lambda: world.add(DB))
    world.send(DB, 50)
    world.surely(lambda: world.choose(Backend.NFTABLES))
    world.send(WEB, 4)
    world.surely(lambda: world.delete(WEB))
    world.surely(lambda: world.delete(DB))
    world.surely(world.read)


def check_changes(world: World, when: str) -> None:
    totals = world.ledger.totals()
    counted = {one["pod"]: one["bytes"] for one in totals.pods if one["traffic"] == "internet-out"}
    assert counted == world.sent, when
    assert sum(one["bytes"] for one in totals.node) == sum(world.sent.values()), when
    assert not counts(totals), when
    assert not world.kernels[Backend.IPTABLES_LEGACY].state.sets, when


@pytest.mark.slow
def test_an_agent_killed_while_it_changes_its_backend_counts_every_packet_once(room: Path) -> None:
    whole = lived(room, day=days_of_changes)
    check_changes(whole, "undisturbed")
    taken = whole.life.taken
    assert taken > 150
    for death in range(taken):
        world = lived(room / str(death), death, day=days_of_changes)
        check_changes(world, f"killed after {death} of {taken} steps")
        world.end()
