"""What a fuzz target is: a parser of untrusted or damaged bytes, and the property it has to keep.

A target gets bytes and returns if its property holds, whatever they are. Any exception that leaves
it is a finding; so is more time or memory than any input may cost.
"""

from __future__ import annotations

import logging
import random
import resource
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from tests.fuzz.mutation import Shape, mutate

CORPUS = Path(__file__).with_name("corpus")
SEED = 20_260_101

MOST_SECONDS = 5.0
"""Of processor time for one input; the coverage engine makes everything some five times slower."""

MOST_KILOBYTES = 512 * 1024
"""By which one input may raise the process's peak of memory."""

Check = Callable[[bytes], None]


class TooSlow(Exception):
    """One input took longer than `MOST_SECONDS`."""


@dataclass(frozen=True)
class Target:
    """A parser under test; its check's docstring states the property."""

    name: str
    check: Check
    shape: Shape
    rounds: int
    """Mutations in the short form."""
    longest: int
    """Bytes of an input."""
    tokens: tuple[str, ...]
    """Words of its language."""

    def inputs(self, rounds: int) -> Iterator[bytes]:
        """Its inputs in the tree, then so many mutations of them; the same in each run."""
        known = [path.read_bytes() for path in sorted((CORPUS / self.name).iterdir())]
        yield from known
        source = random.Random(f"{self.name} {SEED}")  # noqa: S311  a seed has to repeat the run
        for _ in range(rounds):
            yield mutate(source.choice(known), self.shape, source, self.tokens)[: self.longest]

    def run(self, data: bytes) -> None:
        """Check one input, in the main thread."""
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with _bounded_time():
            self.check(data)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < MOST_KILOBYTES, f"one input took {grown} KiB more than all before"


# What targets log is their own business; without a handler it would be printed.
logging.getLogger().addHandler(logging.NullHandler())

TARGETS: dict[str, Target] = {}


def target(
    shape: Shape, *, rounds: int = 2000, longest: int = 4096, tokens: str = ""
) -> Callable[[Check], Check]:
    """Register a check as a target of the same name."""

    def register(check: Check) -> Check:
        name = check.__name__.replace("_", "-")
        TARGETS[name] = Target(name, check, shape, rounds, longest, tuple(tokens.split()))
        return check

    return register


@contextmanager
def folder() -> Iterator[Path]:
    """An empty one, in memory where that is possible: no disk is waited for."""
    memory = Path("/dev/shm")  # noqa: S108  as told
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as made:
        yield Path(made)


@contextmanager
def file_of(data: bytes, name: str) -> Iterator[Path]:
    """A file with this content, alone in its folder."""
    with folder() as made:
        path = made / name
        path.write_bytes(data)
        yield path


@contextmanager
def _bounded_time() -> Iterator[None]:
    former = signal.signal(signal.SIGVTALRM, _give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, former)


def _give_up(_number: int, _frame: FrameType | None) -> None:
    raise TooSlow(f"one input took more than {MOST_SECONDS} s of processor time")
