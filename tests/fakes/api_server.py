"""A Kubernetes API server in memory, which counts what it is asked.

It takes the place of the kubernetes client's transport, so that netmgr's `Api` and everything above
it run as they do against a real server. Of the API it has what netmgr uses;
`tests/contracts/test_api_server.py` holds it against the real one. One thread asks at a time.
"""

from __future__ import annotations

import json
import math
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from random import Random
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from kubernetes.client import ApiClient, Configuration

from netmgr.errors import ApiError
from netmgr.kube.client.api import CONFLICT, GONE, Api, Object
from netmgr.kube.client.concurrency import Concurrency
from netmgr.kube.controller.nodes import as_time
from tests.fakes.api_objects import (
    FIRST_VERSION,
    Collection,
    Stored,
    Watch,
    check_precondition,
    check_ranges,
    patched,
    selector,
)

BOOKMARK_SECONDS = 60.0
_JSON = {"content-type": "application/json"}

Query = Mapping[str, str]


@dataclass
class Answer:
    """What the transport hands to the client; `lines` are a watch's."""

    status: int
    data: bytes = b""
    lines: Iterator[bytes] = field(default_factory=lambda: iter(()))
    headers: Mapping[str, str] = field(default_factory=lambda: _JSON)

    @property
    def response(self) -> Answer:
        """Itself: the client looks for the stream there."""
        return self

    @property
    def reason(self) -> str:
        """The status in words."""
        return HTTPStatus(self.status).phrase

    def read(self) -> bytes:
        return self.data

    def read1(self, _most: int) -> bytes:
        """What is left of the body."""
        rest, self.data = self.data, b""
        return rest

    def getheaders(self) -> Mapping[str, str]:
        return self.headers

    def __iter__(self) -> Iterator[bytes]:
        return self.lines

    def close(self) -> None:
        if close := getattr(self.lines, "close", None):
            close()


class _Target(NamedTuple):
    """What a path leads to."""

    collection: str
    resource: str
    namespace: str
    name: str
    subresource: str

    @classmethod
    def of(cls, path: str) -> _Target:
        parts = path.strip("/").split("/")
        own = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if own[0] == "namespaces" and len(own) > 2:
            namespace, own = own[1], own[2:]
        collection = "/" + "/".join(parts[: len(parts) - len(own) + 1])
        resource, name, subresource = [*own, "", ""][:3]
        return cls(collection, resource, namespace, name, subresource)


class ApiServer:
    """The server.

    Attributes:
        asked: requests by client, verb and resource, as the real server's metrics name them.
        is_away: nobody listens.
        delays: seconds that requests of a method take in addition; infinite for no answer.
    """

    def __init__(self, concurrency: Concurrency) -> None:
        self.asked: Counter[tuple[str, str, str]] = Counter()
        self.is_away = False
        self.delays: dict[str, float] = {}
        self.concurrency = concurrency
        self._random = Random(0)  # noqa: S311  no secrets: UIDs
        self._version = FIRST_VERSION
        self._collections: defaultdict[str, Collection] = defaultdict(Collection)
        self._pages: dict[str, tuple[int, list[Stored]]] = {}

    def api(self, client: str, seconds: float | None = None) -> Api:
        """A client, known by this name, whose requests take so long each.

        Without a time it never waits, not even for an answer that does not come.
        """
        made = ApiClient(Configuration(host="http://in-memory"))
        transport: Any = _Transport(self, client, seconds)
        made.rest_client = transport
        return Api(made)

    def follow(self, collection: str, follower: Callable[[str, Object], object]) -> None:
        """Call this at once with the type and object of every change; it must not wait."""
        self._collections[collection].followers.append(follower)

    def objects(self, collection: str) -> dict[str, Object]:
        found = self._collections[collection].objects
        return {name: stored.content for name, stored in found.items()}

    def go_away(self) -> None:
        """Listen no more, and break off every watch."""
        self.is_away = True
        for watch in [watch for held in self._collections.values() for watch in held.watches]:
            watch.is_broken = True
            watch.arrived.set()

    def answer(self, client: str, method: str, url: str, body: Any, kind: str) -> Answer:
        where = urlsplit(url)
        target, query = _Target.of(where.path), dict(parse_qsl(where.query))
        verb = method if target.name or method != "GET" else "WATCH" if "watch" in query else "LIST"
        self.asked[client, verb, target.resource] += 1
        try:
            if verb == "WATCH":
                return Answer(200, lines=self._watch(target, query))
            status = 201 if verb == "POST" else 200
            return Answer(status, self._text(verb, target, query, body, kind))
        except ApiError as error:
            content = {"kind": "Status", "code": error.status, "message": error.message}
            return Answer(error.status, json.dumps(content).encode())

    def _text(self, verb: str, target: _Target, query: Query, body: Any, kind: str) -> bytes:
        collection = self._collections[target.collection]
        match verb:
            case "LIST":
                return self._list(collection, query)
            case "GET":
                return collection.one(target.name).text
            case "POST":
                return self._create(collection, target, body).text
            case "PUT" | "PATCH":
                # The client names no type for a whole object.
                return self._change(collection, target, body, kind if verb == "PATCH" else "").text
            case "DELETE":
                gone = collection.one(target.name).content
                return collection.put("DELETED", gone, self._next()).text
            case _:
                raise ApiError(f"{verb} is not supported", 405)

    def _next(self) -> int:
        self._version += 1
        return self._version

    def _uid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def _create(self, collection: Collection, target: _Target, body: Object) -> Stored:
        metadata = body["metadata"] | {
            "uid": self._uid(),
            "creationTimestamp": as_time(self.concurrency.now()),
        }
        if metadata["name"] in collection.objects:
            raise ApiError(f"{target.resource} {metadata['name']!r} already exists", CONFLICT)
        if target.namespace:
            metadata["namespace"] = target.namespace
        made = {"spec": {}} | body | {"metadata": metadata}
        return collection.put("ADDED", made, self._next())

    def _change(self, collection: Collection, target: _Target, body: Object, kind: str) -> Stored:
        before = collection.one(target.name)
        check_precondition(before.content, body.get("metadata", {}))
        if not kind:
            after = body | {"metadata": before.content["metadata"]}
        else:
            after = patched(before.content, body, kind, target.subresource)
        if after == before.content:
            return before
        check_ranges(before.content, after)
        return collection.put("MODIFIED", after, self._next())

    def _list(self, collection: Collection, query: Query) -> bytes:
        if token := query.get("continue"):
            if token not in self._pages:
                raise ApiError("The provided continue parameter is too old", GONE)
            version, found = self._pages.pop(token)
        else:
            selects = selector(query.get("labelSelector", ""))
            version, found = self._version, collection.selected(selects)
        limit = int(query.get("limit", 0)) or len(found)
        metadata: Object = {"resourceVersion": str(version)}
        if found[limit:]:
            metadata["continue"] = self._uid()
            self._pages[metadata["continue"]] = version, found[limit:]
        items = b",".join(one.text for one in found[:limit])
        head = json.dumps(metadata).encode()
        return b'{"kind":"List","metadata":%b,"items":[%b]}' % (head, items)

    def _watch(self, target: _Target, query: Query) -> Iterator[bytes]:
        collection = self._collections[target.collection]
        since = int(query.get("resourceVersion") or self._version)
        watch = collection.watch(since, selector(query.get("labelSelector", "")))
        seconds = float(query.get("timeoutSeconds", 1800))
        return self._events(watch, collection, seconds)

    def _events(self, watch: Watch, collection: Collection, seconds: float) -> Iterator[bytes]:
        clock = self.concurrency
        ends, bookmark = clock.monotonic() + seconds, clock.monotonic() + BOOKMARK_SECONDS
        try:
            while True:
                # Cleared first, so that what comes from now on ends the wait below.
                watch.arrived.clear()
                if watch.is_broken:
                    raise ConnectionResetError("the server went away")
                while watch.changes:
                    yield watch.changes.popleft().line
                if clock.monotonic() >= ends:
                    return
                if clock.monotonic() >= bookmark:
                    bookmark += BOOKMARK_SECONDS
                    known = {"metadata": {"resourceVersion": str(self._version)}}
                    yield json.dumps({"type": "BOOKMARK", "object": known}).encode()
                clock.wait(watch.arrived, max(0.0, min(bookmark, ends) - clock.monotonic()))
        finally:
            collection.watches.remove(watch)


class _Transport:
    """In place of the kubernetes client's REST client."""

    def __init__(self, server: ApiServer, client: str, seconds: float | None) -> None:
        self._server = server
        self._client = client
        self._seconds = seconds

    def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: object = None,
        post_params: object = None,
        _request_timeout: float | tuple[float, float] | None = None,
    ) -> Answer:
        del post_params
        self._let_time_pass(method, _request_timeout)
        kind = (headers or {}).get("Content-Type", "")
        return self._server.answer(self._client, method, url, body, kind)

    def _let_time_pass(self, method: str, timeout: float | tuple[float, float] | None) -> None:
        if self._server.is_away:
            raise ConnectionRefusedError("connection refused")
        takes = (self._seconds or 0.0) + self._server.delays.get(method, 0.0)
        limit = timeout[-1] if isinstance(timeout, tuple) else timeout or math.inf
        if self._seconds is not None:
            self._server.concurrency.sleep(min(takes, limit))
        if takes > limit:
            raise TimeoutError("timed out")
