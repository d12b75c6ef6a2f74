"""What leases keep through restarts and reboots, and what they never make anybody wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from netmgr.errors import CapacityError
from netmgr.ipam.leases import Leases
from netmgr.ipam.pool import Timing
from netmgr.ipam.store import LeaseStore
from netmgr.model import Attachment, AttachmentKey, PodRef
from netmgr.prefixes import Address, Family, Prefix
from tests.waiting import PATIENCE

Open = Callable[..., Leases]
Lookup = Callable[[Iterable[Address]], set[Address]]


@dataclass
class Clock:
    """Seconds since boot; nothing here may ask for the time of day."""

    seconds: float = 1000.0

    def now(self) -> float:
        raise AssertionError("the time of day was asked for")

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opened(tmp_path: Path, clock: Clock):
    """Opens the leases of four addresses, whose former owner is closed first."""
    made: list[Leases] = []

    def open_leases(lookup: Lookup = lambda _: set(), ranges: str = "10.1.0.0/30") -> Leases:
        while made:
            made.pop().store.close()
        store = LeaseStore(tmp_path / "ipam.sqlite")
        blocks = [Prefix.parse(text) for text in ranges.split()]
        made.append(Leases(store, blocks, Timing(30, 60), clock, lookup))
        return made[-1]

    yield open_leases
    while made:
        made.pop().store.close()


def held(leases: Leases, name: str, started_at: float = 0.0, *asked: str) -> Attachment:
    key, pod = AttachmentKey(name, "eth0"), PodRef("ns", name)
    addresses = tuple(map(Address.parse, asked))
    return leases.reserve(Attachment(key, pod, addresses, "nm0", "/run/netns/x", started_at))


def released(leases: Leases, many: int = 4) -> None:
    """Have pods come and go."""
    for attachment in [held(leases, f"pod-{number}") for number in range(many)]:
        leases.release(attachment)


def last_octets(attachments: Iterable[Attachment]) -> list[int]:
    return [address.value & 0xFF for attachment in attachments for address in attachment.addresses]


def test_the_order_of_releases_outlives_a_restart(opened: Open, clock: Clock) -> None:
    leases = opened()
    attachments = [held(leases, f"pod-{number}") for number in range(4)]
    for number in (2, 0, 3, 1):
        leases.release(attachments[number])
        clock.seconds += 1
    clock.seconds += 27
    leases.end_cooldowns()
    assert leases.occupancy()[attachments[0].addresses[0].family]["free"] == 2
    leases = opened()
    clock.seconds += 30
    leases.end_cooldowns()
    assert last_octets(held(leases, f"again-{number}") for number in range(4)) == [2, 0, 3, 1]


def test_a_release_that_lies_ahead_does_not_rest_for_ever(opened: Open, clock: Clock) -> None:
    released(opened())
    clock.seconds = 20  # the machine was rebooted
    leases = opened()
    leases.end_cooldowns()
    assert [state["free"] for state in leases.occupancy().values()] == [0]
    clock.seconds = 31
    leases.end_cooldowns()
    assert [state["free"] for state in leases.occupancy().values()] == [4]


def test_nobody_waits_while_an_add_walks_the_connection_table(opened: Open, clock: Clock) -> None:
    answered: list[bool] = []

    def slow_walk(_: Iterable[Address]) -> set[Address]:
        other = threading.Thread(target=leases.occupancy, daemon=True)
        other.start()
        other.join(PATIENCE)
        answered.append(not other.is_alive())
        return set()

    leases = opened(slow_walk)
    attachments = [held(leases, f"pod-{number}") for number in range(4)]
    leases.release(attachments[1])
    clock.seconds += 31
    assert last_octets([held(leases, "next")]) == [1]
    assert answered == [True]


def test_an_add_gets_an_address_though_others_take_some(opened: Open, clock: Clock) -> None:
    """As long as any address is free, or its cooldown over, no ADD is refused."""
    rounds: list[int] = []

    def taken_meanwhile(due: Iterable[Address]) -> set[Address]:
        rounds.append(len(list(due)))
        if len(rounds) == 1:
            # Another ADD was quicker, and its pod has come and gone.
            leases.end_cooldowns()
            leases.release(held(leases, "quicker"))
            clock.seconds += 31
            for number in range(3):
                held(leases, f"others-{number}")
        return set()

    leases = opened(taken_meanwhile)
    released(leases)
    clock.seconds += 31
    assert last_octets([held(leases, "slower")]) == [0]


def test_connections_of_those_released_first_keep_no_other_address_from_an_add(
    opened: Open, clock: Clock
) -> None:
    def of_the_first(due: Iterable[Address]) -> set[Address]:
        return {address for address in due if address.value & 0xFF < 12}

    leases = opened(of_the_first, "10.1.0.0/28")
    released(leases, 16)
    clock.seconds += 31
    assert last_octets([held(leases, "next")]) == [12]


@pytest.mark.parametrize(
    ("ranges", "asked"),
    [("10.1.0.0/28 fd01::/126", "10.1.0.9"), ("10.1.0.0/30 fd01::/124", "fd01::9")],
)
def test_whoever_asks_for_an_address_of_one_family_gets_one_of_the_other_from_a_cooldown(
    opened: Open, clock: Clock, ranges: str, asked: str
) -> None:
    leases = opened(ranges=ranges)
    released(leases)
    clock.seconds += 31
    given = held(leases, "next", 0.0, asked).addresses
    assert asked in map(str, given)
    assert len(given) == 2


def test_connections_are_looked_up_for_families_alone_that_lack_an_address(
    opened: Open, clock: Clock
) -> None:
    looked_up: list[Address] = []

    def named(due: Iterable[Address]) -> set[Address]:
        looked_up.extend(due)
        return set(looked_up)

    leases = opened(named, "10.1.0.0/32 fd01::/126")
    released(leases, 1)
    leases.set_ranges(map(Prefix.parse, ("10.1.0.4/32", "fd01::/126")))
    held(leases, "other")
    clock.seconds += 31
    with pytest.raises(CapacityError):
        held(leases, "refused")
    assert {address.family for address in looked_up} == {Family.V4}


def test_without_a_range_an_add_is_refused_at_once(opened: Open, clock: Clock) -> None:
    leases = opened()
    released(leases)
    clock.seconds += 31
    leases.set_ranges(())
    with pytest.raises(CapacityError, match="no range is known"):
        held(leases, "refused")


def test_many_adds_at_once_all_get_an_address(opened: Open, clock: Clock) -> None:
    def slow(_: Iterable[Address]) -> set[Address]:
        time.sleep(0.02)
        return set()

    leases = opened(slow, "10.1.0.0/26")
    released(leases, 64)
    clock.seconds += 31
    with ThreadPoolExecutor(64) as workers:
        given = list(workers.map(lambda number: held(leases, f"again-{number}"), range(64)))
    assert len(set(last_octets(given))) == 64


def test_nobody_waits_while_the_disk_is_waited_for(opened: Open) -> None:
    leases = opened()
    syncing = threading.Thread(target=leases.store.checkpoint, daemon=True)
    with leases._lock, leases.store._lock:
        syncing.start()
        syncing.join(PATIENCE)
        assert not syncing.is_alive()


def test_a_later_add_of_the_same_attachment_is_remembered(opened: Open) -> None:
    leases = opened()
    attachment = held(leases, "pod", started_at=5.0)
    leases.renew(attachment.key, 9.0, "/run/netns/other")
    leases.renew(attachment.key, 7.0, "/run/netns/older")
    renewed = replace(attachment, started_at=9.0, netns="/run/netns/other")
    assert opened().get(attachment.key) == renewed


def test_a_late_del_does_not_make_an_earlier_one_seem_older(opened: Open) -> None:
    leases = opened()
    key = AttachmentKey("pod", "eth0")
    leases.add_tombstone(key, 9.0)
    leases.add_tombstone(key, 4.0)
    assert leases.tombstone(key) == 9.0
    assert opened().tombstone(key) == 9.0
