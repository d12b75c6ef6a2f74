"""One controller leads: the one that holds a Lease.

The election alone guarantees nothing: a leader that was stopped for a while does not know that it
has been replaced. What must not happen twice is therefore guarded where it is written
(`claim_store.py`). The election keeps controllers from working against each other.

Wall clocks may be wrong, and may be set at any time. So nobody compares the times in a Lease with
their own: a follower measures how long the Lease has not changed, and a leader how long it has not
renewed it, both by the monotonic clock.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from netmgr.backoff import Backoff
from netmgr.errors import ApiError, NetmgrError
from netmgr.kube.client.api import LEAST_SECONDS, Api, Object
from netmgr.kube.client.concurrency import THREADS, Concurrency
from netmgr.kube.controller.health import ControllerHealth

log = logging.getLogger(__name__)

LEASE = "netmgr-controller"
"""Name of the controllers' Lease."""

ADDRESS = "netmgr.io/leader-address"
"""Annotation of the Lease: the `address` of the candidate that holds it."""

# A longer request has failed: two of them must fit into the time that a leader has to renew.
REQUEST_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Term:
    """A candidate's Lease, identity and times in seconds."""

    namespace: str
    name: str
    identity: str
    lease: int = 15
    """Another candidate may lead after this time without a renewal."""
    address: str = ""
    """Where this candidate answers what only a leader may answer; empty for nowhere."""

    @property
    def renew_deadline(self) -> float:
        """A leader that could not renew for this long gives up."""
        # Earlier than another may lead: the work needs the rest to end, and clocks need not agree.
        return self.lease * 2 / 3

    @property
    def retry(self) -> float:
        return max(1.0, self.lease / 8)

    @property
    def leases(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"


class Lease:
    """The Lease of a term, as one candidate sees it.

    Attributes:
        closed: once this is set the Lease is neither taken nor renewed.
        is_away: whether the last attempt could not read who leads.
    """

    def __init__(
        self, api: Api, term: Term, health: ControllerHealth, concurrency: Concurrency = THREADS
    ) -> None:
        """Send nothing yet. Every attempt is a beat of `health`."""
        self.closed = threading.Event()
        self.is_away = False
        self._api = api
        self._term = term
        self._health = health
        self._clock = concurrency
        self._until = math.inf
        self._seen: Object | None = None
        self._spec: Object | None = None
        self._changed_at = 0.0

    @property
    def leader_address(self) -> str:
        """That of the candidate that leads; empty while it is unknown."""
        annotations = (self._seen or {}).get("metadata", {}).get("annotations") or {}
        return str(annotations.get(ADDRESS, ""))

    @property
    def left(self) -> float:
        """Seconds for which a leader may still lead; infinite for a follower."""
        return self._until - self._clock.monotonic()

    def lose(self) -> None:
        """Become a follower, whose attempts have no deadline."""
        self._until = math.inf

    def attempt(self) -> bool:
        """Renew the Lease, or take it if nobody has renewed it in time; whether that succeeded."""
        self._health.beat("election")
        # From before the request: nobody knows when within it the Lease was renewed.
        began = self._clock.monotonic()
        self.is_away = True
        try:
            lease = self._read()
            self.is_away = False
            # After `withdraw` an attempt may be under way, which must not take the Lease back.
            if self.closed.is_set() or self._is_anothers(lease):
                return False
            self._write(lease)
        except ApiError as error:
            log.info("lease-attempt-failed reason=%s", error.message)
            return False
        self._until = began + self._term.renew_deadline
        return True

    def release(self) -> None:
        """Let another candidate lead at once."""
        try:
            lease = self._read()
            if lease and _spec(lease).get("holderIdentity") == self._term.identity:
                # Its account may not delete the Lease; without a holder it can be taken at once.
                spec = {
                    key: value for key, value in _spec(lease).items() if key != "holderIdentity"
                }
                self._replace(lease, spec)
        except ApiError as error:
            log.warning("lease-not-released reason=%s", error.message)

    @property
    def _seconds(self) -> float:
        """How long a request may take: a leader's last attempt ends when its time does."""
        return max(LEAST_SECONDS, min(self.left, REQUEST_SECONDS))

    def _read(self) -> Object | None:
        lease = self._api.find(f"{self._term.leases}/{self._term.name}", self._seconds)
        self._seen = lease
        if lease is not None and _spec(lease) != self._spec:
            self._spec, self._changed_at = _spec(lease), self._clock.monotonic()
        return lease

    def _is_anothers(self, lease: Object | None) -> bool:
        holder = _spec(lease).get("holderIdentity")
        age = self._clock.monotonic() - self._changed_at
        return bool(holder) and holder != self._term.identity and age < self._term.lease

    def _write(self, lease: Object | None) -> None:
        """Record this candidate as the leader, now."""
        before = _spec(lease)
        # MicroTime: a server refuses a time without six digits of a fraction.
        now = datetime.fromtimestamp(self._clock.now(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_renewed = before.get("holderIdentity") == self._term.identity
        spec = before | {
            "holderIdentity": self._term.identity,
            "leaseDurationSeconds": self._term.lease,
            "acquireTime": (is_renewed and before.get("acquireTime")) or now,
            "renewTime": now,
        }
        if lease is not None:
            metadata = lease["metadata"]
            own = (metadata.get("annotations") or {}) | {ADDRESS: self._term.address}
            self._replace(lease | {"metadata": metadata | {"annotations": own}}, spec)
            return
        metadata = {"name": self._term.name, "annotations": {ADDRESS: self._term.address}}
        body: Object = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": spec,
        }
        self._api.create(self._term.leases, body, self._seconds)

    def _replace(self, lease: Object, spec: Object) -> None:
        # Bound to the version that was read: another may have taken the Lease meanwhile.
        path = f"{self._term.leases}/{self._term.name}"
        self._api.replace(path, lease | {"spec": spec}, self._seconds)


def _spec(lease: Object | None) -> Object:
    spec: Object = (lease or {}).get("spec") or {}
    return spec


class Candidate:
    """Runs for election until it is stopped; leads whenever it is elected."""

    def __init__(
        self,
        api: Api,
        term: Term,
        lead: Callable[[threading.Event], None],
        ended: threading.Event,
        health: ControllerHealth,
        concurrency: Concurrency = THREADS,
    ) -> None:
        """Call `lead` when elected; it must return soon after the event it is given is set.

        If it ends by itself or by a NetmgrError, `ended` is set: the process has to end.
        """
        self._term = term
        self._lead = lead
        self._ended = ended
        self.failure: NetmgrError | None = None
        """What ended the work."""
        self._concurrency = concurrency
        self.lease = Lease(api, term, health, concurrency)
        self._was_elected = False
        self._waits = Backoff(first=term.retry)
        self._lost = threading.Event()
        self._idle = threading.Event()
        self._idle.set()

    def run(self) -> None:
        """Run for election again and again, until `withdraw` or the end of the work."""
        while not (self.lease.closed.is_set() or self._ended.is_set()):
            # A new event for each term: the work of the previous one may still look at its own.
            self._lost = threading.Event()
            if self._acquire():
                self._hold()
            self._concurrency.wait(self.lease.closed, self._waits.next())

    def withdraw(self) -> None:
        """End the work, and let another lead at once."""
        self.lease.closed.set()
        self._stop()
        # After `_stop`: once the Lease is free another controller works at once.
        if self._was_elected:
            self.lease.release()

    def _acquire(self) -> bool:
        """Try until elected; False: withdrawn."""
        # All followers lose a leader, or the server, at once: they wait with jitter, and ever
        # longer while the server is away.
        waits = Backoff(first=self._term.retry, most=self._term.lease)
        while not self.lease.closed.is_set():
            if self.lease.attempt():
                return True
            if not self.lease.is_away:
                waits.reset()
            self._concurrency.wait(self.lease.closed, waits.next())
        return False

    def _hold(self) -> None:
        """Work, and renew the Lease until that has failed for too long, or the work ended."""
        self._was_elected = True
        self._idle.clear()
        self._concurrency.start(self._work, "lead")
        while self.lease.left > 0 and not self._idle.is_set():
            self.lease.attempt()
            self._concurrency.sleep(max(0.0, min(self.lease.left, self._term.retry)))
        self.lease.lose()
        self._stop()

    def _work(self) -> None:
        log.info("leading identity=%s", self._term.identity)
        self._waits.reset()
        try:
            self._lead(self._lost)
        except NetmgrError as error:
            self.failure = error
        except Exception:
            # A bug of ours: the process ends with this thread, and another leads at once.
            self.lease.closed.set()
            self.lease.release()
            raise
        finally:
            log.info("leadership-lost identity=%s", self._term.identity)
            self._idle.set()
        if not self._lost.is_set():
            self._ended.set()

    def _stop(self) -> None:
        self._lost.set()
        self._concurrency.wait(self._idle)
