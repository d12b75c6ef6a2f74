"""Code of a controller in virtual time, on an API server in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from netmgr.kube.client.agent_pods import agent_pod
from netmgr.kube.client.api import Api
from netmgr.kube.client.object_cache import ObjectCache
from netmgr.kube.controller.controller import Controller, ControllerSettings
from netmgr.kube.controller.election import Candidate, Term
from netmgr.kube.controller.health import ControllerHealth, Telemetry
from netmgr.kube.controller.nodes import node_view
from netmgr.kube.controller.plan_watch import PlanWatch
from netmgr.kube.controller.reconciling import Leadership
from tests.fakes.api_server import ApiServer
from tests.fakes.virtual_time import VirtualTime

POOL_LABEL = "netmgr.io/node-pool"
QUARANTINE_SECONDS = 600.0
CLAIM_NAMESPACE = "netmgr-claims"


class Virtual:
    """Time, and a server whose requests take a hundredth of a second each."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.server = ApiServer(self.time)

    def start(self, work: Callable[[], object], owner: str = "tested") -> None:
        """Do this beside all else."""
        self.time.start_for(owner, work, owner)

    def api(self, client: str = "tested") -> Api:
        return self.server.api(client, 0.01)

    def leadership(self) -> Leadership:
        changed = threading.Event()
        return Leadership(
            self.api(),
            "tested",
            ObjectCache(partial(node_view, pool_label=POOL_LABEL), changed),
            ObjectCache(agent_pod, changed),
            "/api/v1/namespaces/netmgr/pods",
            threading.Event(),
            lambda: None,
            self.time,
        )

    def start_controller(self, plan: PlanWatch) -> None:
        """One as a Deployment starts it: with its election, watches and reconcilers."""
        name = "controller"
        api = self.api(name)
        health, telemetry = ControllerHealth(self.time.monotonic), Telemetry(api)
        settings = ControllerSettings(
            name, POOL_LABEL, "netmgr", CLAIM_NAMESPACE, QUARANTINE_SECONDS
        )
        work = Controller(api, settings, lambda: plan, telemetry, health, self.time)
        term = Term(CLAIM_NAMESPACE, "netmgr-controller", name)
        candidate = Candidate(api, term, work.lead, threading.Event(), health, self.time)
        self.start(candidate.run, name)


@contextmanager
def virtual() -> Iterator[Virtual]:
    made = Virtual()
    try:
        yield made
    finally:
        made.time.close()
