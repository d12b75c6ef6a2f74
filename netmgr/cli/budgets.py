"""`netmgr budgets`: what a cluster's budgets of internet traffic are used for, and their server."""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from netmgr import faults, logs
from netmgr.cli import options
from netmgr.cli.options import OutputFormat
from netmgr.cli.output import Table, respond, size
from netmgr.errors import ApiError, ConfigError, Exit, TryAgainLater
from netmgr.logs import LogFormat, LogLevel

if TYPE_CHECKING:
    from netmgr.budgets.keeping import BudgetsInForce
    from netmgr.file_version import RenewedFiles
    from netmgr.kube.client.api import Api

log = logging.getLogger(__name__)

app = typer.Typer(no_args_is_help=True)

LEASES = "/apis/coordination.k8s.io/v1/namespaces/netmgr-claims/leases"
ANSWER_SECONDS = 10.0
WATCH_SECONDS = 2.0
SHOWN_NODES = 5


@app.command()
def show(
    *,
    server: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS:PORT",
            help="Where the server is [default: a cluster's, through its API server]",
        ),
    ] = "",
    credentials: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="ca.crt, its authority; with tls.crt and tls.key."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Again and again, until Ctrl-C.")] = False,
    output: options.Format = OutputFormat.TABLE,
    kubeconfig: options.Kubeconfig = None,
    service_account: options.ServiceAccount = options.SERVICE_ACCOUNT,
    context: options.Context = "",
) -> None:
    """Show how a cluster's budgets stand: what is lent, who is held back, what is left of quotas.

    Level is what each pod gets that is held back. Of nodes those are shown that hold the most.
    """
    if server and credentials:
        read = partial(_ask, server, credentials)
    elif server or credentials:
        raise ConfigError("--server and --credentials go together; give both, or neither")
    else:
        from netmgr.cli.status import connect

        read = partial(_ask_cluster, connect(kubeconfig, service_account, context))
    while True:
        answer = read()
        respond(output, {"version": 1, **answer}, _tables(answer))
        if not watch:
            return
        time.sleep(WATCH_SECONDS)


def _ask(server: str, credentials: Path) -> dict[str, Any]:
    from exporter.reporting import FAILURES, BudgetsClient
    from netmgr.budgets.messages import SHOWN

    client = BudgetsClient(server, credentials, "--server")
    try:
        answer: dict[str, Any] = json.loads(client.request("GET", SHOWN))
    except FAILURES as error:
        raise TryAgainLater(f"{server}: no answer of a server of budgets: {error}") from None
    return answer


def _ask_cluster(api: Api) -> dict[str, Any]:
    from exporter.reporting import LONGEST_ANSWER
    from netmgr.budgets.messages import SHOWN
    from netmgr.kube.controller.election import ADDRESS, LEASE

    lease = api.get(f"{LEASES}/{LEASE}")
    pod = lease["spec"].get("holderIdentity", "").rpartition("_")[0]
    address = (lease["metadata"].get("annotations") or {}).get(ADDRESS, "")
    if not pod or not address:
        raise ApiError("no controller leads that has --budgets; add components/budgets")
    place = f"/api/v1/namespaces/netmgr/pods/https:{pod}:{address.rpartition(':')[2]}/proxy"
    answer: dict[str, Any] = json.loads(api.bounded(place + SHOWN, ANSWER_SECONDS, LONGEST_ANSWER))
    return answer


def _tables(answer: Mapping[str, Any]) -> Iterator[Table | str]:
    table = Table(
        *("budget", "traffic", "limit>", "lent>", "free>", "held back>", "level>"),
        *("used today>", "quota>", "spent at"),
    )
    for budget in answer["budgets"]:
        spent_at = budget["spent_at"]
        table.row(
            budget["name"],
            budget["traffic"],
            *map(_rate, (budget["rate"], budget["outstanding"], budget["free"])),
            str(budget["waiting"]),
            "" if budget["level"] is None else _rate(budget["level"]),
            *(map(size, (budget["used"], budget["per_day"])) if budget["per_day"] else ("", "")),
            f"{datetime.fromtimestamp(spent_at, UTC):%H:%M} UTC" if spent_at else "",
        )
    yield table
    nodes = Table("budget", "node", "lent>", "free>", "held back>")
    for budget in answer["budgets"]:
        for share in budget["nodes"][:SHOWN_NODES]:
            rates = map(_rate, (share["held"], share["free"]))
            nodes.row(budget["name"], share["node"], *rates, str(share["waiting"]))
    yield ""
    yield nodes
    if answer["silent"]:
        yield f"\nnot heard: {', '.join(answer['silent'])}"


def _rate(bits: float) -> str:
    # By its unit: 1.5 MB is 1.5 Mbit/s.
    return f"{size(bits).removesuffix('B')}bit/s"


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The document of budgets.")],
    *,
    nodes: Annotated[int, typer.Option(min=1, help="How many nodes the cluster has.")],
) -> None:
    """Examine a document of budgets. Exit 1 if a budget is too low for so many nodes."""
    from netmgr.documents import loader
    from netmgr.documents.budgets import BudgetsDocument, too_low

    document = loader.load(file, BudgetsDocument)
    warnings = [loader.describe(diagnostic, file) for diagnostic in too_low(document, nodes)]
    for warning in warnings:
        typer.echo(warning)
    if warnings:
        raise typer.Exit(Exit.FAILURE)
    typer.echo(f"{file}: {len(document.budgets)} budgets, enough for {nodes} nodes")


def in_force(file: Path) -> RenewedFiles[BudgetsInForce | None]:
    """The budgets of a document that may change meanwhile; None until it first makes sense."""
    from netmgr.budgets.keeping import BudgetsInForce
    from netmgr.documents import loader
    from netmgr.documents.budgets import BudgetsDocument
    from netmgr.file_version import RenewedFiles

    loaded: list[BudgetsInForce] = []

    def load() -> BudgetsInForce | None:
        try:
            document = loader.load(file, BudgetsDocument)
        except ConfigError as error:
            if loaded:
                raise
            log.warning("budgets-refused error=%s", error.message)
            return None
        said = document.budgets_in_order(), document.version, document.enforce
        loaded[:] = [BudgetsInForce(*said)]
        return loaded[0]

    return RenewedFiles([file], load)


@app.command()
def serve(
    *,
    file: Annotated[
        Path, typer.Option("--file", "-f", metavar="FILE", help="The document of budgets.")
    ],
    plan: Annotated[Path, typer.Option(metavar="PLAN", help="The plan, with its lock beside it.")],
    tls: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="tls.crt and tls.key for the name netmgr-budgets; ca.crt of nodes' certificates.",
        ),
    ],
    state: Annotated[Path, typer.Option(metavar="DIR", help="What has to outlive this process.")],
    listen: Annotated[str, typer.Option(metavar="ADDRESS:PORT", help="For nodes.")] = ":9122",
    log_level: options.LogLevelOption = LogLevel.INFO,
    log_format: options.LogFormatOption = LogFormat.TEXT,
) -> None:
    """Serve budgets to nodes of a plan, without Kubernetes.

    A node's certificate has its name in the plan. One server at a time: nodes that hear none go on
    with a part of what they had.
    """
    from exporter import access
    from exporter.settings import split_address
    from netmgr import durable
    from netmgr.budgets.files import FileStore, HeardNodes
    from netmgr.budgets.keeping import Keeper
    from netmgr.budgets.server import BudgetServer, by_certificate
    from netmgr.cli.plan_common import load
    from netmgr.documents import loader
    from netmgr.documents.budgets import BudgetsDocument
    from netmgr.file_version import RenewedFiles
    from netmgr.plan.files import lock_path
    from netmgr.plan.machines import planned_pods

    # At the start a person is told; later, the last good one goes on.
    loader.load(file, BudgetsDocument)
    logs.begin(log_level, log_format)
    faults.end_with_any_thread()
    said = in_force(file)
    nodes = RenewedFiles([plan, lock_path(plan)], lambda: planned_pods(load(plan).locked))
    durable.make_folder(state)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    context = access.folder_tls("--tls", tls, clients=True)
    address = split_address("--listen", listen)
    heard = HeardNodes(state / "nodes.json")
    identify = by_certificate(nodes.value)
    server = BudgetServer(address, context.value, lambda request: heard.heard(identify(request)))
    server.start()
    keeper = Keeper(server, FileStore(state / "state.json"), ended)
    while not ended.is_set():
        if (budgets := said.value()) is not None:
            keeper.look(budgets, heard.among(nodes.value()))
        ended.wait(1)
