"""`netmgr lab`: a whole world of network namespaces on this machine, real traffic in it, and the count beside it."""

from __future__ import annotations

import signal
import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from netmgr.cli import lab_network
from netmgr.cli.lab_common import Format, Name, Output, console_for, dump, undone_when_interrupted

if TYPE_CHECKING:
    from rich.console import Console

    from netmgr.lab.topology import Topology
    from netmgr.lab.world import World

app = typer.Typer(
    no_args_is_help=True,
    help="A world of network namespaces on this machine: an internet, a fabric, nodes with agents, and pods; "
    "or a hub and its spokes.",
)
app.command()(lab_network.verify)
app.command()(lab_network.show)


class Backend(StrEnum):
    """What holds the nodes' rules."""

    NFTABLES = "nftables"
    IPTABLES = "iptables"
    IPTABLES_LEGACY = "iptables-legacy"
    IPTABLES_NFT = "iptables-nft"


NewName = Annotated[str | None, typer.Option("--name", "-n", help="What to call it [default: lab-1, lab-2, …]")]
Rules = Annotated[Backend, typer.Option("--backend", "-b", help="What holds the nodes' rules.")]
Spokes = Annotated[int, typer.Option(help="How many clusters around a hub; 0: one cluster, and no hub.")]
Nodes = Annotated[int, typer.Option(help="How many nodes, in each spoke if there are spokes.")]
Pods = Annotated[int | None, typer.Option(help="How many pods on each node [default: 4, or 2 with spokes]")]


@app.command()
def up(
    *,
    name: NewName = None,
    backend: Rules = Backend.NFTABLES,
    spokes: Spokes = 0,
    nodes: Nodes = 2,
    pods: Pods = None,
    output: Format = Output.TABLE,
) -> None:
    """Build a world and leave it up: nodes with their agents and exporters, pods attached through the CNI plugin."""
    console = console_for(output)
    world = _world(name, backend, _topology(spokes, nodes, pods))
    with undone_when_interrupted():
        try:
            _bring_up(console, world)
        except BaseException:
            world.down()
            raise
    if output is Output.JSON:
        _print_json(world)
    else:
        _show_next(console, world)


@app.command()
def traffic(*, name: Name = None, output: Format = Output.TABLE) -> None:
    """Have every pod talk UDP and TCP with everyone, then compare what was sent with what was counted."""
    from netmgr.lab.world import World

    if not _compare(World.open(name), output):
        raise typer.Exit(1)


@app.command()
def status(*, name: Name = None, output: Format = Output.TABLE) -> None:
    """Say what runs, where, and with which addresses."""
    from netmgr.lab import overview
    from netmgr.lab.world import World

    world = World.open(name)
    if output is Output.JSON:
        _print_json(world)
        return
    console = console_for(output)
    console.print(f"[bold]{world.name}[/] [dim]{world.backend} · {world.directory}[/]\n", highlight=False)
    console.print(overview.table(overview.document(world)))


@app.command("exec", context_settings={"ignore_unknown_options": True})
def execute(
    where: Annotated[
        str, typer.Argument(metavar="POD", help="A pod, or a host: node-1, fabric, internet, researcher.")
    ],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND…", help="What to run there.")],
    *,
    name: Name = None,
) -> None:
    """Run a command inside a pod's network namespace, or a host's."""
    from netmgr import programs
    from netmgr.lab.world import World

    namespace = World.open(name).find(where)
    nsenter = [programs.locate("nsenter", "util-linux"), f"--net={namespace}", "--", *command]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command's to judge, not ours
    running = programs.start(nsenter, stdin=sys.stdin.buffer, stdout=sys.stdout.buffer, stderr=sys.stderr.buffer)
    code = running.wait()
    raise typer.Exit(code if code >= 0 else 128 - code)


@app.command()
def down(*, name: Name = None) -> None:
    """Remove a lab, whole or half built: its processes, its namespaces, its files."""
    from netmgr.lab import world

    chosen = world.choose(name)
    with undone_when_interrupted():
        world.remove(chosen)
    typer.echo(f"{chosen} is gone.")


@app.command()
def run(
    *,
    name: NewName = None,
    backend: Rules = Backend.NFTABLES,
    spokes: Spokes = 0,
    nodes: Nodes = 2,
    pods: Pods = None,
    output: Format = Output.TABLE,
) -> None:
    """Show all of it: build a world, drive traffic, compare, look at the metrics, and remove it again."""
    console = console_for(output)
    world = _world(name, backend, _topology(spokes, nodes, pods))
    with undone_when_interrupted():
        try:
            _bring_up(console, world)
            console.print()
            agrees = lab_network.verified(world, output) if spokes else _compare(world, output)
            if output is Output.TABLE and not spokes:
                _show_metrics(console, world)
        finally:
            began = time.monotonic()
            world.down()
    console.print(f"\nGone again in {time.monotonic() - began:.1f} s.", highlight=False)
    console.print("[dim]Stay and look around:[/] netmgr lab up", highlight=False)
    if not agrees:
        raise typer.Exit(1)


def _print_json(world: World) -> None:
    from netmgr.lab import overview

    dump(overview.document(world))


def _show_next(console: Console, world: World) -> None:
    from rich.table import Table
    from rich.text import Text

    which = "" if _is_only(world) else f" --name {world.name}"
    hints = Table.grid(padding=(0, 3))
    for command, meaning in (*_try_first(world, which), (f"down{which}", "remove all of it")):
        hints.add_row(f"  netmgr lab {command}", Text(meaning, style="dim"))
    console.print("\n[dim]Next:[/]")
    console.print(hints, highlight=False)


def _try_first(world: World, which: str) -> tuple[tuple[str, str], ...]:
    if world.topology.spokes:
        return (
            (f"verify{which}", "who reaches whom, and as whom"),
            (f"show{which} -o svg > lab.svg", "a picture of it as it is"),
            (f"exec{which} researcher -- ip addr", "run anything in a pod or host"),
            (f"status{which}", "who runs, with which addresses"),
        )
    return (
        (f"traffic{which}", "send UDP and TCP, compare with the count"),
        (f"exec{which} pod-1 -- ip addr", "run anything in a pod or host"),
        (f"status{which}", "who runs, with which addresses"),
    )


def _is_only(world: World) -> bool:
    from netmgr.lab.world import names

    return names() == [world.name]


def _topology(spokes: int, nodes: int, pods: int | None) -> Topology:
    from netmgr.lab import planned
    from netmgr.lab.topology import cluster

    if spokes:
        return planned.network(spokes, nodes, 2 if pods is None else pods)
    return cluster(nodes, 4 if pods is None else pods)


def _world(name: str | None, backend: Backend, topology: Topology) -> World:
    from netmgr import config
    from netmgr.lab.world import World

    return World(topology, backend=config.Backend(backend.value), name=name)


def _bring_up(console: Console, world: World) -> None:
    from netmgr.lab import overview

    began = time.monotonic()
    with console.status("Building …") as spinner:
        world.up(lambda step: spinner.update(f"Building: {step} …"))
    console.print(
        f"[bold]{world.name}[/] is up [dim]after {time.monotonic() - began:.1f} s · "
        f"{world.backend} · {world.directory}[/]\n",
        highlight=False,
    )
    console.print(overview.table(overview.document(world)))


def _compare(world: World, output: Output) -> bool:
    """Drive traffic and print the comparison; returns whether all agrees."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from netmgr.lab import counted, report, traffic

    console = console_for(output)
    before = counted.read(world)
    talks = traffic.plan(world)
    columns = (TextColumn("traffic"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("[dim]{task.description}"), console=console, transient=True) as progress:
        task = progress.add_task("", total=len(talks))
        sent = traffic.drive(
            world,
            talks,
            lambda talk: progress.update(task, advance=1, description=f"{talk.pod.pod.name} → {talk.peer}"),
        )
    rows = report.compare(sent, counted.since(world, before, sent.internet))
    agrees, sentence = report.verdict(rows, sent)
    if output is Output.JSON:
        dump(report.document(rows, sent))
    else:
        console.print(report.table(rows, sent))
        console.print(f"\n[{'green' if agrees else 'bold red'}]{sentence}[/]", highlight=False)
    return agrees


def _show_metrics(console: Console, world: World) -> None:
    from netmgr.lab import overview
    from netmgr.lab.nodes import EXPORTER_PORT

    pods = world.pods()
    for node in world.nodes:
        first = {sandbox.pod.name for sandbox in pods if sandbox.pod.node == node.name}
        console.print(f"\n[dim]What Prometheus gets from {node.name}:{EXPORTER_PORT}/metrics, among others:[/]")
        for line in overview.excerpt(node.scrape(), set(sorted(first)[:1])):
            console.print(f"  {line}", highlight=False, soft_wrap=True, markup=False)
