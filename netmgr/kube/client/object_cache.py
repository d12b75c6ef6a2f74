"""What matters about a collection's objects: a copy that a `Reflector` keeps.

Only its thread adds and deletes; a reconciler applies what it has written with `update`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from netmgr.kube.client.api import Object


class View(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def uid(self) -> str: ...


AnyView = TypeVar("AnyView", bound=View)


class ObjectCache(Generic[AnyView]):
    """Follows a collection; `changed` is set when something that matters has changed."""

    def __init__(
        self, view_of: Callable[[Object], AnyView | None], changed: threading.Event
    ) -> None:
        """`view_of` is None for objects that are left out."""
        self._view_of = view_of
        self._lock = threading.Lock()
        self._known: dict[str, tuple[AnyView, str]] = {}
        self._changed = changed
        self._is_listed = False
        self.generation = 0
        """Grows with every change that `changed` announces."""

    def views(self) -> list[AnyView]:
        with self._lock:
            return [view for view, _ in self._known.values()]

    def listed(self) -> list[AnyView] | None:
        """As `views`; None while the first list is not complete."""
        return self.views() if self._is_listed else None

    def current(self, name: str) -> tuple[AnyView, str] | None:
        """An object's view, and the resourceVersion that it is of; None when it is gone."""
        with self._lock:
            return self._known.get(name)

    def replace(self, objects: Iterable[Object]) -> None:
        """Replace the copy; `objects` can be iterated once, and whole objects are large to keep.

        Raises:
            ApiError: the list broke off, and nothing has changed.
        """
        # Beside the copy in use, which stays in force until the list is whole.
        known: dict[str, tuple[AnyView, str]] = {}
        for api_object in objects:
            if (view := self._view_of(api_object)) is not None:
                known[view.name] = view, api_object["metadata"]["resourceVersion"]
        with self._lock:
            self._known = known
            self._is_listed = True
            self.generation += 1
        self._changed.set()

    def change(self, api_object: Object) -> None:
        """Add or update an object, unless a later version of it is known."""
        self._apply(api_object, adds=True)

    def update(self, api_object: Object) -> None:
        """Update an object that is known, unless a later version of it is."""
        # The watch may deliver that it was deleted, and its successor, before our patch is
        # answered. Nothing would delete it a second time.
        self._apply(api_object, adds=False)

    def _apply(self, api_object: Object, *, adds: bool) -> None:
        view = self._view_of(api_object)
        # It is not in the copy, either: a pod that has a Node keeps it.
        if view is None:
            return
        version = api_object["metadata"]["resourceVersion"]
        with self._lock:
            known, known_version = self._known.get(view.name, (None, "0"))
            if not adds and (known is None or known.uid != view.uid):
                return
            # Our own patch returns the newest version at once; the watch delivers older ones after
            # it. resourceVersion is documented as opaque, but it is etcd's revision: a number that
            # grows.
            if known and known.uid == view.uid and int(known_version) > int(version):
                return
            self._known[view.name] = (view, version)
            self.generation += view != known
        # Most updates are heartbeats of the kubelet in the object's status, which decide nothing
        # here.
        if view != known:
            self._changed.set()

    def delete(self, api_object: Object) -> None:
        """Remove an object."""
        with self._lock:
            if self._known.pop(api_object["metadata"]["name"], None):
                self.generation += 1
        self._changed.set()
