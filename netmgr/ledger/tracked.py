"""A dictionary that knows what of it the file does not hold yet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Tracked(dict[Key, Value], Generic[Key, Value]):
    """A dictionary that knows which of its keys were set or deleted since they were last written."""

    def __init__(self, entries: Iterable[tuple[Key, Value]] = ()) -> None:
        super().__init__(entries)
        self._touched: set[Key] = set()

    def __setitem__(self, key: Key, value: Value) -> None:
        self._touched.add(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: Key) -> None:
        self._touched.add(key)
        super().__delitem__(key)

    @property
    def changed(self) -> list[tuple[Key, Value]]:
        """Entries to write."""
        return [(key, self[key]) for key in self._touched if key in self]

    @property
    def deleted(self) -> list[Key]:
        """Keys to delete."""
        return [key for key in self._touched if key not in self]

    @property
    def dirty(self) -> bool:
        """Whether anything is to be written."""
        return bool(self._touched)

    def written(self) -> None:
        """Everything has been written."""
        self._touched.clear()
