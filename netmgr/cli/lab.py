"""`netmgr lab`: network namespaces on this machine, real traffic in them, and what was counted."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from netmgr.cli import completion, terminal
from netmgr.cli.asking import VARIABLE
from netmgr.cli.options import Format, LabName, Output
from netmgr.cli.output import show_document
from netmgr.errors import SIGNAL_EXIT, Exit

if TYPE_CHECKING:
    from rich.console import Console

    from netmgr.lab.topology import Topology
    from netmgr.lab.world import World


app = typer.Typer(
    no_args_is_help=True,
    help="Build a lab of network namespaces on this machine: an internet, a fabric, nodes with "
    "agents, and pods; or a hub and its spokes.",
)


class Backend(StrEnum):
    """What holds the nodes' rules."""

    NFTABLES = "nftables"
    IPTABLES = "iptables"
    IPTABLES_LEGACY = "iptables-legacy"
    IPTABLES_NFT = "iptables-nft"


class Picture(StrEnum):
    """Form of a picture."""

    TABLE = "table"
    JSON = "json"
    SVG = "svg"


NewName = Annotated[
    str | None, typer.Option("--name", "-n", help="Name of the lab [default: lab-1, lab-2, …]")
]
Rules = Annotated[Backend, typer.Option("--backend", "-b", help="Backend of the nodes' rules.")]
Spokes = Annotated[int, typer.Option(help="Clusters around a hub; 0: one cluster without a hub.")]
Nodes = Annotated[int, typer.Option(help="Nodes, in each spoke if there are spokes.")]
Pods = Annotated[int | None, typer.Option(help="Pods on each node [default: 4, or 2 with spokes]")]


@app.command()
def verify(*, name: LabName = None, output: Format = Output.TABLE) -> None:
    """Probe every cell of the connectivity matrix. Exit 1 if any result is not as designed."""
    from netmgr.lab.world import World

    if not _verify(World.open(name), output):
        raise typer.Exit(Exit.FAILURE)


@app.command()
def show(
    *,
    name: LabName = None,
    output: Annotated[
        Picture, typer.Option("--output", "-o", help="table for people, json for programs, or svg.")
    ] = Picture.TABLE,
) -> None:
    """Show namespaces, links, addresses, pods and drops as they are."""
    from netmgr.cli import lab_tables
    from netmgr.lab import live, picture
    from netmgr.lab.world import World

    found = live.look(World.open(name))
    match output:
        case Picture.SVG:
            typer.echo(picture.draw(found), nl=False)
        case Picture.JSON:
            show_document(found, output)
        case Picture.TABLE:
            terminal.console().print(lab_tables.tree(found))


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
    """Build a lab and keep it.

    Nodes have agents and exporters; pods are attached by the CNI plugin.
    """
    console = _console(output)
    world = _world(name, backend, _topology(spokes, nodes, pods))
    with terminal.undone_when_interrupted("removing the lab …"):
        try:
            _bring_up(console, world)
        except BaseException:
            world.down()
            raise
    if output is Output.TABLE:
        _show_next(console, world)
    else:
        _show_status(world, output)


@app.command()
def traffic(*, name: LabName = None, output: Format = Output.TABLE) -> None:
    """Send traffic between pods and compare it with the count."""
    from netmgr.lab.world import World

    if not _compare(World.open(name), output):
        raise typer.Exit(Exit.FAILURE)


@app.command()
def status(*, name: LabName = None, output: Format = Output.TABLE) -> None:
    """List what runs, where, and with which addresses."""
    from netmgr.lab.world import World

    world = World.open(name)
    if output is Output.TABLE:
        heading = typer.style(world.name, bold=True)
        where = typer.style(f"{world.backend} · {world.directory}", dim=True)
        typer.echo(f"{heading} {where}\n")
    _show_status(world, output)


@app.command("exec", context_settings={"ignore_unknown_options": True})
def execute(
    where: Annotated[
        str,
        typer.Argument(
            metavar="POD",
            help="A pod, or a host: node-1, fabric, internet, researcher.",
            autocompletion=completion.lab_hosts,
        ),
    ],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND…", help="What to run.")],
    *,
    name: LabName = None,
) -> None:
    """Run a command in the network namespace of a pod or host.

    NETMGR_SOCKET is the socket of that node's agent, which `netmgr node`, `nat` and `usage` ask.
    """
    from netmgr import programs
    from netmgr.lab.world import World

    world = World.open(name)
    namespace, node = world.find(where), world.node_of(where)
    nsenter = [programs.locate("nsenter", "util-linux"), f"--net={namespace}", "--", *command]
    environment = {**os.environ, VARIABLE: str(node.ledger_socket)} if node else None
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command
    running = programs.start(
        nsenter,
        env=environment,
        stdin=sys.stdin.buffer,
        stdout=sys.stdout.buffer,
        stderr=sys.stderr.buffer,
    )
    code = running.wait()
    # As a shell reports a process that a signal ended.
    raise typer.Exit(code if code >= 0 else SIGNAL_EXIT - code)


@app.command()
def down(*, name: LabName = None) -> None:
    """Remove a lab, complete or not."""
    from netmgr.lab import world

    chosen = world.choose(name)
    with terminal.undone_when_interrupted("removing the lab …"):
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
    """Build a lab, send traffic, compare, and remove the lab."""
    console = _console(output)
    world = _world(name, backend, _topology(spokes, nodes, pods))
    with terminal.undone_when_interrupted("removing the lab …"):
        try:
            _bring_up(console, world)
            console.print()
            agrees = _verify(world, output) if spokes else _compare(world, output)
            if output is Output.TABLE and not spokes:
                _show_metrics(console, world)
        finally:
            began = time.monotonic()
            world.down()
    console.print(f"\nRemoved in {time.monotonic() - began:.1f} s.")
    # `make lab` runs it from .venv, where a shell does not look.
    beside = str(Path(sys.executable).with_name("netmgr"))
    program = "netmgr" if shutil.which("netmgr") else beside
    console.print(f"[dim]To keep a lab and look around:[/] {program} lab up", soft_wrap=True)
    if not agrees:
        raise typer.Exit(Exit.FAILURE)


def _console(output: Output) -> Console:
    """For people; a program's JSON has standard output to itself."""
    return terminal.console(stderr=output is not Output.TABLE)


def _topology(spokes: int, nodes: int, pods: int | None) -> Topology:
    from netmgr.lab import planned
    from netmgr.lab.topology import cluster

    if spokes:
        return planned.network(spokes, nodes, 2 if pods is None else pods)
    return cluster(nodes, 4 if pods is None else pods)


def _world(name: str | None, backend: Backend, topology: Topology) -> World:
    from netmgr.documents import node
    from netmgr.lab.world import World

    return World(topology, backend=node.Backend(backend.value), name=name)


def _bring_up(console: Console, world: World) -> None:
    from netmgr.cli import lab_tables
    from netmgr.lab import live

    began = time.monotonic()
    with console.status("Building …") as spinner:
        world.up(lambda step: spinner.update(f"Building: {step} …"))
    console.print(
        f"[bold]{world.name}[/] is up [dim]after {time.monotonic() - began:.1f} s · "
        f"{world.backend} · {world.directory}[/]\n"
    )
    typer.echo(lab_tables.status(live.status(world)), err=console.stderr)


def _show_status(world: World, output: Output) -> None:
    from netmgr.cli import lab_tables
    from netmgr.lab import live

    found = live.status(world)
    if output is Output.TABLE:
        typer.echo(lab_tables.status(found))
    else:
        show_document(found, output)


def _show_next(console: Console, world: World) -> None:
    from netmgr.cli.output import Styled, Table
    from netmgr.lab.world import names

    which = "" if names() == [world.name] else f" --name {world.name}"
    hints = Table("", "")
    for command, meaning in _next_commands(world, which):
        hints.row(f"  {command}", Styled(meaning, is_dim=True))
    console.print("\n[dim]Next:[/]")
    typer.echo(hints)


def _next_commands(world: World, which: str) -> Iterator[tuple[str, str]]:
    if world.topology.spokes:
        yield f"netmgr lab verify{which}", "who reaches whom, and as whom"
        yield f"netmgr lab show{which} -o svg > lab.svg", "a picture of the lab as it is"
        yield f"netmgr lab exec{which} researcher -- ip addr", "run anything in a pod or host"
    else:
        yield f"netmgr lab traffic{which}", "send UDP and TCP, compare with the count"
        yield f"netmgr lab exec{which} pod-1 -- ip addr", "run anything in a pod or host"
    node = world.nodes[0]
    yield f"netmgr lab exec{which} {node.name} -- netmgr node status", f"ask {node.name}'s agent"
    yield f"{VARIABLE}={node.ledger_socket} netmgr node status", "the same, from outside"
    yield f"netmgr lab status{which}", "what runs, with which addresses"
    yield f"netmgr lab down{which}", "remove all of it"


def _compare(world: World, output: Output) -> bool:
    """Send traffic and print the comparison; returns whether all agrees."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from netmgr.cli import lab_tables
    from netmgr.lab import comparison, traffic

    console = _console(output)
    before = comparison.read(world)
    talks = traffic.plan(world)
    columns = (TextColumn("traffic"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    peers = TextColumn("[dim]{task.description}")
    with Progress(*columns, peers, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(talks))

        def advance(talk: traffic.Talk) -> None:
            description = f"{talk.pod.pod.name} → {talk.peer}"
            progress.update(task, advance=1, description=description)

        sent = traffic.drive(world, talks, advance)
    rows = comparison.compare(sent, comparison.since(world, before, sent.internet))
    agrees, message = comparison.result(rows, sent)
    if output is Output.TABLE:
        typer.echo(lab_tables.comparison(rows, sent))
        typer.secho(f"\n{message}", fg="green" if agrees else "red", bold=not agrees)
    else:
        show_document(comparison.document(rows, sent), output)
    return agrees


def _verify(world: World, output: Output) -> bool:
    """Probe and print; returns whether all is as designed.

    Raises:
        LabError: the lab has no hub.
    """
    from netmgr.cli import lab_tables
    from netmgr.errors import LabError
    from netmgr.lab import verify

    if not world.topology.spokes:
        raise LabError(
            f"lab {world.name} has no hub and spokes to verify; "
            "make one with: netmgr lab up --spokes 3"
        )
    with _console(output).status("Probing …"):
        found = verify.verify(world)
    if output is not Output.TABLE:
        show_document(verify.document(found), output)
        return found.agrees
    typer.echo(lab_tables.matrix(found))
    if any(each.sent or each.counted for each in found.drops):
        typer.echo(f"\n{lab_tables.drops(found)}")
    colour = "green" if found.agrees else "red"
    typer.secho(f"\n{verify.result(found)}", fg=colour, bold=not found.agrees)
    return found.agrees


def _show_metrics(console: Console, world: World) -> None:
    from netmgr.lab import live
    from netmgr.lab.nodes import EXPORTER_PORT

    pods = world.pods()
    for node in world.nodes:
        names = sorted(sandbox.pod.name for sandbox in pods if sandbox.pod.node == node.name)
        where = f"{node.name}:{EXPORTER_PORT}/metrics"
        console.print(f"\n[dim]What Prometheus gets from {where}, among others:[/]")
        for line in live.excerpt(node.scrape(), set(names[:1])):
            typer.echo(f"  {line}")
