"""The range controller: gives each Node its place of the plan, as Node.spec.podCIDRs.

A round reads nothing from the server: the Nodes are followed by a watch, the claims are what
was last written. It decides, writes claims, and only then tells the Nodes, each patch bound to
the Node's UID and resourceVersion. Whatever was refused or lost is decided again in the next.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from netmgr.errors import ApiAway, ApiError
from netmgr.kube.api import CONFLICT, NOT_FOUND, Api
from netmgr.kube.assigning import Decision, NodeView, decide, ended
from netmgr.kube.backoff import Backoff
from netmgr.kube.book import Book
from netmgr.kube.claims import Claim
from netmgr.kube.cluster_nodes import ClusterNodes
from netmgr.kube.events import Events
from netmgr.kube.node_document import RANGES
from netmgr.kube.places import Place, Places
from netmgr.kube.plan_watch import PlanWatch
from netmgr.kube.pulse import Pulse
from netmgr.kube.reflector import Reflector
from netmgr.kube.telemetry import Telemetry

log = logging.getLogger(__name__)

ROUND_SECONDS = 2.0
"""Without any change a round follows the last after such a time: for places that have rested, and a new plan."""

GATHER_SECONDS = 0.1
"""Nodes that come within such a time of each other are decided on together."""

ROUNDS = "rounds"
"""Their name in the pulse."""

WRITERS = 4
"""Nodes written at a time: 7,500 take half a minute, and a server has 200 writes in flight."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line says."""

    namespace: str
    cluster: str
    pool_label: str
    quarantine: float
    """Seconds that a place rests after its Node is gone."""
    identity: str


class Controller:
    """Leads when it is told to."""

    def __init__(self, api: Api, settings: Settings, plan: PlanWatch, telemetry: Telemetry, pulse: Pulse) -> None:
        """Nothing is asked yet. Every round, and every Node written in it, is a beat of `pulse`."""
        self._api = api
        self._settings = settings
        self._plan = plan
        self._telemetry = telemetry
        self._pulse = pulse
        self._events = Events(api, settings.identity)

    def lead(self, lost: threading.Event) -> None:
        """Work until the leadership is lost, or given up."""
        nodes = ClusterNodes(self._settings.pool_label)
        reflector = Reflector(self._api, "/api/v1/nodes", nodes, lost)
        reflector.start()
        backoff, book = Backoff(), None
        self._telemetry.leader.set(1)
        while not lost.is_set():
            self._pulse.beat(ROUNDS)
            if reflector.failure is not None:
                raise reflector.failure
            if not reflector.synced.wait(1):
                continue
            try:
                book = book or self._open()
                settled = self._round(nodes, book, lost)
                backoff.reset()
            except ApiError as error:
                # What was read may be out of date by now, or only half of it was written.
                book, settled = None, False
                level = logging.WARNING if isinstance(error, ApiAway) else logging.ERROR
                log.log(level, "round-failed failures=%s reason=%s", backoff.failures, error.message)
            self._telemetry.lists.set(reflector.lists)
            self._telemetry.watches.set(reflector.watches)
            _wait(nodes.changed, lost, ROUND_SECONDS if settled else backoff.next())
        self._telemetry.leader.set(0)
        self._pulse.rest(ROUNDS)

    def _open(self) -> Book:
        book = Book(self._api, self._settings.namespace, self._settings.cluster)
        book.load()
        log.info("claims-read number=%s", len(book.claims))
        return book

    def _round(self, nodes: ClusterNodes, book: Book, lost: threading.Event) -> bool:
        """One round; False when another should follow soon."""
        nodes.changed.clear()
        places = self._plan.places(book.claims)
        self._telemetry.plan_refused.set(bool(self._plan.refused))
        views = nodes.views()
        decision = decide(places, book.claims, views, time.time(), self._settings.quarantine)
        if lost.is_set() or not self._are_gone(book, views, decision):
            return False
        if decision.claims and not book.write(decision.claims):
            self._telemetry.conflicts.labels("claims").inc()
            return False
        refused: list[ApiError] = []
        settled = self._tell_all(nodes, {view.name: view for view in views}, decision, lost, refused)
        self._events.tell(decision.refusals)
        self._count(places, book, views, decision, {view.name: view for view in nodes.views()})
        if refused:
            raise refused[0]
        return settled

    def _are_gone(self, book: Book, views: list[NodeView], decision: Decision) -> bool:
        """Ask for each Node whose place begins to rest: a watch may lag, and no rest may begin before its time."""
        known = {view.uid for view in views}
        unsure = [claim for claim in ended(book.claims, decision) if claim.uid not in known]
        if not unsure:
            return True
        with ThreadPoolExecutor(WRITERS, "read") as readers:
            return all(list(readers.map(self._is_gone, unsure)))

    def _is_gone(self, claim: Claim) -> bool:
        try:
            found = self._api.get(f"/api/v1/nodes/{claim.node}")
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            return True
        if found["metadata"]["uid"] != claim.uid:
            return True
        log.warning("watch-lags node=%s keeps=%s", claim.node, claim.place.slot)
        return False

    def _tell_all(
        self,
        nodes: ClusterNodes,
        views: Mapping[str, NodeView],
        decision: Decision,
        lost: threading.Event,
        refused: list[ApiError],
    ) -> bool:
        """Write every Node; one that the server does not let us write goes into `refused` and keeps no other."""

        def tell(entry: tuple[str, Place]) -> bool:
            try:
                return lost.is_set() or self._tell(nodes, views[entry[0]], entry[1])
            except ApiAway:
                raise
            except ApiError as error:
                refused.append(error)
                return False

        if not decision.assignments:
            return True
        with ThreadPoolExecutor(WRITERS, "write") as writers:
            return all(list(writers.map(tell, decision.assignments.items())))

    def _tell(self, nodes: ClusterNodes, view: NodeView, place: Place) -> bool:
        """Write a Node's ranges; False when it has changed meanwhile and must be looked at again."""
        self._pulse.beat(ROUNDS)
        version = nodes.version(view.name)
        if version is None:
            return True
        body = {
            "metadata": {
                "uid": view.uid,
                "resourceVersion": version,
                "annotations": {RANGES: place.annotation or None},
            },
            "spec": {"podCIDR": str(place.cidrs[0]), "podCIDRs": [str(cidr) for cidr in place.cidrs]},
        }
        try:
            nodes.change(self._api.patch(f"/api/v1/nodes/{view.name}", body))
        except ApiError as error:
            if error.status not in (CONFLICT, NOT_FOUND):
                raise
            self._telemetry.conflicts.labels("node").inc()
            return False
        self._telemetry.assigned.inc()
        log.info("assigned node=%s place=%s ranges=%s", view.name, place.slot, ",".join(map(str, place.ranges)))
        return True

    def _count(
        self, places: Places, book: Book, views: list[NodeView], decision: Decision, now: Mapping[str, NodeView]
    ) -> None:
        """Tell how many Nodes and places are how; `now` is what the Nodes say after they were written."""
        refused = {refusal.node.name for refusal in decision.refusals}
        self._telemetry.nodes.labels("refused").set(len(refused))
        right = [view.name for view in views if view.runs_pods and view.name not in refused]
        served = sum(_is_told(now.get(name), decision.assignments.get(name)) for name in right)
        self._telemetry.nodes.labels("served").set(served)
        self._telemetry.nodes.labels("waiting").set(len(right) - served)
        taken: Counter[tuple[str, str]] = Counter()
        for slot, claim in book.claims.items():
            taken[slot.pool, "held" if claim.released is None else "resting"] += 1
        for pool, capacity in places.capacity.items():
            held, resting = taken[pool, "held"], taken[pool, "resting"]
            for state, number in (("held", held), ("resting", resting), ("free", capacity - held - resting)):
                self._telemetry.places.labels(pool, state).set(number)


def _is_told(view: NodeView | None, place: Place | None) -> bool:
    """Whether a Node has what was decided for it; without a decision it is to keep what it has."""
    if view is None:
        return False
    return bool(view.cidrs) if place is None else (view.cidrs, view.annotation) == (place.cidrs, place.annotation)


def _wait(changed: threading.Event, lost: threading.Event, seconds: float) -> None:
    """Until something changed, the time has passed, or the leadership is lost (noticed within a tenth of it)."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0 and not lost.is_set():
        if changed.wait(min(left, 0.5)):
            time.sleep(GATHER_SECONDS)
            return
