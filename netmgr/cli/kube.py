"""`netmgr kube` and `netmgr controller`: the commands that ask an API server, for all agents."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from exporter.settings import split_address
from netmgr import faults, logs
from netmgr.cli import completion, options
from netmgr.cli.bundle import Redact, To, write
from netmgr.errors import ApiError, ApiUnavailable, ConfigError
from netmgr.logs import LogFormat, LogLevel

if TYPE_CHECKING:
    from netmgr.documents.node import NodeDocument
    from netmgr.kube.client.api import Api, Object
    from netmgr.kube.controller.budgets import BudgetService
    from netmgr.kube.controller.plan_watch import PlanWatch

app = typer.Typer(no_args_is_help=True)
_namespace = partial(typer.Option, metavar="NAMESPACE")

REFUSED, TOO_FEW = "NodeDocumentRefused", "MorePodsThanAddresses"


class Routes(StrEnum):
    NODES = "nodes"


@app.command()
def bundle(
    *,
    namespace: options.Namespaces = None,
    to: To = None,
    redact: Redact = False,
    kubeconfig: options.Kubeconfig = None,
    service_account: options.ServiceAccount = options.SERVICE_ACCOUNT,
    context: options.Context = "",
) -> None:
    """Collect what support needs to know of a cluster: its Nodes, netmgr's objects and logs."""
    from netmgr.cli.status import connect
    from netmgr.kube.diagnose.bundle import NAMESPACES, collect

    api = connect(kubeconfig, service_account, context)
    write(collect(api, tuple(namespace or NAMESPACES), redact=redact), to, "cluster")


@app.command()
def node(
    *,
    node_name: Annotated[
        str, typer.Option(envvar="NODE_NAME", metavar="NAME", help="This machine's Node object.")
    ],
    template: Annotated[
        Path,
        typer.Option(metavar="FILE", help="node.yaml without name, addresses and ranges."),
    ] = Path("/etc/netmgr-template/node.yaml"),
    to: Annotated[Path, typer.Option(metavar="FILE", help="The node.yaml to write.")] = Path(
        "/etc/netmgr/node.yaml"
    ),
    wait: Annotated[
        float, options.seconds(help="How long to retry while the API server is unreachable.")
    ] = 60,
    kubeconfig: options.Kubeconfig = None,
    service_account: options.ServiceAccount = options.SERVICE_ACCOUNT,
) -> None:
    """Write this node's node.yaml from its Node object.

    This is the only request that a node makes, meant for an init container. On any error nothing is
    written, the Node gets an Event, and the kubelet tries again.
    """
    api = _connect(kubeconfig, service_account)
    own_node = _own_node(api, node_name, wait)
    try:
        text, document = _document(template, own_node, to)
    except ConfigError as error:
        _complain(api, own_node, REFUSED, error.message)
        raise
    # No reason to refuse it: as many pods as there are addresses do start.
    if (most := document.node.max_pods) and (fewest := document.fewest_addresses) < most:
        message = (
            f"the kubelet takes {most} pods, and the Node's ranges have {fewest} addresses: pods "
            f"beyond that do not start. Set the kubelet's maxPods to {fewest} (netmgr plan render "
            "kubelet), or give the Node more"
        )
        _complain(api, own_node, TOO_FEW, message)
    from netmgr import durable

    durable.write(to, text.encode())
    typer.echo(f"{to}: written for Node {node_name}")


def _own_node(api: Api, name: str, wait: float) -> Object:
    from netmgr.backoff import Backoff
    from netmgr.kube.client.api import NOT_FOUND

    # Waits grow with jitter: after an outage the init containers of all nodes ask at once.
    backoff, deadline = Backoff(first=1), time.monotonic() + wait
    while True:
        try:
            return api.get(f"/api/v1/nodes/{name}")
        except ApiUnavailable:
            pause = backoff.next()
            if time.monotonic() + pause > deadline:
                raise
            time.sleep(pause)
        except ApiError as error:
            # A missing Node will not appear by waiting here: the kubelet registers it before it
            # starts pods.
            if error.status != NOT_FOUND:
                raise
            raise ConfigError(
                f"there is no Node {name!r}: the kubelet has not registered it, or under another "
                "name; NODE_NAME must be the pod's spec.nodeName"
            ) from None


def _document(template: Path, own_node: Object, to: Path) -> tuple[str, NodeDocument]:
    import yaml

    from netmgr.documents import loader, yaml_loader
    from netmgr.documents.node import NodeDocument
    from netmgr.kube.controller.node_document import render
    from netmgr.plan.files import to_yaml

    try:
        given = yaml_loader.load(loader.read(template))
    except yaml.YAMLError as error:
        raise ConfigError(f"{template}: is not YAML: {error}") from None
    if not isinstance(given, dict):
        raise ConfigError(
            f"{template}: must be a mapping of keys, a node.yaml without what the Node says"
        )
    name = own_node["metadata"]["name"]
    head = f"# From {template} and the Node {name}, by `netmgr kube node`.\n"
    text = head + to_yaml(render(given, own_node))
    # Validated before it replaces a file that works.
    return text, loader.parse(text, f"{to} (not written)", NodeDocument)


def _complain(api: Api, own_node: Object, reason: str, message: str) -> None:
    """An Event on the Node; without the right to write one, only the log has it."""
    from netmgr.kube.client.api import CONFLICT
    from netmgr.kube.controller.events import NODE_COMPONENT, WarningEvent, event

    name = own_node["metadata"]["name"]
    warning = WarningEvent("Node", name, own_node["metadata"]["uid"], reason, message)
    try:
        api.create(warning.collection, event(warning, (NODE_COMPONENT, name), time.time()))
    except ApiError as error:
        if error.status != CONFLICT:  # the Event of the last attempt is still there
            typer.echo(f"netmgr: no Event on Node {name}: {error.message}", err=True)


def controller(  # noqa: PLR0913  one a command-line option
    *,
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan",
            "-f",
            metavar="PLAN",
            help="The plan; its lock is beside it [default: none, so that no ranges are assigned]",
        ),
    ] = None,
    plan_optional: Annotated[
        bool, typer.Option("--plan-optional", help="Assign nothing as long as PLAN does not exist.")
    ] = False,
    cluster: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="This cluster's name in the plan [default: its only cluster]",
            autocompletion=completion.clusters,
        ),
    ] = "",
    pool_label: Annotated[
        str,
        typer.Option(
            metavar="LABEL", help="Node label that holds the name of the node pool in the plan."
        ),
    ] = "netmgr.io/node-pool",
    routes: Annotated[
        Routes | None,
        typer.Option(
            help="`nodes`: keep a list of the Nodes from which agents keep routes to each other's "
            "pods; for up to 500 nodes on one network [default: none]"
        ),
    ] = None,
    quota_events: Annotated[
        bool,
        typer.Option(
            "--quota-events",
            help="Ask the nodes' exporters for spent quotas, and write an Event for each.",
        ),
    ] = False,
    node_health: Annotated[
        bool,
        typer.Option(
            "--node-health",
            help="Ask the nodes' exporters for problems of the network, and write the condition "
            "NetmgrHealthy of each Node.",
        ),
    ] = False,
    taint_unhealthy: Annotated[
        str,
        typer.Option(
            metavar="SHARE",
            help="Taint Nodes whose condition NetmgrHealthy stays False, so that no new pod comes: "
            "at most this share of a node pool at once, as 5%. Needs --node-health [default: none]",
        ),
    ] = "",
    taint_after: Annotated[
        float, options.seconds(help="How long it has to be False before that.")
    ] = 180,
    quarantine: Annotated[
        float, options.seconds(help="Cooldown of a node index after its Node is deleted.")
    ] = 600,
    namespace: Annotated[
        str, _namespace(help="Namespace of the Lease and the allocations [default: the pod's own]")
    ] = "",
    agent_namespace: Annotated[
        str, _namespace(help="Namespace of the agents' DaemonSet [default: the pod's own]")
    ] = "",
    lease_seconds: Annotated[
        int,
        typer.Option(
            metavar="SECONDS",
            min=5,
            help="Another controller takes over after this time without a renewal.",
        ),
    ] = 15,
    listen: Annotated[
        str,
        typer.Option(metavar="ADDRESS:PORT", help="Where to serve HTTP: /metrics and /healthz."),
    ] = ":9121",
    budgets: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Serve the budgets of this document to nodes [default: none]"
        ),
    ] = None,
    budgets_listen: Annotated[
        str, typer.Option(metavar="ADDRESS:PORT", help="Where to serve budgets, by HTTPS.")
    ] = ":9122",
    budgets_tls: Annotated[
        Path,
        typer.Option(metavar="DIR", help="tls.crt and tls.key for the name netmgr-budgets, PEM."),
    ] = Path("/budgets-tls"),
    kubeconfig: options.Kubeconfig = None,
    service_account: options.ServiceAccount = options.SERVICE_ACCOUNT,
    log_level: options.LogLevelOption = LogLevel.INFO,
    log_format: options.LogFormatOption = LogFormat.TEXT,
) -> None:
    """Keep a cluster's Nodes as netmgr needs them; with a plan, assign each Node its ranges.

    Run two: a Lease elects the leader. A Node for which the plan has no room gets an Event that
    says why.
    """
    from netmgr.kube.controller.controller import Controller, ControllerSettings
    from netmgr.kube.controller.election import LEASE, Candidate, Term
    from netmgr.kube.controller.health import ControllerHealth, Telemetry, serve
    from netmgr.kube.controller.tainting import parse_share

    if taint_unhealthy and not node_health:
        raise ConfigError("--taint-unhealthy needs --node-health, which writes the condition")
    share = parse_share(taint_unhealthy) if taint_unhealthy else None
    logs.begin(log_level, log_format)
    # The kubelet restarts what has ended; a process that lacks a thread may go on looking well.
    faults.end_with_any_thread()
    # Unique for each process: a restarted pod keeps its name, and must not take its predecessor's
    # Lease for its own.
    identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
    # In a pod, the kubelet writes its namespace there.
    file = service_account / "namespace"
    own = file.read_text().strip() if file.exists() else "netmgr"
    address = _leader_address(budgets, budgets_listen)
    term = Term(namespace or own, LEASE, identity, lease_seconds, address)
    settings = ControllerSettings(
        identity=identity,
        pool_label=pool_label,
        agent_namespace=agent_namespace or own,
        claim_namespace=term.namespace,
        quarantine=quarantine,
        lists_nodes=routes is Routes.NODES,
        quota_events=quota_events,
        node_health=node_health,
        taint_share=share,
        taint_after=taint_after,
    )
    awaited = None if plan is None else _plan(plan, cluster, may_be_missing=plan_optional)
    api = _connect(kubeconfig, service_account)
    place = budgets_listen, budgets_tls
    service = _budget_service(budgets, place, api, settings.agent_namespace)
    telemetry = service.telemetry(api) if service else Telemetry(api)
    health = ControllerHealth()
    # Before it leads: the kubelet probes followers, too.
    serve(telemetry.registry, listen, health.fault)
    work = Controller(api, settings, awaited, telemetry, health, budgets=service)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        # A handler only sets a flag: it runs between any two instructions of the main thread.
        signal.signal(number, lambda *_: ended.set())
    candidate = Candidate(api, term, work.lead, ended, health)
    if service:
        service.serve(lambda: candidate.lease.leader_address)
    threading.Thread(target=candidate.run, name="election", daemon=True).start()
    ended.wait()
    # Before the process ends, so that the other controller need not wait for the Lease to expire.
    candidate.withdraw()
    if candidate.failure is not None:
        raise candidate.failure


def _leader_address(budgets: Path | None, listen: str) -> str:
    """Where nodes reach this process's server of budgets; empty if it has none."""
    if budgets is None:
        return ""
    host, port = split_address("--budgets-listen", listen)
    host = host or os.environ.get("POD_IP") or socket.gethostname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _budget_service(
    document: Path | None, place: tuple[str, Path], api: Api, agent_namespace: str
) -> BudgetService | None:
    if document is None:
        return None
    from exporter import access
    from netmgr.budgets.identity import TokenVerifier
    from netmgr.budgets.server import BudgetServer, by_token
    from netmgr.cli.budgets import in_force
    from netmgr.kube.controller.budgets import BudgetService, read_keys

    listen, folder = place
    account = f"system:serviceaccount:{agent_namespace}:netmgr-node"
    verifier = TokenVerifier(partial(read_keys, api), account)
    address = split_address("--budgets-listen", listen)
    tls = access.folder_tls("--budgets-tls", folder)
    server = BudgetServer(address, tls.value, by_token(verifier))
    return BudgetService(server, verifier, in_force(document))


def _plan(plan: Path, cluster: str, *, may_be_missing: bool) -> Callable[[], PlanWatch | None]:
    from netmgr.cli.plan_common import load
    from netmgr.kube.controller.allocations import NodeAllocations
    from netmgr.kube.controller.plan_watch import AwaitedPlan, PlanWatch
    from netmgr.plan.files import lock_path

    files = (plan, lock_path(plan))

    def open_watch() -> PlanWatch:
        name = cluster or _only_cluster(plan)
        return PlanWatch(lambda: NodeAllocations(load(plan).locked, name), files)

    # One for the whole process: a later leadership must not accept a plan that this one refused.
    if may_be_missing:
        return AwaitedPlan(open_watch, files).watch
    watch = open_watch()
    return lambda: watch


def _only_cluster(plan: Path) -> str:
    from netmgr.plan.files import load_plan

    clusters = list(load_plan(plan).clusters)
    if len(clusters) != 1:
        raise ConfigError(
            f"{plan} has {len(clusters)} clusters ({', '.join(clusters)}); say which with --cluster"
        )
    return clusters[0]


def _connect(kubeconfig: Path | None, service_account: Path) -> Api:
    from netmgr.kube.client import api

    return api.connect(kubeconfig, service_account, os.environ)
