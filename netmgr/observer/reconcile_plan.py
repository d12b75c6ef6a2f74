"""Plans which pod an address is counted for, anew at every look (pure).

1. Of the cached results that the kernel confirms, an address's newest decides whose it is. Older
   ones are superseded. Results that the kernel does not confirm are stale and begin nothing.
2. A counter stays while either its file or its kernel check is there. It is read for the last time
   when both are gone, as late as possible: what the kernel has removed can send nothing more, so
   that reading is complete.
3. A file alone keeps its counter for `STALE_SECONDS` more, so that a plugin which repairs its
   routes does not end an account.
4. An address that another pod has taken over changes hands at once: the old counter is read for
   the last time, the new one begins at zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from netmgr.model import Attachment, PodRef
from netmgr.observer.cached_results import CachedResult
from netmgr.observer.kernel_check import KernelState
from netmgr.prefixes import Address

STALE_SECONDS = 60.0


class ResultState(StrEnum):
    """What became of a usable file. Values are label values, beside those of `IgnoreReason`."""

    COUNTED = "counted"
    STALE = "stale"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class CountedAddress:
    """One address that is being counted.

    `unconfirmed_since` is when the kernel check failed first; None while it succeeds.
    """

    attachment: Attachment
    unconfirmed_since: float | None = None

    @property
    def address(self) -> Address:
        return self.attachment.addresses[0]

    @property
    def pod(self) -> PodRef:
        return self.attachment.pod


@dataclass(frozen=True, slots=True)
class ReconcilePlan:
    """Counters to end, then to begin, and what is counted afterwards.

    `written_at` is when each newcomer's file was written.
    """

    ends: tuple[CountedAddress, ...]
    begins: tuple[CountedAddress, ...]
    counted: Mapping[Address, CountedAddress]
    written_at: Mapping[Address, float]
    states: Mapping[ResultState, int]


def plan(
    results: Iterable[CachedResult],
    kernel: KernelState,
    counted: Mapping[Address, CountedAddress],
    now: float,
) -> ReconcilePlan:
    """Compare cache and kernel with what is counted; `now` is monotonic."""
    # The key decides between files of one instant, so that each look has the same outcome.
    listed = sorted(results, key=lambda result: (result.written_at, result.key))
    owners = _owners(listed, kernel)
    on_file = {(address, result.pod) for result in listed for address in result.addresses}
    after = {address: counter for address, (_, counter) in owners.items()}
    for address, counter in counted.items():
        is_on_file = (address, counter.pod) in on_file
        if address not in owners and (kept := _kept(counter, kernel, now, on_file=is_on_file)):
            after[address] = kept
    ends, begins = _missing_from(after, counted), _missing_from(counted, after)
    written_at = {counter.address: owners[counter.address][0].written_at for counter in begins}
    tally = Counter(_state(result, kernel, owners) for result in listed)
    states = {state: tally[state] for state in ResultState}
    return ReconcilePlan(ends, begins, after, written_at, states)


def _owners(
    listed: Iterable[CachedResult], kernel: KernelState
) -> dict[Address, tuple[CachedResult, CountedAddress]]:
    """The newest confirmed result of each address; `listed` is sorted, oldest first."""
    owners: dict[Address, tuple[CachedResult, CountedAddress]] = {}
    for result in listed:
        for address in result.addresses:
            if end := kernel.host_end(address, result.host_links):
                # One address each: addresses of one result may change hands at different times.
                attachment = Attachment(
                    result.key, result.pod, (address,), end, netns="", rates=result.rates
                )
                owners[address] = (result, CountedAddress(attachment))
    return owners


def _missing_from(
    others: Mapping[Address, CountedAddress], these: Mapping[Address, CountedAddress]
) -> tuple[CountedAddress, ...]:
    """Those of `these` whose address is not counted for the same pod in `others`."""
    missing = []
    for address, counter in these.items():
        other = others.get(address)
        # By pod, not by attachment: another file for the same pod does not interrupt its counter.
        if other is None or other.pod != counter.pod:
            missing.append(counter)
    return tuple(missing)


def _kept(
    counter: CountedAddress, kernel: KernelState, now: float, *, on_file: bool
) -> CountedAddress | None:
    """The counter while rule 2 or 3 keeps it."""
    link = counter.attachment.host_link
    if kernel.host_end(counter.address, [link] if link else ()):
        # Confirmed again: the time of grace starts anew with the next failure.
        return replace(counter, unconfirmed_since=None)
    if not on_file:
        return None
    since = now if counter.unconfirmed_since is None else counter.unconfirmed_since
    return replace(counter, unconfirmed_since=since) if now - since < STALE_SECONDS else None


def _state(
    result: CachedResult,
    kernel: KernelState,
    owners: Mapping[Address, tuple[CachedResult, CountedAddress]],
) -> ResultState:
    state = ResultState.STALE
    for address in result.addresses:
        if not kernel.host_end(address, result.host_links):
            continue
        if owners[address][0] is result:
            return ResultState.COUNTED
        state = ResultState.SUPERSEDED
    return state


def attachments(counted: Iterable[CountedAddress]) -> Iterator[Attachment]:
    merged: dict[object, Attachment] = {}
    for counter in counted:
        attachment = counter.attachment
        identity = attachment.key, attachment.pod
        former = merged.get(identity)
        if former is not None:
            attachment = replace(former, addresses=(*former.addresses, *attachment.addresses))
        merged[identity] = attachment
    yield from merged.values()
