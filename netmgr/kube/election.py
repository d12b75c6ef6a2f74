"""One controller leads: a Lease, by the kubernetes client's own leader election.

The election alone is no guarantee, because a leader that was stopped for a while does not know
yet that it is none. What must not happen twice is therefore guarded where it is written
(netmgr/kube/claims.py); the election keeps controllers from working against each other.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kubernetes.client import ApiClient, ApiException, CoordinationV1Api, V1Lease
from kubernetes.leaderelection.electionconfig import Config
from kubernetes.leaderelection.leaderelection import LeaderElection
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock
from urllib3.exceptions import HTTPError

from netmgr.errors import ApiError, NetmgrError
from netmgr.kube.api import NOT_FOUND, UNAUTHORIZED, Api
from netmgr.kube.backoff import Backoff
from netmgr.kube.pulse import Pulse

log = logging.getLogger(__name__)

REQUEST_SECONDS = 4
"""A request that takes longer has failed: two of them must fit into the time a leader has to renew."""


@dataclass(frozen=True, slots=True)
class Term:
    """Whose lease, and its times in seconds."""

    namespace: str
    name: str
    identity: str
    lease: int = 15
    """Another may lead when the leader has said nothing for so long."""

    @property
    def renew_deadline(self) -> float:
        """A leader that could not renew for so long leads no more."""
        return self.lease * 2 / 3

    @property
    def retry(self) -> float:
        """Between two attempts."""
        return max(1.0, self.lease / 8)


class Lease(LeaseLock):
    """The client's lock on a Lease, for which a server that is away is a failed attempt, not the end."""

    def __init__(self, api: Api, term: Term, pulse: Pulse) -> None:
        """Nothing is asked yet."""
        super().__init__(term.name, term.namespace, term.identity)  # type: ignore[no-untyped-call]  # it has no types
        self._api = api
        self._pulse = pulse
        leases: Any = _Leases(api.client)
        self.api_instance = leases
        self.closed = threading.Event()
        self.away = False
        """Whether the last reading had no answer, or none that says who leads."""

    def get(self, name: str, namespace: str) -> Any:  # noqa: ANN401  the client's own, untyped protocol
        """Read the Lease: (True, record), or (False, why not)."""
        self._pulse.beat("election")
        try:
            worked, found = super().get(name, namespace)  # type: ignore[no-untyped-call]  # as above
        except (HTTPError, OSError) as error:
            worked, found = False, ApiException(status=0, reason=f"no answer: {error}")
        self.away = not worked and found.status != NOT_FOUND
        if not worked and found.status == UNAUTHORIZED:
            self._api.expire()
        return worked, found

    def create(self, name: str, namespace: str, election_record: Any) -> bool:  # noqa: ANN401  as above
        """Make the Lease; whether it worked."""
        return not self.closed.is_set() and self._worked(super().create, name, namespace, election_record)

    def update(self, name: str, namespace: str, updated_record: Any) -> bool:  # noqa: ANN401  as above
        """Renew or take the Lease; whether it worked."""
        return not self.closed.is_set() and self._worked(super().update, name, namespace, updated_record)

    def _worked(self, write: Callable[..., Any], *arguments: object) -> bool:
        try:
            return bool(write(*arguments))
        except (HTTPError, OSError) as error:
            log.info("lease-not-written reason=%s", str(error))
            return False


class _Leases:
    """What the lock uses of the client's API of Leases, with an end to every request."""

    def __init__(self, client: ApiClient) -> None:
        self._api = CoordinationV1Api(client)

    def read_namespaced_lease(self, name: str, namespace: str) -> V1Lease:
        return self._api.read_namespaced_lease(name, namespace, _request_timeout=REQUEST_SECONDS)

    def create_namespaced_lease(self, namespace: str, body: V1Lease) -> V1Lease:
        return self._api.create_namespaced_lease(namespace, body, _request_timeout=REQUEST_SECONDS)

    def replace_namespaced_lease(self, name: str, namespace: str, body: V1Lease) -> V1Lease:
        return self._api.replace_namespaced_lease(name, namespace, body, _request_timeout=REQUEST_SECONDS)


class _Election(LeaderElection):
    """The client's election, whose followers never ask in step: they lost the same leader, or server, at one moment."""

    def acquire(self) -> bool:
        """Try until elected, and meanwhile ever more seldom while there is no answer; False: it is given up."""
        config: Any = self.election_config
        lock: Lease = config.lock
        waits = Backoff(first=config.retry_period, most=config.lease_duration)
        while not lock.closed.is_set():
            if self.try_acquire_or_renew():  # type: ignore[no-untyped-call]  # it has no types
                return True
            if not lock.away:
                waits.reset()
            lock.closed.wait(waits.next())
        return False


class Candidate:
    """Stands for election until it is stopped; leads whenever it is elected."""

    def __init__(
        self, api: Api, term: Term, lead: Callable[[threading.Event], None], ended: threading.Event, pulse: Pulse
    ) -> None:
        """Call `lead` when elected; it must return soon after the event it is given is set.

        If it ends by itself or by an error, `ended` is set: there is nothing to stand for any more.
        Every attempt at the Lease is a beat of `pulse`.
        """
        self._api = api
        self._term = term
        self._lead = lead
        self._ended = ended
        self.failure: NetmgrError | None = None
        """What ended the work."""
        self.fault: Exception | None = None
        """What ended it if that was a fault of our own."""
        self._lease = Lease(api, term, pulse)
        self._was_elected = False
        self._waits = Backoff(first=term.retry)
        self._lost = threading.Event()
        self._idle = threading.Event()
        self._idle.set()

    def run(self) -> None:
        """Stand again and again; never returns before `withdraw`."""
        while not (self._lease.closed.is_set() or self._ended.is_set()):
            self._lost = threading.Event()
            make: Any = Config
            config = make(
                self._lease,
                lease_duration=self._term.lease,
                renew_deadline=self._term.renew_deadline,
                retry_period=self._term.retry,
                onstarted_leading=self._start,
                onstopped_leading=self._stop,
            )
            election: Any = _Election
            election(config).run()
            self._lease.closed.wait(self._waits.next())

    def withdraw(self) -> None:
        """End the work, and let another lead at once."""
        self._lease.closed.set()
        self._stop()
        if self._was_elected:
            self._release()

    def _start(self) -> None:
        log.info("leading identity=%s", self._term.identity)
        self._idle.clear()
        self._was_elected = True
        self._waits.reset()
        try:
            self._lead(self._lost)
        except NetmgrError as error:
            self.failure = error
        except Exception as error:
            self.fault = error  # the client's election logs what is raised, and goes on
            raise
        finally:
            self._idle.set()
            if not self._lost.is_set():
                self._ended.set()

    def _stop(self) -> None:
        self._lost.set()
        self._idle.wait()
        log.info("leads-no-more identity=%s", self._term.identity)

    def _release(self) -> None:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self._term.namespace}/leases/{self._term.name}"
        try:
            found = self._api.get(path)
            if found["spec"].get("holderIdentity") == self._term.identity:
                version = {"resourceVersion": found["metadata"]["resourceVersion"]}
                self._api.patch(path, {"metadata": version, "spec": {"holderIdentity": None}})
        except ApiError as error:
            log.warning("lease-not-released reason=%s", error.message)
