"""One target under the coverage engine: `python -m tests.fuzz.engine MODULE TARGET ARGUMENT…`.

`tests.fuzz` starts it as a process: what it instruments stays so, and the engine ends the process.
The arguments are libFuzzer's.
"""

from __future__ import annotations

import importlib
import random
import signal
import sys

import atheris

from tests.fuzz.mutation import mutate
from tests.fuzz.target import TARGETS

PRODUCT = ["netmgr", "cni", "exporter"]

OURS = 0.7
"""How many mutations know the format; the engine's own do the rest."""


def main() -> None:
    """Fuzz until the engine's time is over, or a property is broken."""
    # One module alone: to instrument all that every target needs takes half a minute.
    with atheris.instrument_imports(include=PRODUCT):
        importlib.import_module(sys.argv.pop(1))
    target = TARGETS[sys.argv.pop(1)]

    def mutated(data: bytes, longest: int, seed: int) -> bytes:
        source = random.Random(seed)  # noqa: S311  the engine's own seed
        if source.random() < OURS:
            return mutate(data, target.shape, source, target.tokens)[:longest]
        return bytes(atheris.Mutate(data, longest))

    def run(data: bytes) -> None:
        try:
            target.run(data)
        except BaseException:
            # The engine's own alarm would end the process while it writes the input to a file.
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise

    atheris.Setup(sys.argv, run, custom_mutator=mutated)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
