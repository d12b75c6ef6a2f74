"""List, then watch: follows every change of a collection at the least cost to the server.

A dropped watch goes on at the last resourceVersion it saw, which bookmarks keep young
(Kubernetes, "Efficient detection of changes"). Only when the server no longer knows that
version (410 Gone) is everything listed anew. While the server is away the waits between
attempts grow, with jitter.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterator
from typing import Any

from netmgr.backoff import Backoff
from netmgr.errors import ApiError, ApiUnavailable, NetmgrError
from netmgr.kube.client.api import GONE, Api, Object, Query
from netmgr.kube.client.concurrency import THREADS, Concurrency
from netmgr.kube.client.object_cache import ObjectCache

log = logging.getLogger(__name__)

PAGE = 500
"""Objects in one answer: the server never has to hold a whole list for us."""

# A watch is ended and resumed after this time, so that servers that join get their share.
WATCH_SECONDS = (240, 480)


def pages(api: Api, path: str, query: Query) -> Iterator[Object]:
    """A collection's lists, each with as many objects as an answer may have."""
    token = ""
    while True:
        # The token names the version of the first page, so that all pages are of one moment.
        position: Query = {"continue": token} if token else {}
        page = api.get(path, {"limit": PAGE, **query, **position})
        token = page["metadata"].get("continue", "")
        yield page
        if not token:
            return


class Reflector:
    """Keeps `cache` a copy of the collection at `path`."""

    def __init__(
        self,
        api: Api,
        path: str,
        cache: ObjectCache[Any],
        stop: threading.Event,
        selector: str = "",
        concurrency: Concurrency = THREADS,
    ) -> None:
        """Follow until `stop` is set; an error of the cache ends it, and is `failure`.

        `selector` limits the collection to the objects with these labels.
        """
        self._api = api
        self._path = path
        self._cache = cache
        self._stop = stop
        self._query: Query = {"labelSelector": selector} if selector else {}
        self._concurrency = concurrency
        self.failure: NetmgrError | None = None
        self._version = ""
        self._backoff = Backoff()
        self.synced = threading.Event()
        """Set once the cache has had a whole list."""
        self.lists = 0
        self.watches = 0

    def run(self) -> None:
        """Follow until stopped. Returns only then; an API server that is away is waited for."""
        while not self._stop.is_set():
            try:
                if not self._version:
                    self._list()
                self._watch()
            except ApiError as error:
                self._recover(error)
            except NetmgrError as error:
                self.failure = error
                return

    def start(self) -> None:
        self._concurrency.start(self.run, f"follow {self._path}")

    def _recover(self, error: ApiError) -> None:
        wait = self._backoff.next()
        if error.status == GONE:
            # Waited for as well: a server may refuse every version that it has just listed.
            self._version = ""
            log.info("relist path=%s wait_s=%.1f reason=%s", self._path, wait, error.message)
        else:
            level = logging.WARNING if isinstance(error, ApiUnavailable) else logging.ERROR
            log.log(
                level, "api-away path=%s wait_s=%.1f reason=%s", self._path, wait, error.message
            )
        self._concurrency.wait(self._stop, wait)

    def _list(self) -> None:
        self._cache.replace(self._objects())
        self.lists += 1
        self.synced.set()

    def _objects(self) -> Iterator[Object]:
        version = ""
        # A page at a time: 7,500 Nodes as their kubelets fill them in take half a gigabyte.
        for page in pages(self._api, self._path, self._query):
            version = page["metadata"]["resourceVersion"]
            yield from page["items"]
        # Only now: a list that broke off has to be read again.
        self._version = version

    def _watch(self) -> None:
        self.watches += 1
        query: Query = {
            **self._query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": random.randint(*WATCH_SECONDS),  # noqa: S311  no secret
        }
        events = 0
        for event in self._api.stream(self._path, query):
            if self._stop.is_set():
                return
            events += 1
            self._apply(event["type"], event["object"])
            # Only now: an error is an event, too, and a list alone is no success.
            self._backoff.reset()
        if not events:
            # A watch that lasts has bookmarks: something on the way ended this one too soon.
            self._concurrency.wait(self._stop, self._backoff.next())

    def _apply(self, kind: str, api_object: Object) -> None:
        # An expired version (410) also arrives so, in a watch that was answered with 200.
        if kind == "ERROR":
            raise ApiError(
                f"watch of {self._path}: {api_object.get('message')}",
                int(api_object.get("code", 0)),
            )
        if kind in ("ADDED", "MODIFIED"):
            self._cache.change(api_object)
        elif kind == "DELETED":
            self._cache.delete(api_object)
        # For every kind: a BOOKMARK has nothing but this.
        self._version = api_object["metadata"]["resourceVersion"]
