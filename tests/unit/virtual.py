"""Code of a controller in virtual time, on an API server in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from netmgr.kube.client.agent_pods import agent_pod
from netmgr.kube.client.api import Api
from netmgr.kube.client.object_cache import ObjectCache
from netmgr.kube.controller.assigner import AssignerSettings
from netmgr.kube.controller.controller import Controller, Settings, standard_reconcilers
from netmgr.kube.controller.election import Candidate, Term
from netmgr.kube.controller.health import Health, Telemetry
from netmgr.kube.controller.node_conditions import NodeConditions
from netmgr.kube.controller.node_taints import UnhealthyTaint
from netmgr.kube.controller.nodes import node_view
from netmgr.kube.controller.plan_watch import PlanWatch
from netmgr.kube.controller.reconciling import Leadership
from tests.fakes.api_server import ApiServer
from tests.fakes.virtual_time import VirtualTime

POOL_LABEL = "netmgr.io/node-pool"
QUARANTINE_SECONDS = 600.0
CLAIM_NAMESPACE = "netmgr-claims"


class Virtual:
    """Time, and a server whose requests take `seconds` each."""

    def __init__(self, seconds: float = 0.01) -> None:
        self.time = VirtualTime()
        self.server = ApiServer(self.time)
        self.seconds = seconds

    def start(self, work: Callable[[], object], owner: str = "tested") -> None:
        """Do this beside all else."""
        self.time.start_for(owner, work, owner)

    def api(self, client: str = "tested") -> Api:
        return self.server.api(client, self.seconds)

    def leadership(self, lost: threading.Event | None = None) -> Leadership:
        changed = threading.Event()
        return Leadership(
            self.api(),
            "tested",
            ObjectCache(partial(node_view, pool_label=POOL_LABEL), changed),
            ObjectCache(agent_pod, changed),
            "/api/v1/namespaces/netmgr/pods",
            lost or threading.Event(),
            lambda: None,
            self.time,
        )

    def start_controller(self, plan: PlanWatch, name: str = "controller") -> None:
        """One as a Deployment starts it: with its election, watches and reconcilers."""
        api = self.api(name)
        health, telemetry = Health(self.time.monotonic), Telemetry(api)
        makers = [
            *standard_reconcilers(
                lambda: plan, AssignerSettings(CLAIM_NAMESPACE, QUARANTINE_SECONDS)
            ),
            lambda leadership, telemetry: NodeConditions(leadership, None, telemetry),
            lambda leadership, telemetry: UnhealthyTaint(leadership, telemetry, None, 0),
        ]
        settings = Settings(name, POOL_LABEL, "netmgr")
        work = Controller(api, settings, makers, telemetry, health, self.time)
        term = Term(CLAIM_NAMESPACE, "netmgr-controller", name)
        candidate = Candidate(api, term, work.lead, threading.Event(), health, self.time)
        self.start(candidate.run, name)


@contextmanager
def virtual(seconds: float = 0.01) -> Iterator[Virtual]:
    made = Virtual(seconds)
    try:
        yield made
    finally:
        made.time.close()
