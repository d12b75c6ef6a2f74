"""`netmgr connectivity-test`: whether a cluster's pod network works, and is counted right."""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from netmgr.cli import options, status, terminal
from netmgr.cli.findings import findings_table
from netmgr.cli.output import Table, outcome, respond
from netmgr.errors import ConfigError, Exit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from netmgr.api.connectivity import ProbeTarget
    from netmgr.kube.client.api import Api
    from netmgr.kube.diagnose.connectivity_run import ConnectivityOutcome, ConnectivityRequest

_SHOWN = 40
"""Nodes in the table; those on which something failed come first."""

_Targets = list[str] | None
_port = partial(typer.Option, metavar="HOST:PORT")


def connectivity_test(  # noqa: PLR0913  one a command-line option
    *,
    node: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A Node to test; may be repeated. Default: up to 8."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Test every Node.")] = False,
    internet: Annotated[_Targets, _port(help="TCP port in the internet; may be repeated.")] = None,
    internal: Annotated[
        _Targets, _port(help="TCP port inside, such as a hub's; repeatable.")
    ] = None,
    unreachable: Annotated[
        _Targets, _port(help="TCP port that must not answer; may be repeated.")
    ] = None,
    host_port: Annotated[
        int,
        typer.Option(metavar="PORT", min=0, max=65_535, help="A host port, free on each Node."),
    ] = 0,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="How long pods may take to start.")
    ] = 120,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the namespace with its pods.")
    ] = False,
    context: options.Context = "",
    namespace: options.Namespaces = None,
    kubeconfig: options.Kubeconfig = None,
    service_account: options.ServiceAccount = options.SERVICE_ACCOUNT,
    output: options.Format = options.OutputFormat.TABLE,
) -> None:
    """Probe a cluster's pod network, and whether it counts right.

    Exit 1 if a check fails on a Node, or a Node that was named cannot be tested.

    Pods are started on Nodes of kubectl's context, in a namespace that is deleted in the end. They
    probe each other by TCP and UDP, a Service, its name, pods that ran before (not those of
    namespaces with NetworkPolicies), and what options name. What they exchange with the internet is
    compared, to the byte, with what the nodes' exporters have counted.
    """
    if node and every:
        raise ConfigError("--node and --all exclude each other; give one of them")
    from netmgr.kube.diagnose.bundle import NAMESPACES
    from netmgr.kube.diagnose.connectivity import Options
    from netmgr.kube.diagnose.connectivity_objects import PREFIX
    from netmgr.kube.diagnose.connectivity_run import ConnectivityRequest

    request = ConnectivityRequest(
        # Random: two people may test at the same time.
        name=PREFIX + secrets.token_hex(3),
        agents=tuple(namespace or NAMESPACES),
        options=Options(
            internet=_targets("--internet", internet),
            internal=_targets("--internal", internal),
            unreachable=_targets("--unreachable", unreachable),
            host_port=host_port,
        ),
        nodes=tuple(node or ()),
        is_all=every,
        seconds=timeout,
        is_kept=keep,
    )
    api = status.connect(kubeconfig, service_account, context)
    document = _document(_run(request, api), kept=keep)
    passed = document["passed"]
    findings = findings_table(document["findings"], is_healthy=passed, word="passed")
    respond(output, document, [*_tables(document), *findings])
    raise typer.Exit(Exit.SUCCESS if passed else Exit.FAILURE)


def _targets(option: str, given: Sequence[str] | None) -> tuple[ProbeTarget, ...]:
    from netmgr.api.connectivity import MOST_TARGETS, ProbeTarget

    if len(given or ()) > MOST_TARGETS:
        raise ConfigError(f"{option} may be given {MOST_TARGETS} times")
    try:
        return tuple(map(ProbeTarget.parse, given or ()))
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None


def _run(request: ConnectivityRequest, api: Api) -> ConnectivityOutcome:
    """Test, with progress where a terminal shows it, and clean up when interrupted."""
    from netmgr.kube.diagnose.connectivity_run import run

    interrupted = terminal.undone_when_interrupted(f"deleting the namespace {request.name} …")
    with interrupted, terminal.progress() as progress:
        task = progress.add_task("reading", total=None)

        def report(phase: str, done: int, total: int) -> None:
            # A phase may be shorter than the pause between two pictures.
            progress.update(task, description=phase, completed=done, total=total, refresh=True)

        return run(api, request, report)


def _document(run: ConnectivityOutcome, *, kept: bool) -> dict[str, Any]:
    from netmgr.findings import is_healthy

    return {
        "version": 1,
        "passed": is_healthy(run.findings),
        "namespace": run.namespace,
        "kept": kept and bool(run.tested),
        "nodes": [{"node": tested.node, "checks": tested.states} for tested in run.tested],
        "findings": run.findings,
    }


def _tables(document: dict[str, Any]) -> list[Table | str]:
    nodes = sorted(document["nodes"], key=lambda node: "failed" not in node["checks"].values())
    if not nodes:
        return []
    table = Table("NODE", *(check.upper() for check in nodes[0]["checks"]))
    for node in nodes[:_SHOWN]:
        table.row(node["node"], *map(outcome, node["checks"].values()))
    left = len(nodes) - _SHOWN
    rest = [f"and {left:,} more Nodes, which -o json lists"] if left > 0 else []
    kept = document["namespace"] if document["kept"] else ""
    hint = [f"kept: kubectl delete namespace {kept}"] if kept else []
    return [table, *rest, *hint, ""]
