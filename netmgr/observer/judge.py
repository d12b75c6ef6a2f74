"""Which pod an address is counted for: the decisions, made anew at every look.

1. Of the claims that the kernel bears out, an address's newest decides whose it is. The others
   are superseded; claims that nothing bears out are stale and begin nothing.
2. What is counted goes on being counted while either its file or its evidence is there: the
   counter is read for the last time as late as possible, when neither is. (What the kernel has
   taken away can send nothing more, so that reading is whole.)
3. A file that stays behind alone keeps its counter for `STALE_SECONDS` more, lest a plugin that
   mends its routes ends an account.
4. An address that another pod has taken over changes hands at once: one reads for the last time,
   the other begins at zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from netmgr.model import Attachment, PodRef
from netmgr.observer.claims import Claim
from netmgr.observer.evidence import Kernel
from netmgr.prefixes import Address

STALE_SECONDS = 60.0


class Standing(StrEnum):
    """What became of a usable file. Values are label values, beside those of `claims.Reason`."""

    COUNTED = "counted"
    STALE = "stale"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class Held:
    """One address that is being counted; `bare_since` is when the kernel's evidence was first missed."""

    attachment: Attachment
    bare_since: float | None = None

    @property
    def address(self) -> Address:
        """The one address."""
        return self.attachment.addresses[0]

    @property
    def pod(self) -> PodRef:
        """Whom it is counted for."""
        return self.attachment.pod


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be done, ends first, and what is held after it. `began` is when each newcomer's file was written."""

    ends: tuple[Held, ...]
    begins: tuple[Held, ...]
    held: Mapping[Address, Held]
    began: Mapping[Address, float]
    standings: Mapping[Standing, int]


def judge(claims: Iterable[Claim], kernel: Kernel, held: Mapping[Address, Held], now: float) -> Verdict:
    """Hold the cache against the kernel, and both against what is counted; `now` never steps back."""
    listed = sorted(claims, key=lambda claim: (claim.written_at, claim.key))
    winners: dict[Address, tuple[Claim, Held]] = {}
    for claim in listed:
        for address in claim.addresses:
            if end := kernel.host_end(address, claim.host_links):
                winners[address] = claim, Held(Attachment(claim.key, claim.pod, (address,), end, netns=""))
    on_file = {(address, claim.pod) for claim in listed for address in claim.addresses}
    kept: dict[Address, Held] = {address: holder for address, (_, holder) in winners.items()}
    ends: list[Held] = []
    for address, holder in held.items():
        if address in winners:
            if holder.pod != winners[address][1].pod:
                ends.append(holder)
        elif staying := _staying(holder, kernel, (address, holder.pod) in on_file, now):
            kept[address] = staying
        else:
            ends.append(holder)
    begins = [one for address, one in kept.items() if address not in held or held[address].pod != one.pod]
    began = {one.address: winners[one.address][0].written_at for one in begins}
    return Verdict(tuple(ends), tuple(begins), kept, began, _tally(listed, kernel, winners))


def _staying(holder: Held, kernel: Kernel, on_file: bool, now: float) -> Held | None:  # noqa: FBT001 - one of two facts
    """The holder while rule 2 or 3 keeps it."""
    link = holder.attachment.host_link
    if kernel.host_end(holder.address, [link] if link else ()):
        return replace(holder, bare_since=None)
    if not on_file:
        return None
    since = now if holder.bare_since is None else holder.bare_since
    return replace(holder, bare_since=since) if now - since < STALE_SECONDS else None


def _tally(
    claims: Iterable[Claim], kernel: Kernel, winners: Mapping[Address, tuple[Claim, Held]]
) -> dict[Standing, int]:
    tally = dict.fromkeys(Standing, 0)
    for claim in claims:
        tally[_standing(claim, kernel, winners)] += 1
    return tally


def _standing(claim: Claim, kernel: Kernel, winners: Mapping[Address, tuple[Claim, Held]]) -> Standing:
    borne_out = [address for address in claim.addresses if kernel.host_end(address, claim.host_links)]
    if any(winners[address][0] is claim for address in borne_out):
        return Standing.COUNTED
    return Standing.SUPERSEDED if borne_out else Standing.STALE


def attachments(held: Iterable[Held]) -> Iterator[Attachment]:
    """What is counted, an attachment with all its addresses each."""
    merged: dict[object, Attachment] = {}
    for one in held:
        attachment = one.attachment
        identity = attachment.key, attachment.pod
        former = merged.get(identity)
        merged[identity] = (
            replace(former, addresses=(*former.addresses, *attachment.addresses)) if former else attachment
        )
    yield from merged.values()
