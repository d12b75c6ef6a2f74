"""`netmgr controller`: assigns the cluster's Nodes their ranges."""

from __future__ import annotations

import os
import signal
import socket
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from netmgr import faults
from netmgr.errors import ConfigError

if TYPE_CHECKING:
    from netmgr.kube.api import Api
    from netmgr.kube.controller import Settings
    from netmgr.kube.places import Places

Kubeconfig = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Whom to ask, outside a pod; in one it is known.", envvar="KUBECONFIG"),
]
Account = Annotated[
    Path,
    typer.Option(
        metavar="DIR", help="The service account's token and ca.crt; the token is read again as it is renewed."
    ),
]
LEASE = "netmgr-controller"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def controller(  # noqa: PLR0913  one a command-line option
    *,
    plan: Annotated[Path, typer.Option("--plan", "-f", metavar="PLAN", help="The plan; its lock stands beside it.")],
    cluster: Annotated[
        str, typer.Option(metavar="NAME", help="This cluster's name in the plan; default: the only one it has.")
    ] = "",
    pool_label: Annotated[
        str, typer.Option(metavar="LABEL", help="Label of a Node whose value is its node pool's name in the plan.")
    ] = "netmgr.io/node-pool",
    quarantine: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long a place rests after its Node is gone.")
    ] = 600,
    namespace: Annotated[
        str, typer.Option(metavar="NAMESPACE", help="Where the Lease and the claims stand; default: the pod's own.")
    ] = "",
    lease_seconds: Annotated[
        int, typer.Option(metavar="SECONDS", min=5, help="Another controller leads when the leader is silent so long.")
    ] = 15,
    listen: Annotated[
        str, typer.Option(metavar="ADDRESS:PORT", help="Where to answer HTTP: /metrics and /healthz.")
    ] = ":9121",
    kubeconfig: Kubeconfig = None,
    service_account: Account = SERVICE_ACCOUNT,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
) -> None:
    """Give each Node of the cluster its ranges, as the plan's lock has them.

    Run two: one leads, by a Lease. A Node without a place in the plan gets an Event that says why.
    """
    from netmgr.kube.controller import Settings

    start_logging(log_level)
    identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
    where = namespace or namespace_of(service_account)
    settings = Settings(where, cluster or _only_cluster(plan), pool_label, quarantine, identity)
    _run(connect(kubeconfig, service_account), settings, plan, lease_seconds, listen)


def _run(api: Api, settings: Settings, plan: Path, lease_seconds: int, listen: str) -> None:
    from netmgr.kube.controller import Controller
    from netmgr.kube.election import Candidate, Term
    from netmgr.kube.plan_watch import PlanWatch
    from netmgr.kube.pulse import Pulse
    from netmgr.kube.telemetry import Telemetry, serve
    from netmgr.plan_files import lock_path

    watch = PlanWatch(lambda: _places(plan, settings.cluster), (plan, lock_path(plan)))
    telemetry, pulse = Telemetry(api), Pulse()
    serve(telemetry.registry, listen, pulse.ailment)
    work = Controller(api, settings, watch, telemetry, pulse)
    term = Term(settings.namespace, LEASE, settings.identity, lease_seconds)
    ended = ends()
    candidate = Candidate(api, term, work.lead, ended, pulse)
    threading.Thread(target=candidate.run, name="election", daemon=True).start()
    ended.wait()
    candidate.withdraw()
    if candidate.failure is not None:
        raise candidate.failure
    if candidate.fault is not None:
        faults.log.critical("work-died action=end", exc_info=candidate.fault)
        raise typer.Exit(faults.FAULT_EXIT)


def _places(plan: Path, cluster: str) -> Places:
    from netmgr.cli.plan_common import load
    from netmgr.kube.places import Places

    return Places(load(plan).locked, cluster)


def _only_cluster(plan: Path) -> str:
    from netmgr.plan_files import load_plan

    clusters = list(load_plan(plan).clusters)
    if len(clusters) != 1:
        raise ConfigError(f"{plan} has {len(clusters)} clusters ({', '.join(clusters)}); say which with --cluster")
    return clusters[0]


def connect(kubeconfig: Path | None, service_account: Path) -> Api:
    """The API server to ask."""
    from netmgr.kube import api

    return api.connect(kubeconfig, service_account, os.environ)


def namespace_of(service_account: Path) -> str:
    """The pod's own namespace."""
    file = service_account / "namespace"
    return file.read_text().strip() if file.exists() else "netmgr"


def start_logging(level: str) -> None:
    """One line for each thing that happens, on standard error; a thread that dies says so, and ends the process."""
    import logging

    from netmgr import logs

    logs.begin(level)
    faults.end_with_any_thread()
    # The client's election logs each renewal.
    logging.getLogger("leaderelection").setLevel(logging.WARNING)


def ends() -> threading.Event:
    """Set when somebody wants this process to end."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    return ended
