"""Objects as an API server keeps them: versions, the changes that watches go on from, patches.

Nothing here is ever changed in place, so that a page, a watch and a client may share it.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from netmgr.errors import ApiError
from netmgr.kube.client.api import (
    CONFLICT,
    GONE,
    INVALID,
    MERGE_PATCH,
    NOT_FOUND,
    STRATEGIC_MERGE_PATCH,
    Object,
)

FIRST_VERSION = 1000
"""Nothing is known of versions before this one, as after etcd was compacted."""

REMEMBERED = 20_000
"""Changes of a collection that a watch may go on from."""

_MERGED_BY = {"conditions": "type", "addresses": "type"}
"""Lists that a strategic merge patch merges by a key; others it replaces."""

_OWN = ("uid", "resourceVersion", "creationTimestamp")
"""Metadata that the server writes and clients do not."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An object, and its text."""

    content: Object
    text: bytes

    @property
    def labels(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self.content["metadata"].get("labels") or {}
        return found


@dataclass(frozen=True, slots=True)
class Change:
    """What a watch is sent; a deletion has the object as it was, and a version of its own."""

    version: int
    kind: str
    stored: Stored

    @property
    def line(self) -> bytes:
        return b'{"type":"%b","object":%b}\n' % (self.kind.encode(), self.stored.text)


Selects = Callable[[Stored], bool]


@dataclass(eq=False)
class Watch:
    """Changes that a client has not been sent yet."""

    selects: Selects
    changes: deque[Change]
    arrived: threading.Event = field(default_factory=threading.Event)
    is_broken: bool = False


class Collection:
    """All objects of one kind, in one namespace."""

    def __init__(self) -> None:
        self.objects: dict[str, Stored] = {}
        self.watches: list[Watch] = []
        self.followers: list[Callable[[str, Object], object]] = []
        self._changes: deque[Change] = deque(maxlen=REMEMBERED)
        self._forgotten = FIRST_VERSION

    def one(self, name: str) -> Stored:
        if name not in self.objects:
            raise ApiError(f"{name!r} not found", NOT_FOUND)
        return self.objects[name]

    def selected(self, selects: Selects) -> list[Stored]:
        """Objects by name."""
        return [one for _, one in sorted(self.objects.items()) if selects(one)]

    def put(self, kind: str, content: Object, version: int) -> Stored:
        """Store what was ADDED or MODIFIED, or remove what was DELETED."""
        metadata = content["metadata"] | {"resourceVersion": str(version)}
        whole = content | {"metadata": metadata}
        stored = Stored(whole, json.dumps(whole).encode())
        if kind == "DELETED":
            del self.objects[metadata["name"]]
        else:
            self.objects[metadata["name"]] = stored
        self._tell(Change(version, kind, stored))
        return stored

    def _tell(self, change: Change) -> None:
        if len(self._changes) == REMEMBERED:
            self._forgotten = self._changes[0].version
        self._changes.append(change)
        for watch in self.watches:
            if watch.selects(change.stored):
                watch.changes.append(change)
                watch.arrived.set()
        for follower in self.followers:
            follower(change.kind, change.stored.content)

    def watch(self, since: int, selects: Selects) -> Watch:
        """Changes from a version on."""
        if since < self._forgotten:
            raise ApiError(f"too old resource version: {since} ({self._forgotten})", GONE)
        missed = (one for one in self._changes if one.version > since and selects(one.stored))
        made = Watch(selects, deque(missed))
        self.watches.append(made)
        return made


def check_precondition(found: Object, asked: Object) -> None:
    """Refuse to change another object, or another version of it, than the one that is meant."""
    own = found["metadata"]
    if asked.get("resourceVersion", own["resourceVersion"]) != own["resourceVersion"]:
        raise ApiError("the object has been modified", CONFLICT)
    if asked.get("uid", own["uid"]) != own["uid"]:
        raise ApiError("metadata.uid: Invalid value: field is immutable", INVALID)


def check_ranges(before: Object, after: Object) -> None:
    former, new = (each.get("spec", {}).get("podCIDRs") for each in (before, after))
    if former and former != new:
        raise ApiError("spec.podCIDRs: Forbidden: may not be changed once set", INVALID)


def patched(before: Object, patch: Object, kind: str, subresource: str) -> Object:
    if kind not in (MERGE_PATCH, STRATEGIC_MERGE_PATCH):
        raise ApiError(f"{kind} is not supported", 415)
    after: Object = _merged(before, patch, _MERGED_BY if kind == STRATEGIC_MERGE_PATCH else {})
    # The status is changed through its subresource alone, and by that nothing but metadata beside.
    kept = "spec" if subresource == "status" else "status"
    after.pop(kept, None)
    own = {key: before["metadata"][key] for key in _OWN}
    return (
        after
        | {key: before[key] for key in (kept,) if key in before}
        | {"metadata": after["metadata"] | own}
    )


def _merged(before: Any, patch: Any, by_key: Mapping[str, str]) -> Any:
    """RFC 7396; lists in `by_key` are merged by that key of their entries."""
    if not isinstance(patch, dict):
        return patch
    after = dict(before) if isinstance(before, dict) else {}
    for name, value in patch.items():
        if value is None:
            after.pop(name, None)
        elif name in by_key:
            after[name] = _merged_list(after.get(name) or (), value, by_key[name])
        else:
            after[name] = _merged(after.get(name), value, by_key)
    return after


def _merged_list(before: Iterable[Object], patch: Iterable[Object], key: str) -> list[Object]:
    entries = {each[key]: each for each in before}
    for each in patch:
        entries[each[key]] = entries.get(each[key], {}) | each
    return list(entries.values())


def selector(text: str) -> Selects:
    """A label selector: `a=b` and `a in (b,c)`, with commas between."""
    wanted = dict(map(_requirement, _parts(text)))
    return lambda one: all(one.labels.get(key) in values for key, values in wanted.items())


def _requirement(part: str) -> tuple[str, frozenset[str]]:
    key, _, values = part.partition(" in ") if " in " in part else part.partition("=")
    return key.strip(), frozenset(each.strip() for each in values.strip(" ()").split(","))


def _parts(text: str) -> Iterator[str]:
    """What is between the commas outside parentheses."""
    depth, begin = 0, 0
    for position, letter in enumerate(f"{text},"):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            if part := text[begin:position]:
                yield part
            begin = position + 1
