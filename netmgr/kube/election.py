"""One controller leads: a Lease, by the kubernetes client's own leader election.

The election alone guarantees nothing: a leader that was stopped for a while does not know that it
has been replaced. What must not happen twice is therefore guarded where it is written
(netmgr/kube/claim_store.py). The election keeps controllers from working against each other.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kubernetes.client import ApiClient, ApiException, CoordinationV1Api, V1Lease
from kubernetes.leaderelection.electionconfig import Config
from kubernetes.leaderelection.leaderelection import LeaderElection
from kubernetes.leaderelection.leaderelectionrecord import LeaderElectionRecord
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock
from urllib3.exceptions import HTTPError

from netmgr.backoff import Backoff
from netmgr.errors import ApiError, NetmgrError
from netmgr.kube.api import NOT_FOUND, UNAUTHORIZED, Api
from netmgr.kube.concurrency import THREADS, Concurrency
from netmgr.kube.health import Health

log = logging.getLogger(__name__)

REQUEST_SECONDS = 4.0
"""A longer request has failed: two of them must fit into the time that a leader has to renew."""

LEAST_REQUEST_SECONDS = 0.1
"""The least time that a request gets, however close the end of the leadership is."""


@dataclass(frozen=True, slots=True)
class Term:
    """A candidate's Lease, identity and times in seconds."""

    namespace: str
    name: str
    identity: str
    lease: int = 15
    """Another candidate may lead after this time without a renewal."""

    @property
    def renew_deadline(self) -> float:
        """A leader that could not renew for this long gives up."""
        # Earlier than another may lead: the work needs the rest to end, and clocks need not agree.
        return self.lease * 2 / 3

    @property
    def retry(self) -> float:
        """Pause between two attempts."""
        return max(1.0, self.lease / 8)


class Lease(LeaseLock):
    """The client's lock on a Lease; here a server that is away is a failed attempt, not the end."""

    def __init__(
        self, api: Api, term: Term, health: Health, concurrency: Concurrency = THREADS
    ) -> None:
        """Ask nothing yet."""
        super().__init__(term.name, term.namespace, term.identity)  # type: ignore[no-untyped-call]  # untyped
        self._api = api
        self._health = health
        self.concurrency = concurrency
        self.until = math.inf
        """When a leader's attempt must be over, by the clock that never steps: another may lead
        soon after."""
        leases: Any = _Leases(api.client, self._request_seconds)
        self.api_instance = leases
        self.closed = threading.Event()
        self.away = False
        """Whether the last reading did not show who leads."""
        self.changed_at = 0.0
        """When it was last seen to change, by the clock that never steps."""
        self._record: LeaderElectionRecord | None = None
        self._lease_seconds = term.lease

    def _request_seconds(self) -> float:
        left = self.until - self.concurrency.monotonic()
        return max(LEAST_REQUEST_SECONDS, min(left, REQUEST_SECONDS))

    def get(self, name: str, namespace: str) -> Any:  # noqa: ANN401  the base class is untyped
        """Read the Lease: (True, record), or (False, why not)."""
        self._health.beat("election")
        try:
            worked, found = super().get(name, namespace)  # type: ignore[no-untyped-call]  # untyped
        except (HTTPError, OSError) as error:
            # LeaseLock catches ApiException alone; a network error would end the election.
            worked, found = False, ApiException(status=0, reason=f"no answer: {error}")
        self.away = not worked and found.status != NOT_FOUND
        # These requests bypass Api, which would read a refused token again by itself.
        if not worked and found.status == UNAUTHORIZED:
            self._api.expire()
        if worked and (self._record is None or vars(found) != vars(self._record)):
            self._record, self.changed_at = found, self.concurrency.monotonic()
        return worked, found

    def create(self, name: str, namespace: str, election_record: Any) -> bool:  # noqa: ANN401  as above
        """Create the Lease; returns whether that succeeded."""
        # After `withdraw` the election's thread may be in the middle of an attempt, which must not
        # take the Lease back.
        return not self.closed.is_set() and self._worked(
            super().create, name, namespace, election_record
        )

    def update(self, name: str, namespace: str, updated_record: Any) -> bool:  # noqa: ANN401  as above
        """Renew or take the Lease; returns whether that succeeded."""
        # The client reads the wall clock before and after it reads the Lease. If the clock is set
        # back in between, a Lease that was renewed just now looks expired.
        if self.closed.is_set() or self._is_anothers():
            return False
        return self._worked(super().update, name, namespace, updated_record)

    def time_str_to_iso(self, str_time: str) -> datetime:
        """The instant to store, never at a whole second.

        The client writes those without a fraction, and a server refuses such a MicroTime.
        """
        instant: datetime = super().time_str_to_iso(str_time)  # type: ignore[no-untyped-call]  # untyped
        return instant.replace(microsecond=instant.microsecond or 1)

    def _is_anothers(self) -> bool:
        holder = self._record and self._record.holder_identity
        age = self.concurrency.monotonic() - self.changed_at
        return bool(holder) and holder != self.identity and age < self._lease_seconds

    def _worked(self, write: Callable[..., Any], *arguments: object) -> bool:
        try:
            return bool(write(*arguments))
        except (HTTPError, OSError) as error:
            log.info("lease-not-written reason=%s", str(error))
            return False


class _Leases:
    """The requests that the lock makes, each with a timeout."""

    def __init__(self, client: ApiClient, seconds: Callable[[], float]) -> None:
        self._api = CoordinationV1Api(client)
        self._seconds = seconds

    def read_namespaced_lease(self, name: str, namespace: str) -> V1Lease:
        return self._api.read_namespaced_lease(name, namespace, _request_timeout=self._seconds())

    def create_namespaced_lease(self, namespace: str, body: V1Lease) -> V1Lease:
        return self._api.create_namespaced_lease(namespace, body, _request_timeout=self._seconds())

    def replace_namespaced_lease(self, name: str, namespace: str, body: V1Lease) -> V1Lease:
        return self._api.replace_namespaced_lease(
            name, namespace, body, _request_timeout=self._seconds()
        )


class _Election(LeaderElection):
    """The client's election with jitter: all followers lose a leader, or server, at once.

    The client measures by the wall clock. A step of it would end a leader's Lease early, or keep a
    follower from taking over for as long as the step; so time is measured by the other clock here.
    """

    def run(self) -> None:
        """Lead once: until elected, and then until the Lease is lost or the work failed."""
        if not self.acquire():
            return
        config: Any = self.election_config
        lock: Lease = config.lock
        leading_failed = threading.Event()
        lock.concurrency.start(lambda: self._lead(leading_failed), "lead")
        self.renew_loop(leading_failed)
        config.onstopped_leading()

    def _lead(self, leading_failed: threading.Event) -> None:
        self.run_onstarted_leading(leading_failed)  # type: ignore[no-untyped-call]  # untyped

    def try_acquire_or_renew(self) -> bool:
        """Renew the Lease, or take it if nobody has renewed it in time; whether this one leads."""
        config: Any = self.election_config
        # What the client compares to the wall clock, as if that had never been set.
        age = config.lock.concurrency.monotonic() - config.lock.changed_at
        self.observed_time_milliseconds = int((time.time() - age) * 1000)
        return bool(super().try_acquire_or_renew())  # type: ignore[no-untyped-call]  # untyped

    def renew_loop(self, leading_failed: threading.Event | None = None) -> None:
        """Renew until that has failed for as long as a leader has, or the work failed."""
        config: Any = self.election_config
        lock: Lease = config.lock
        clock = lock.concurrency
        while leading_failed is None or not leading_failed.is_set():
            self._try_in_time()
            left = lock.until - clock.monotonic()
            if left <= 0:
                break
            clock.sleep(min(left, config.retry_period))
        lock.until = math.inf

    def _try_in_time(self) -> bool:
        """As `try_acquire_or_renew`; a success is how long the next one may take."""
        config: Any = self.election_config
        # From before the request: nobody knows when within it the Lease was renewed.
        began = config.lock.concurrency.monotonic()
        is_leader = self.try_acquire_or_renew()
        if is_leader:
            config.lock.until = began + config.renew_deadline
        return is_leader

    def acquire(self) -> bool:
        """Try until elected, with growing waits while the server is away; False: withdrawn."""
        config: Any = self.election_config
        lock: Lease = config.lock
        waits = Backoff(first=config.retry_period, most=config.lease_duration)
        while not lock.closed.is_set():
            if self._try_in_time():
                return True
            if not lock.away:
                waits.reset()
            lock.concurrency.wait(lock.closed, waits.next())
        return False


class Candidate:
    """Runs for election until it is stopped; leads whenever it is elected."""

    def __init__(
        self,
        api: Api,
        term: Term,
        lead: Callable[[threading.Event], None],
        ended: threading.Event,
        health: Health,
        concurrency: Concurrency = THREADS,
    ) -> None:
        """Call `lead` when elected; it must return soon after the event it is given is set.

        If it ends by itself or by an error, `ended` is set: the process has to end.
        Every attempt at the Lease is a beat of `health`.
        """
        self._api = api
        self._term = term
        self._lead = lead
        self._ended = ended
        self.failure: NetmgrError | None = None
        """What ended the work."""
        self.fault: Exception | None = None
        """The exception that ended it, if that was a bug of ours."""
        self._concurrency = concurrency
        self._lease = Lease(api, term, health, concurrency)
        self._was_elected = False
        self._waits = Backoff(first=term.retry)
        self._lost = threading.Event()
        self._idle = threading.Event()
        self._idle.set()

    def run(self) -> None:
        """Run for election again and again, until `withdraw` or the end of the work."""
        while not (self._lease.closed.is_set() or self._ended.is_set()):
            self._lost = threading.Event()
            # The client's `run` returns when the Lease is lost. A new event for each term: the work
            # of the previous one may still look at its own.
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
            self._concurrency.wait(self._lease.closed, self._waits.next())

    def withdraw(self) -> None:
        """End the work, and let another lead at once."""
        self._lease.closed.set()
        self._stop()
        # After `_stop`: once the Lease is free another controller works at once.
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
        self._concurrency.wait(self._idle)
        log.info("leads-no-more identity=%s", self._term.identity)

    def _release(self) -> None:
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{self._term.namespace}/leases"
        path = f"{leases}/{self._term.name}"
        try:
            found = self._api.get(path)
            if found["spec"].get("holderIdentity") == self._term.identity:
                # Bound to the version: another may have taken the Lease meanwhile.
                version = {"resourceVersion": found["metadata"]["resourceVersion"]}
                self._api.patch(path, {"metadata": version, "spec": {"holderIdentity": None}})
        except ApiError as error:
            log.warning("lease-not-released reason=%s", error.message)
