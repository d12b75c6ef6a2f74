"""A client of the API server: the kubernetes client's transport, without its object classes.

Objects stay as the server sends them: a Node of 15 kB does not become a tree of Python objects, and
fields that netmgr does not know are never lost on the way back. Requests are not retried, with one
exception: after a refused token, the file is read again and the request repeated once.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from kubernetes import config
from kubernetes.client import ApiClient, ApiException, Configuration
from kubernetes.config.incluster_config import InClusterConfigLoader
from urllib3.exceptions import HTTPError
from yaml import YAMLError

from netmgr.errors import ApiError, ApiUnavailable, ConfigError

log = logging.getLogger(__name__)

Object = dict[str, Any]
Query = Mapping[str, str | int]

CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 30.0
CONNECTIONS = 10
# What a request gets, however little is left: urllib3 refuses a timeout of 0 or less.
LEAST_SECONDS = 0.1

# A watch without any event for this long is dead: bookmarks come every minute.
SILENCE_SECONDS = 150.0

LONGEST_REFUSAL = 64 * 1024
"""Bytes read of a refusal: through the server's proxy, it may come from anybody."""

UNAUTHORIZED, NOT_FOUND, CONFLICT, GONE, INVALID = 401, 404, 409, 410, 422
THROTTLED, FAILING = 429, 500
# Not a strategic merge patch: this one replaces lists as a whole and removes a key by null,
# whatever the object's type says about merging.
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"

# What the client raises for kubeconfigs that are wrong: it does not validate them.
UNUSABLE = (config.ConfigException, YAMLError, ValueError, TypeError, AttributeError, LookupError)


class _Request(NamedTuple):
    """A request, and how many seconds it may take."""

    method: str
    path: str
    query: Query | None = None
    body: Object | None = None
    kind: str = "application/json"
    wait: float = ANSWER_SECONDS
    """For the answer, and for each piece of it."""
    total: float | None = None
    """For all of it, where that is bounded."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def timeout(self) -> float | tuple[float, float]:
        """As the kubernetes client takes it: for all, or for connecting and for each read."""
        return (CONNECT_SECONDS, self.wait) if self.total is None else self.total


class Api:
    """A client of one API server, with one account. Safe for threads.

    Every request raises ApiError if it is refused, and ApiUnavailable while the server is away.
    """

    def __init__(self, client: ApiClient, renew: Credentials | None = None) -> None:
        """Send requests through `client`; `renew` reads its token again."""
        self.client = client
        self._renew = renew
        self._lock = threading.Lock()
        self._asked: Counter[tuple[str, int]] = Counter()

    def get(self, path: str, query: Query | None = None, seconds: float | None = None) -> Object:
        """Read an object or a list; `seconds` bounds the whole request."""
        return self._ask(_Request("GET", path, query, total=seconds))

    def find(self, path: str, seconds: float | None = None) -> Object | None:
        """Read an object; None if there is none."""
        try:
            return self.get(path, seconds=seconds)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            return None

    def text(self, path: str, query: Query | None = None) -> str:
        """Read what is not an object, such as a container's log."""
        request = _Request("GET", path, query)
        answer = self._send(request)
        with _reading(request):
            # A container may log bytes that are no UTF-8.
            return str(answer.read().decode(errors="replace"))

    def bounded(self, path: str, seconds: float, longest: int, query: Query | None = None) -> bytes:
        """Read what somebody else answers through the server, who may answer slowly or at length.

        Raises:
            ApiUnavailable: it takes longer than `seconds`.
            ApiError: it was refused, or has more than `longest` bytes.
        """
        deadline = time.monotonic() + seconds
        request = _Request("GET", path, query, wait=seconds)
        answer = self._send(request)
        with _reading(request):
            body = _beginning(answer, deadline, longest)
        if len(body) > longest:
            raise ApiError(f"{request}: the answer has more than {longest} bytes")
        if time.monotonic() > deadline:
            raise ApiUnavailable(f"{request}: the answer takes longer than {seconds:.0f} s")
        return body

    def create(self, path: str, body: Object, seconds: float | None = None) -> Object:
        """Create an object in the collection at `path`; `seconds` bounds the whole request."""
        return self._ask(_Request("POST", path, body=body, total=seconds))

    def replace(self, path: str, body: Object, seconds: float) -> Object:
        """Replace an object by `body`; 409 if that names another resourceVersion."""
        return self._ask(_Request("PUT", path, body=body, total=seconds))

    def patch(self, path: str, body: Object) -> Object:
        """Merge `body` into an object (RFC 7396); 409 if it names another resourceVersion."""
        return self._ask(_Request("PATCH", path, body=body, kind=MERGE_PATCH))

    def patch_by_key(self, path: str, body: Object) -> Object:
        """Merge `body` into an object, lists by the key that the object's type defines."""
        return self._ask(_Request("PATCH", path, body=body, kind=STRATEGIC_MERGE_PATCH))

    def delete(self, path: str) -> Object:
        """Delete an object; its dependents go later."""
        return self._ask(_Request("DELETE", path))

    def stream(self, path: str, query: Query) -> Iterator[Object]:
        """Events of a watch, until the server or the network ends it.

        Raises:
            ApiUnavailable: it broke off.
            ApiError: it was refused.
        """
        answer = self._send(_Request("GET", path, query, wait=SILENCE_SECONDS))
        try:
            # The read timeout counts from one piece of the answer to the next, so that a watch
            # lasts as long as bookmarks keep coming.
            for line in answer.response:
                if line.strip():
                    yield json.loads(line)
        except (HTTPError, OSError, ValueError, RecursionError) as error:
            raise ApiUnavailable(f"watch of {path} broke off: {error}") from None
        finally:
            # Not read to its end, so the connection cannot be reused.
            answer.response.close()

    def asked(self) -> dict[tuple[str, int], int]:
        """Requests so far by (method, status); status 0 where no answer came."""
        with self._lock:
            return dict(self._asked)

    def _ask(self, request: _Request) -> Object:
        answer = self._send(request)
        with _reading(request):
            body: Object = json.loads(answer.read())
        return body

    def _send(self, request: _Request) -> Any:  # noqa: ANN401  the client's own response, which has no types
        began = time.monotonic()
        answer = self._transmit(request)
        # The kubelet renews the file before the token expires, but the client caches what it read.
        if answer.status == UNAUTHORIZED and self._renew is not None:
            log.info("token-refused action=read-it-again path=%s", request.path)
            answer.response.close()
            self._renew.expire()
            if request.total is not None:
                # Both attempts share the time: a leader has to end its last request before its time
                # is over.
                left = request.total - (time.monotonic() - began)
                request = request._replace(total=max(LEAST_SECONDS, left))
            answer = self._transmit(request)
        if not 200 <= answer.status < 300:  # noqa: PLR2004  HTTP's success
            raise _refusal(request, answer)
        return answer

    def _transmit(self, request: _Request) -> Any:  # noqa: ANN401  as above
        parts = self.client.param_serialize(
            request.method,
            request.path,
            query_params=list((request.query or {}).items()),
            # JSON of another name, too, as the keys of service accounts have.
            header_params={
                "Accept": "application/json, */*;q=0.1",
                "Content-Type": request.kind,
            },
            body=request.body,
            auth_settings=["BearerToken"],
        )
        status = 0
        try:
            answer = self.client.call_api(*parts, _request_timeout=request.timeout)
            status = answer.status
        # For an error of TLS the client raises an ApiException, with status 0.
        except (HTTPError, OSError, ApiException) as error:
            # An ApiException's own text has several lines.
            reason = getattr(error, "reason", None) or error
            raise ApiUnavailable(f"{request}: no answer: {reason}") from None
        finally:
            with self._lock:
                self._asked[request.method, status] += 1
        return answer


@contextmanager
def _reading(request: _Request) -> Iterator[None]:
    """Raise ApiUnavailable for an answer that breaks off, or is not what was asked for."""
    try:
        yield
    # Deeply nested JSON raises RecursionError, which is not a ValueError.
    except (HTTPError, OSError, ValueError, RecursionError) as error:
        raise ApiUnavailable(f"{request}: the answer cannot be read: {error}") from None


def is_outdated(error: ApiError) -> bool:
    """Whether a patched object has changed, is gone, or is another one of that name."""
    # One that names a resourceVersion gets 409 in each case. One that names the UID alone is
    # refused as an attempt to change that.
    is_another = error.status == INVALID and "metadata.uid" in error.message
    return is_another or error.status in (CONFLICT, NOT_FOUND)


class Credentials:
    """A pod's service account: token and certificate, in files that the kubelet renews."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        loader: Any = InClusterConfigLoader
        self._loader = loader(str(folder / "token"), str(folder / "ca.crt"), environ=environment)

    def expire(self) -> None:
        """Read the token again before the next request."""
        # The client reads the file again at the first request after this time.
        self._loader.token_expires_at = datetime.min  # noqa: DTZ901  naive in the loader

    def api(self) -> Api:
        return Api(_client(self._loader.load_and_set), self)


def connect(
    kubeconfig: Path | None, folder: Path, environment: Mapping[str, str], context: str = ""
) -> Api:
    """The API server of a kubeconfig's context (default: the current), or else of this pod.

    Raises:
        ConfigError: there is neither, or it is unusable.
    """
    try:
        if kubeconfig is not None:
            load: Any = config.load_kube_config
            return Api(
                _client(lambda configuration: load(str(kubeconfig), context or None, configuration))
            )
        return Credentials(folder, environment).api()
    except UNUSABLE as error:
        where = str(kubeconfig or folder)
        hint = "" if kubeconfig else "; outside a pod, give --kubeconfig FILE or set KUBECONFIG"
        fault = str(error).removesuffix(".")
        raise ConfigError(f"{where}: no way to reach an API server: {fault}{hint}") from None


def _client(configure: Any) -> ApiClient:  # noqa: ANN401  it takes an untyped configuration
    configuration = Configuration()
    # urllib3 would retry by itself, unseen by our backoff and not counted.
    configuration.retries = False
    # The default depends on the machine's cores, and urllib3 warns when it is not enough.
    configuration.connection_pool_maxsize = CONNECTIONS
    configure(configuration)
    return ApiClient(configuration)


def _beginning(answer: Any, deadline: float, longest: int) -> bytes:  # noqa: ANN401  as above
    """What an answer begins with: all of it, or more than `longest` bytes, or what came in time."""
    body = b""
    try:
        # The read timeout alone would let an answer go on for ever, a byte at a time.
        while len(body) <= longest and time.monotonic() <= deadline:
            # read() would wait for the whole piece, past the deadline.
            piece = answer.response.read1(1 << 16)
            if not piece:
                break
            body += piece
    finally:
        answer.response.close()
    return body


def _refusal(request: _Request, answer: Any) -> ApiError:  # noqa: ANN401  as above
    deadline = time.monotonic() + (request.total or request.wait)
    try:
        text = _beginning(answer, deadline, LONGEST_REFUSAL).decode(errors="replace")
    except (HTTPError, OSError):
        text = ""
    try:
        # The API server sends a Status object; a proxy in front of it, any text.
        message = str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        message = text.strip()[:200] or str(answer.reason)
    # These pass: the caller waits and asks again. Any other refusal concerns the request itself and
    # would come back unchanged.
    away = answer.status == THROTTLED or answer.status >= FAILING
    return (ApiUnavailable if away else ApiError)(
        f"{request}: {answer.status}: {message}", answer.status
    )
