"""The API server as documents: the kubernetes client's configuration and transport, without its object classes.

Objects stay the dictionaries that the server sends: a Node of 15 kB becomes no tree of Python
objects, and what netmgr does not know of an object is never lost on the way back.
Nothing is tried twice here, except that a token which the server no longer takes is read again
from its file, once.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from kubernetes import config
from kubernetes.client import ApiClient, ApiException, Configuration
from kubernetes.config.incluster_config import InClusterConfigLoader
from urllib3.exceptions import HTTPError

from netmgr.errors import ApiAway, ApiError, ConfigError

log = logging.getLogger(__name__)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token and the server's certificate."""

Object = dict[str, Any]
Query = Mapping[str, str | int]

CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 30.0
SILENCE_SECONDS = 150.0
"""A watch that says nothing for this long is dead: bookmarks come every minute."""

UNAUTHORIZED, NOT_FOUND, CONFLICT, GONE, THROTTLED, FAILING = 401, 404, 409, 410, 429, 500
MERGE_PATCH = "application/merge-patch+json"


class Api:
    """One API server, and who asks it. Safe for threads."""

    def __init__(self, client: ApiClient, renew: Credentials | None = None) -> None:
        """Ask through `client`; `renew` is how its token is read again."""
        self.client = client
        self._renew = renew
        self._lock = threading.Lock()
        self._asked: Counter[tuple[str, int]] = Counter()

    def get(self, path: str, query: Query | None = None) -> Object:
        """Read an object or a list."""
        return self._ask("GET", path, query)

    def create(self, path: str, body: Object) -> Object:
        """Make an object in the collection at `path`."""
        return self._ask("POST", path, body=body)

    def patch(self, path: str, body: Object) -> Object:
        """Merge `body` into an object (RFC 7396); refused (409) when it names another resourceVersion than there is."""
        return self._ask("PATCH", path, body=body, kind=MERGE_PATCH)

    def stream(self, path: str, query: Query) -> Iterator[Object]:
        """Events of a watch, until the server or the network ends it.

        Raises:
            ApiAway: it broke off.
            ApiError: it was refused.
        """
        answer = self._send("GET", path, query, None, "application/json", SILENCE_SECONDS)
        try:
            for line in answer.response:
                if line.strip():
                    yield json.loads(line)
        except (HTTPError, OSError, ValueError, RecursionError) as error:
            raise ApiAway(f"watch of {path} broke off: {error}") from None
        finally:
            answer.response.close()

    def expire(self) -> None:
        """Read the token again before the next request."""
        if self._renew is not None:
            self._renew.expire()

    def asked(self) -> dict[tuple[str, int], int]:
        """Requests so far by (method, status); status 0 where no answer came."""
        with self._lock:
            return dict(self._asked)

    def _ask(
        self, method: str, path: str, query: Query | None = None, body: Object | None = None, kind: str = ""
    ) -> Object:
        answer = self._send(method, path, query, body, kind or "application/json", ANSWER_SECONDS)
        try:
            found: Object = json.loads(answer.read())
        except (HTTPError, OSError, ValueError, RecursionError) as error:
            raise ApiAway(f"{method} {path}: the answer cannot be read: {error}") from None
        return found

    def _send(self, method: str, path: str, query: Query | None, body: Object | None, kind: str, seconds: float) -> Any:  # noqa: ANN401  the client's own response, which has no types
        answer = self._transmit(method, path, query, body, kind, seconds)
        if answer.status == UNAUTHORIZED and self._renew is not None:
            log.info("token-refused action=read-it-again path=%s", path)
            answer.response.close()
            self._renew.expire()
            answer = self._transmit(method, path, query, body, kind, seconds)
        if not 200 <= answer.status < 300:  # noqa: PLR2004  HTTP's success
            raise _refusal(method, path, answer)
        return answer

    def _transmit(
        self, method: str, path: str, query: Query | None, body: Object | None, kind: str, seconds: float
    ) -> Any:  # noqa: ANN401  as above
        parts = self.client.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json", "Content-Type": kind},
            body=body,
            auth_settings=["BearerToken"],
        )
        status = 0
        try:
            answer = self.client.call_api(*parts, _request_timeout=(CONNECT_SECONDS, seconds))
            status = answer.status
        except (HTTPError, OSError, ApiException) as error:
            reason = getattr(error, "reason", None) or error
            raise ApiAway(f"{method} {path}: no answer: {reason}") from None
        finally:
            with self._lock:
                self._asked[method, status] += 1
        return answer


class Credentials:
    """A pod's service account: token and certificate, in files that the kubelet renews."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        """Take the server's address from `environment`."""
        loader: Any = InClusterConfigLoader
        self._loader = loader(str(folder / "token"), str(folder / "ca.crt"), environ=environment)

    def expire(self) -> None:
        """Read the token again before the next request."""
        self._loader.token_expires_at = datetime.min  # noqa: DTZ901  the loader compares naive times

    def api(self) -> Api:
        """The API server, asked with this account."""
        return Api(_client(self._loader.load_and_set), self)


def connect(kubeconfig: Path | None, folder: Path, environment: Mapping[str, str]) -> Api:
    """The API server that a kubeconfig names, or else the one a pod is told of.

    Raises:
        ConfigError: neither is there, or one is unusable.
    """
    try:
        if kubeconfig is not None:
            load: Any = config.load_kube_config
            return Api(_client(lambda found: load(str(kubeconfig), client_configuration=found)))
        return Credentials(folder, environment).api()
    except config.ConfigException as error:
        where = str(kubeconfig or folder)
        hint = "" if kubeconfig else "; in a pod it is mounted, elsewhere give --kubeconfig"
        raise ConfigError(f"{where}: no way to reach an API server: {error}{hint}") from None


def _client(configure: Any) -> ApiClient:  # noqa: ANN401  a function over the client's own, untyped configuration
    configuration = Configuration()
    configuration.retries = False
    configure(configuration)
    return ApiClient(configuration)


def _refusal(method: str, path: str, answer: Any) -> ApiError:  # noqa: ANN401  as above
    text = bytes(answer.read() or b"").decode(errors="replace")
    try:
        message = str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        message = text.strip()[:200] or str(answer.reason)
    away = answer.status == THROTTLED or answer.status >= FAILING
    return (ApiAway if away else ApiError)(f"{method} {path}: {answer.status}: {message}", answer.status)
