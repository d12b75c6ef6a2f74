"""What a pass over many objects finds amiss, and the only way to act on it.

A pass reads the kernel in several dumps, and then the list of attachments. Together these are no
instant: what is attached between two of them, or detached and attached again, looks like something
old, and a single dump may lack what was there all the time (the kernel's of IPv6 routes does, and
does not say so). So a pass only names suspects. Each is looked at again, alone, while nobody else
may change it, and only then acted on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Generic, TypeVar

from netmgr.errors import NetmgrError, TryAgainLater

Suspect = TypeVar("Suspect")


@dataclass(frozen=True, slots=True)
class Suspects(Generic[Suspect]):
    """What one pass found. It can be resolved, and on purpose not iterated."""

    _suspects: tuple[Suspect, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._suspects)

    def resolve(
        self,
        holding: Callable[[Suspect], AbstractContextManager[object]],
        still: Callable[[Suspect], bool],
        act: Callable[[Suspect], Iterable[str] | None],
    ) -> list[str]:
        """Act on each of them that is still amiss; returns the lines of all acts.

        Args:
            holding: keeps everybody else from changing it. Raises TryAgainLater where somebody is
                about to: then it is left to them, and to the next pass.
            still: whether a second look, at this one alone, finds the same.
            act: describes what it did.

        Raises:
            NetmgrError: one of them could not be dealt with; all the others were.
        """
        done: list[str] = []
        failure: NetmgrError | None = None
        for suspect in self._suspects:
            try:
                with holding(suspect):
                    if still(suspect):
                        done += act(suspect) or ()
            except TryAgainLater:
                continue
            except NetmgrError as error:
                # Raised once the others are done: one that fails must not keep them as they are.
                failure = error
        if failure:
            raise failure
        return done


def unlocked(_: object) -> AbstractContextManager[None]:
    """For `holding`, where nobody else can change anything: no request is served."""
    return nullcontext()
