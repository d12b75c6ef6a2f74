"""The short form: a target's corpus, and seeded mutations of it, without a coverage engine."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.fuzz.mutation import mutate
from tests.fuzz.target import Target

SEED = 20_260_101


def inputs(target: Target, rounds: int, seed: int = SEED) -> Iterator[bytes]:
    """The corpus, then as many mutations of it; the same for the same seed."""
    known = target.inputs()
    yield from known
    source = random.Random(f"{target.name} {seed}")  # noqa: S311  a seed has to repeat the run
    for _ in range(rounds):
        yield mutate(source.choice(known), target.shape, source, target.tokens)[: target.longest]
