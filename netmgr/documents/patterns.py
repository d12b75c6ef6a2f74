"""What patterns of fnmatch(3) with * and ? stand for: whether two have a text, or all, in common.

Patterns are taken as an automaton, whose state is what is left of each of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

_MOST_STATES = 10_000
"""Patterns that people write have some dozens; each ? behind a * may double them."""

_States = frozenset[str]


def matches(patterns: Iterable[str], text: str) -> bool:
    """Whether one of the patterns stands for this text."""
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def overlap(some: Iterable[str], others: Iterable[str]) -> bool:
    """Whether a text matches one of each, or that is too much to find out."""
    return _is_found(some, others, others_match=True)


def cover(patterns: Iterable[str], others: Iterable[str]) -> bool:
    """Whether each text that matches one of the others is known to match one of the patterns."""
    return not _is_found(others, patterns, others_match=False)


def _is_found(some: Iterable[str], others: Iterable[str], *, others_match: bool) -> bool:
    """Whether a text matches one of `some`, and one of the others or none of them."""
    # The empty one stands for all letters that are in no pattern.
    letters = {"", *"".join((*some, *others))} - {"*", "?"}
    pending = [(_skipping(some), _skipping(others))]
    seen = set(pending)
    while pending:
        own, foreign = pending.pop()
        if ("" in own and ("" in foreign) is others_match) or len(seen) > _MOST_STATES:
            return True
        for letter in letters:
            following = _after(own, letter), _after(foreign, letter)
            if following[0] and following not in seen:
                seen.add(following)
                pending.append(following)
    return False


def _after(states: _States, letter: str) -> _States:
    matching = (state for state in states if state and state[0] in ("*", "?", letter))
    return _skipping(state if state[0] == "*" else state[1:] for state in matching)


def _skipping(states: Iterable[str]) -> _States:
    """With what is left if a * stands for nothing."""
    return frozenset(
        state[skipped:]
        for state in states
        for skipped in range(len(state) - len(state.lstrip("*")) + 1)
    )
