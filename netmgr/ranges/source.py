"""What every source of ranges is: something that is asked now and then, and may have no answer just now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from netmgr.prefixes import Prefix


class RangeSource(Protocol):
    """Tells which addresses pods of this node may have."""

    def read(self) -> tuple[Prefix, ...]:
        """Blocks and single addresses, every one of them usable.

        Raises:
            RangesUnknown: there is no answer just now.
            ConfigError: a document is wrong; it stays so until somebody edits it.
        """
        ...


class DocumentRanges:
    """The ranges of the node document, read anew each time.

    In Kubernetes this is the source as well: an init container renders the document from the
    Node's podCIDRs, which the API server lets nobody change.

    Args:
        load: reads the document's ranges.
    """

    def __init__(self, load: Callable[[], tuple[Prefix, ...]]) -> None:
        self._load = load

    def read(self) -> tuple[Prefix, ...]:
        """As the document says now."""
        return self._load()
