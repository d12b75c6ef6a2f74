"""`netmgr simulate`: a fleet in this process, on simulated kernels and simulated time."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from netmgr.cli.options import Format, Output
from netmgr.cli.output import Table, show, show_document, size
from netmgr.errors import ConfigError, Exit

if TYPE_CHECKING:
    from netmgr.cli.plan_common import Planned
    from netmgr.kube.api import Object
    from netmgr.plan.lock import LockDocument
    from netmgr.simulation.report import Report

NODES, PODS_PER_NODE = 7500, 30
GENERATED = "simulated"
MOST_DIFFERENCES = 20
_PLAN = """\
apiVersion: netmgr.io/v1alpha1
kind: NetworkPlan
name: simulation
cloud: none
pools: {{nodes: [10.0.0.0/8], services: [172.16.0.0/12]}}
clusters:
  {cluster}: {{node_pools: {{all: {{nodes: {nodes}, pods_per_node: {pods}, surge: 10%}}}}}}
"""


def simulate(  # noqa: PLR0913  one a command-line option
    *,
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan",
            "-f",
            metavar="PLAN",
            help="Simulate a cluster of this plan, whose lock is beside it [default: one is made]",
        ),
    ] = None,
    cluster: Annotated[
        str, typer.Option(metavar="NAME", help="Which cluster [default: the plan's only one]")
    ] = "",
    nodes: Annotated[
        int, typer.Option(min=10, max=50_000, help="How many, without a plan.")
    ] = NODES,
    pods_per_node: Annotated[
        int, typer.Option(min=1, max=1000, help="How many pods each takes, without a plan.")
    ] = PODS_PER_NODE,
    hours: Annotated[
        float, typer.Option(min=1, max=168, help="Simulated time, over which events are spread.")
    ] = 24,
    seed: Annotated[
        int, typer.Option(help="Decides every choice: the same one, the same run.")
    ] = 1,
    template: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="node.yaml without name, addresses and ranges [default: as the plan renders it]",
        ),
    ] = None,
    sample: Annotated[
        int,
        typer.Option(
            min=1,
            help="Nodes with their state in files, read every minute and scraped every 30 seconds.",
        ),
    ] = 3,
    output: Format = Output.TABLE,
) -> None:
    """Run a whole cluster for a day of simulated time, and show what it costs and what holds.

    Planner, controllers, ledgers and exporters are netmgr's own code; kernels, machines, time and
    the API server are simulated. Exit 1 if a byte is counted differently anywhere.
    """
    from tempfile import TemporaryDirectory

    from netmgr import collection
    from netmgr.kube.allocations import NodeAllocations
    from netmgr.plan.render.node import Documents
    from netmgr.simulation.report import report
    from netmgr.simulation.scenario import Scale, Scenario

    planned, lock = _planned(plan) if plan else _generated(nodes, pods_per_node)
    name = cluster or _only(planned)
    with TemporaryDirectory() as folder, _without_logs(), collection.suspended():
        scale = Scale(_pools(planned, name), hours, seed, sample)
        document = _template(template) if template else Documents(planned.plan, lock).template(name)
        scenario = Scenario(scale, NodeAllocations(lock, name), document, Path(folder))
        with typer.progressbar(length=1000, label="simulating", file=sys.stderr) as bar:
            scenario.run(lambda share: bar.update(int(share * 1000) - bar.pos))
    found = report(scenario)
    if output is Output.TABLE:
        show(*_tables(found), *_limits(planned, lock))
    else:
        show_document(found, output)
    raise typer.Exit(Exit.SUCCESS if scenario.comparison.agrees else Exit.FAILURE)


@contextmanager
def _without_logs() -> Iterator[None]:
    """Controllers and agents of thousands of nodes have much to say."""
    logger = logging.getLogger("netmgr")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _planned(path: Path) -> tuple[Planned, LockDocument]:
    """A plan and its lock.

    Raises:
        ConfigError: one of them is wrong, or the lock is out of date.
    """
    from netmgr.cli.plan_common import up_to_date

    found = up_to_date(path)
    return found, found.locked


def _generated(nodes: int, pods: int) -> tuple[Planned, LockDocument]:
    """A plan of one cluster, and the lock that answers it."""
    from tempfile import TemporaryDirectory

    from netmgr.cli.plan_common import answer, load

    with TemporaryDirectory() as folder:
        path = Path(folder, "plan.yaml")
        path.write_text(_PLAN.format(cluster=GENERATED, nodes=nodes, pods=pods))
        found = load(path)
        return found, answer(found)


def _template(path: Path) -> Object:
    """A template that fits a Node.

    Raises:
        ConfigError: it cannot be read, or is no node.yaml with what a Node says.
    """
    from netmgr.cli.kube import read_template
    from netmgr.documents import loader
    from netmgr.documents.node import NodeDocument
    from netmgr.kube.node_document import render
    from netmgr.plan.files import to_yaml

    found = read_template(path)
    node: Object = {
        "metadata": {"name": "node-0", "resourceVersion": "1"},
        "spec": {"podCIDRs": ["10.0.0.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "198.18.0.0"}]},
    }
    text = to_yaml(render(found, node))
    loader.parse(text, f"{path}, with a made-up Node's name, addresses and ranges", NodeDocument)
    return found


def _only(planned: Planned) -> str:
    names = list(planned.plan.clusters)
    if len(names) != 1:
        raise ConfigError(
            f"{planned.path} has {len(names)} clusters ({', '.join(names)}); say which with "
            "--cluster"
        )
    return names[0]


def _pools(planned: Planned, cluster: str) -> dict[str, tuple[int, int]]:
    """Nodes and pods of a node of each node pool of a cluster."""
    if cluster not in planned.plan.clusters:
        known = ", ".join(planned.plan.clusters)
        raise ConfigError(f"{planned.path} has no cluster {cluster!r}; there are: {known}")
    pools = planned.plan.clusters[cluster].node_pools
    return {name: (pool.nodes, pool.pods_per_node) for name, pool in pools.items()}


def _tables(found: Report) -> Iterator[Table | str]:
    yield f"{found['nodes']:,} nodes, {found['hours']:g} h, seed {found['seed']}"
    yield _requests(found)
    yield _joined(found)
    yield _figures(found)


def _requests(found: Report) -> Table:
    table = Table("", "REQUESTS>", "A SECOND>", "MOST IN ONE>", "RECEIVED>", title="API server")
    for one in found["requests"]:
        table.row(
            one["client"],
            f"{one['number']:,}",
            f"{one['per_second']:.2f}",
            f"{one['most_per_second']:,}",
            size(one["received"]),
        )
        for verb, number in one["by_verb"].items():
            table.row(f"  {verb}", f"{number:,}", "", "", "")
    return table


def _joined(found: Report) -> Table:
    headings = ("", "NODES>", "RANGES, MEDIAN>", "LONGEST>", "PODS START>", "WITHOUT>")
    table = Table(*headings, title="From a Node's registration, in seconds")
    for one in found["joined"]:
        times = (one["ranges_median"], one["ranges_longest"], one["schedulable_longest"])
        shown = ("never" if seconds < 0 else f"{seconds:.1f}" for seconds in times)
        table.row(one["event"], f"{one['nodes']:,}", *shown, f"{one['without']:,}")
    return table


def _figures(found: Report) -> Table:
    table = Table("", "", title="What it comes to")
    for what, value in _lines(found):
        table.row(what, value)
    return table


def _lines(found: Report) -> Iterator[tuple[str, str]]:
    yield "longest time without a leader", f"{found['without_leader']:.1f} s"
    yield (
        "what the leader knows, processor time of all controllers",
        f"{size(found['controller_memory'])}, {found['controller_seconds']:.0f} s",
    )
    yield (
        "pods started, most at a time, ADDs without an address",
        f"{found['pods_started']:,}, {found['most_pods']:,}, {found['adds_refused']:,}",
    )
    waves = found["waves"]
    yield "waves of the upgrade, longest", f"{len(waves)}, {max(waves, default=0):.0f} s"
    page, series = found["page_bytes"], found["page_series"]
    yield "a scrape, median and most", f"{size(page['median'])}, {size(page['most'])}"
    yield "its series, median and most", f"{series['median']:,.0f}, {series['most']:,.0f}"
    yield "series left out", f"{found['series_left_out']:,}"
    if found["quotas"]:
        yield "quotas of the sample, spent", f"{found['quotas']:,}, {found['quotas_spent']:,}"
    yield "samples a second for Prometheus", f"{found['samples_per_second']:,.0f}"
    for one in found["prometheus"]:
        what = f"missed by Prometheus, away for {one['seconds'] / 60:.0f} min"
        yield what, f"{size(one['bytes'])} of {one['pods']:,} pods that ended"
    counted = found["accounting"]
    yield "counted by kernels", f"{counted['kernels']:,} bytes"
    yield "in ledgers, on pages", f"{counted['ledgers']:,}, {counted['pages']:,} bytes"
    yield "gaps", ", ".join(f"{name} {n}" for name, n in counted["gaps"].items()) or "none"
    for what in counted["differing"][:MOST_DIFFERENCES]:
        yield "differs", what


def _limits(planned: Planned, lock: LockDocument) -> Iterator[Table]:
    """Limits of the plan that are near, or passed."""
    from netmgr.plan.check.usage import limit_usage

    every = limit_usage(planned.plan, lock, planned.limits)
    if lines := [one for one in every if one.status in ("near", "over")]:
        table = Table("", "", "USED>", "LIMIT>", "", title="Limits of the plan")
        for one in lines:
            table.row(one.subject, one.what, f"{one.used:,}", f"{one.limit:,}", one.status)
        yield table
