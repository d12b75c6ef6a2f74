"""Node documents for a process without pydantic, read and checked by one that has it.

    python -m netmgr.agent.core.checking FILE

writes the document, or the error that it has, to its standard output, and ends.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

from netmgr import documents, programs
from netmgr.documents import loader
from netmgr.documents.node import NodeDocument
from netmgr.errors import ConfigError, StateError
from netmgr.programs import Beside, TimedOut


class DocumentCheck:
    """A check of the document at `path` that has begun, beside which one can do other things."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._program: Beside | None = None
        if not documents.HAS_PYDANTIC:
            self._program = Beside(*programs.python(__name__, str(path)))

    def document(self) -> NodeDocument:
        """What came of it; ConfigError if the document cannot be read, or with all its faults."""
        if self._program is None:
            return loader.load(self._path, NodeDocument)
        try:
            outcome = self._program.outcome()
        except TimedOut:
            raise StateError(f"{self._path}: no process was able to check it in time") from None
        if outcome.returncode:
            raise StateError(
                f"{self._path}: the process that checks it ended with {outcome.returncode}; "
                "see to the memory that it may have"
            )
        document: NodeDocument | str = pickle.loads(outcome.stdout)  # noqa: S301  of our own process
        if isinstance(document, str):
            raise ConfigError(document)
        return document


def _main() -> None:
    try:
        answer: NodeDocument | str = loader.load(Path(sys.argv[1]), NodeDocument)
    except ConfigError as error:
        answer = str(error)
    sys.stdout.buffer.write(pickle.dumps(answer))


if __name__ == "__main__":
    _main()
