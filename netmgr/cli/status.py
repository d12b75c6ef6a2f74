"""`netmgr status`: whether netmgr is healthy, on this node or in a whole cluster."""

from __future__ import annotations

import os
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from netmgr.cli import node, options, terminal
from netmgr.cli.findings import findings_table
from netmgr.cli.output import Table, respond
from netmgr.errors import ApiUnavailable, ConfigError, Exit
from netmgr.printable import plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from netmgr.findings import Finding
    from netmgr.kube.client.api import Api
    from netmgr.kube.diagnose.cluster_status import ClusterState

USUAL_KUBECONFIG = Path("~/.kube/config")
"""Where kubectl looks without KUBECONFIG."""

PAUSE_SECONDS = 5.0
"""Between two looks while `--wait` goes on."""


def status(  # noqa: PLR0913  one a command-line option
    *,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="The cluster of kubectl's context, not this node.")
    ] = False,
    wait: Annotated[float, options.seconds(help="How long to wait until it is healthy.")] = 0,
    context: options.Context = "",
    namespace: options.Namespaces = None,
    timeout: Annotated[
        float, options.seconds(help="How long the nodes' exporters are asked.")
    ] = 60,
    kubeconfig: options.Kubeconfig = None,
    service_account: options.ServiceAccount = options.SERVICE_ACCOUNT,
    socket: options.Socket = None,
    output: options.Format = options.OutputFormat.TABLE,
) -> None:
    """Show whether netmgr is healthy here, or in a cluster.

    Exit 1 if the node is not ready, or a finding about the cluster is an error.

    Without --cluster this is `netmgr node status`. With it, the API server is asked for Nodes,
    netmgr's pods and Events, and the nodes' exporters, through it, for problems. What is wrong
    comes worst first, each with the command that shows more. Nothing is changed.
    """
    if not cluster:
        # If they were ignored, this node's answer would pass for the cluster's.
        if wait or context or namespace:
            raise ConfigError("--wait, --context and --namespace are of --cluster; add it")
        node.status(socket=socket, output=output)
        return
    from netmgr.kube.controller.election import LEASE
    from netmgr.kube.diagnose import cluster as clusters
    from netmgr.kube.diagnose.bundle import NAMESPACES

    api = connect(kubeconfig, service_account, context)
    read = partial(clusters.read, api, tuple(namespace or NAMESPACES), LEASE, timeout)
    document = _document(*_look(read, wait))
    findings = findings_table(document["findings"], is_healthy=document["healthy"])
    respond(output, document, [*_lines(document), *findings])
    raise typer.Exit(Exit.SUCCESS if document["healthy"] else Exit.FAILURE)


def connect(kubeconfig: Path | None, service_account: Path, context: str) -> Api:
    """The API server of kubectl's context, or else of this pod; ConfigError without either."""
    from netmgr.kube.client import api

    usual = USUAL_KUBECONFIG.expanduser()
    chosen = kubeconfig or (usual if usual.is_file() else None)
    return api.connect(chosen, service_account, os.environ, context)


def _look(
    read: Callable[[Callable[[int], object]], ClusterState], wait: float
) -> tuple[ClusterState, list[Finding]]:
    """Look until all is healthy, or the time is over; with progress where a terminal shows it."""
    from netmgr.findings import is_healthy
    from netmgr.kube.diagnose.cluster_status import findings

    until = time.monotonic() + wait
    with terminal.progress() as progress:
        task = progress.add_task("reading", total=None)

        def advance(total: int) -> None:
            progress.update(task, total=total, advance=1)

        while True:
            try:
                cluster = read(advance)
                wrong = findings(cluster, time.time())
                if is_healthy(wrong) or time.monotonic() > until:
                    return cluster, wrong
                waited_for = f"{wrong[0].objects[0]}: {wrong[0].message}"
            except ApiUnavailable as error:
                if time.monotonic() > until:
                    raise
                waited_for = error.message
            progress.reset(task, description=f"waiting: {plain(waited_for)[:60]}")
            time.sleep(min(PAUSE_SECONDS, max(0.1, until - time.monotonic())))


def _document(cluster: ClusterState, findings: list[Finding]) -> dict[str, Any]:
    from netmgr.findings import is_healthy
    from netmgr.kube.diagnose.cluster_status import AGENT, CONTROLLER, NAT_HOST

    agents = [*cluster.of(AGENT), *cluster.of(NAT_HOST)]
    controllers = cluster.of(CONTROLLER)
    return {
        "version": 1,
        "healthy": is_healthy(findings),
        "nodes": len(cluster.nodes),
        "agents": {
            "wanted": sum(workload.wanted for workload in agents),
            "ready": sum(pod_state.pod.is_ready for pod_state in cluster.pods),
        },
        "controllers": {
            "wanted": sum(workload.wanted for workload in controllers),
            "ready": sum(workload.ready for workload in controllers),
        },
        "leader": cluster.leader.holder if cluster.leader else "",
        "reports": {
            "wanted": len(cluster.reports) + len(cluster.silent),
            "ready": len(cluster.reports),
        },
        "images": dict(Counter(pod_state.image for pod_state in cluster.pods)),
        "findings": findings,
    }


def _lines(counts: dict[str, Any]) -> list[Table | str]:
    table = Table("", "", gap=3)
    table.row("Nodes", f"{counts['nodes']:,}")
    for name, count in (
        ("agents ready", counts["agents"]),
        ("controllers ready", counts["controllers"]),
        ("exporters that answer", counts["reports"]),
    ):
        table.row(name, f"{count['ready']:,} of {count['wanted']:,}")
    table.row("leader", counts["leader"] or "none")
    for image, number in counts["images"].items():
        table.row("image", f"{image} ({number:,})")
    return [table, ""]
