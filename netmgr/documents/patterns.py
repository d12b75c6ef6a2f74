"""What patterns of fnmatch(3) with * and ? stand for: whether two have a text, or all, in common.

A pattern is taken as an automaton whose states are places in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

# Of two automata together. Patterns that people write have some dozens; one with many ? behind a *
# has twice as many with each.
_MOST_STATES = 10_000

_States = frozenset[tuple[int, int]]
"""Which pattern, and how many of its characters are matched."""


def overlap(some: Sequence[str], others: Sequence[str]) -> bool:
    """Whether a text matches one of each."""
    return _finds(some, others, others_match=True)


def cover(patterns: Sequence[str], others: Sequence[str]) -> bool:
    """Whether each text that matches one of the others matches one of the patterns, too."""
    return not _finds(others, patterns, others_match=False)


def _finds(some: Sequence[str], others: Sequence[str], *, others_match: bool) -> bool:
    """Whether a text matches one of `some`, and one of the others or (`others_match`) none.

    What is too much to compare is found.
    """
    letters = sorted({letter for text in (*some, *others) for letter in text} - {"*", "?"})
    # One stands for all letters that are in no pattern.
    alphabet = [*letters, ""]
    pending = [(_beginning(some), _beginning(others))]
    seen = set(pending)
    while pending:
        own, foreign = pending.pop()
        if _ends(some, own) and _ends(others, foreign) is others_match:
            return True
        for letter in alphabet:
            following = _after(some, own, letter), _after(others, foreign, letter)
            if following[0] and following not in seen:
                seen.add(following)
                pending.append(following)
        if len(seen) > _MOST_STATES:
            return True
    return False


def _beginning(patterns: Sequence[str]) -> _States:
    return _skipping(patterns, ((number, 0) for number in range(len(patterns))))


def _ends(patterns: Sequence[str], states: _States) -> bool:
    return any(place == len(patterns[number]) for number, place in states)


def _after(patterns: Sequence[str], states: _States, letter: str) -> _States:
    following: list[tuple[int, int]] = []
    for number, place in states:
        wanted = patterns[number][place : place + 1]
        if wanted == "*":
            following.append((number, place))
        elif wanted and wanted in ("?", letter):
            following.append((number, place + 1))
    return _skipping(patterns, following)


def _skipping(patterns: Sequence[str], states: Iterable[tuple[int, int]]) -> _States:
    """With the states behind each *, which may stand for nothing."""
    reached: set[tuple[int, int]] = set()
    for number, first in states:
        place = first
        reached.add((number, place))
        while patterns[number][place : place + 1] == "*":
            place += 1
            reached.add((number, place))
    return frozenset(reached)
