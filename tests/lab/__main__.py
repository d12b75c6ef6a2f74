"""`python -m tests.lab`: network namespaces on this machine, real traffic, and what was counted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from netmgr import programs
from netmgr.cli import terminal
from netmgr.cli.asking import CONFIG_VARIABLE
from netmgr.documents import loader, node
from netmgr.errors import SIGNAL_EXIT, Exit, NetmgrError
from tests.lab import comparison, planned, tables, traffic, verify, world
from tests.lab.errors import PROGRAM, LabError
from tests.lab.nodes import EXPORTER_PORT
from tests.lab.topology import cluster
from tests.lab.world import World

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Build a lab of network namespaces on this machine: an internet, a fabric, nodes with "
    "agents, and pods; or a hub and its spokes.",
)
NODE_BYTES = "netmgr_node_traffic_bytes_total"


Backend = StrEnum("Backend", [(known.name, known) for known in node.Backend if known != "auto"])
"""What holds the nodes' rules; a probe's expected source depends on it, so it is never `auto`."""

Name = Annotated[str | None, typer.Option("--name", "-n", help="Which lab, if there are several.")]
NewName = Annotated[
    str | None, typer.Option("--name", "-n", help="Name of the lab [default: lab-1, lab-2, …]")
]
Rules = Annotated[Backend, typer.Option("--backend", "-b", help="Backend of the nodes' rules.")]
Spokes = Annotated[int, typer.Option(help="Clusters around a hub; 0: one cluster without a hub.")]
Nodes = Annotated[int, typer.Option(help="Nodes, in each spoke if there are spokes.")]
Pods = Annotated[int | None, typer.Option(help="Pods on each node [default: 4, or 2 with spokes]")]


@app.command()
def run(
    *,
    name: NewName = None,
    backend: Rules = Backend.NFTABLES,
    spokes: Spokes = 0,
    nodes: Nodes = 2,
    pods: Pods = None,
) -> None:
    """Build a lab, send traffic, compare, and remove the lab."""
    lab = _describe(name, backend, spokes, nodes, pods)
    with terminal.undone_when_interrupted("removing the lab …"):
        try:
            _bring_up(lab)
            typer.echo()
            agrees = _verify(lab) if spokes else _compare(lab)
            if not spokes:
                _show_metrics(lab)
        finally:
            began = time.monotonic()
            lab.down()
    typer.echo(f"\nRemoved in {time.monotonic() - began:.1f} s.")
    typer.echo(f"{_dim('To keep a lab and look around:')} {PROGRAM} up")
    if not agrees:
        raise typer.Exit(Exit.FAILURE)


@app.command()
def up(
    *,
    name: NewName = None,
    backend: Rules = Backend.NFTABLES,
    spokes: Spokes = 0,
    nodes: Nodes = 2,
    pods: Pods = None,
) -> None:
    """Build a lab and keep it.

    Nodes have agents and exporters; pods are attached by the CNI plugin.
    """
    lab = _describe(name, backend, spokes, nodes, pods)
    with terminal.undone_when_interrupted("removing the lab …"):
        try:
            _bring_up(lab)
        except BaseException:
            lab.down()
            raise
    for command, meaning in _next_commands(lab):
        typer.echo(f"\n{_dim(f'# {meaning}')}\n{command}")


@app.command("exec", context_settings={"ignore_unknown_options": True})
def execute(
    where: Annotated[
        str,
        typer.Argument(
            metavar="POD", help="A pod, or a host: node-1, fabric, internet, researcher."
        ),
    ],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND…", help="What to run.")],
    *,
    name: Name = None,
) -> None:
    """Run a command in the network namespace of a pod or host.

    `netmgr` is on its path, and NETMGR_CONFIG is that node's document, which names its agent.
    """
    lab = World.open(name)
    namespace, host = lab.find(where), lab.node_of(where)
    nsenter = [programs.locate("nsenter", "util-linux"), f"--net={namespace}", "--", *command]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if host:
        environment[CONFIG_VARIABLE] = str(host.document)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command
    running = subprocess.Popen(
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
def restart(
    where: Annotated[str, typer.Argument(metavar="NODE", help="A node: node-1.")],
    *,
    name: Name = None,
) -> None:
    """Restart a node's agent, which reads its document again."""
    host = World.open(name).node(where)
    # An agent that is refused would be missed only later.
    loader.load(host.document, node.NodeDocument)
    host.stop_agent()
    host.start_until_ready()
    typer.echo(f"{where} is ready, with {host.document}.")


@app.command("traffic")
def compare(*, name: Name = None) -> None:
    """Send traffic between pods and compare it with the count."""
    if not _compare(World.open(name)):
        raise typer.Exit(Exit.FAILURE)


@app.command("verify")
def probe(*, name: Name = None) -> None:
    """Probe every cell of the connectivity matrix. Exit 1 if any result is not as designed."""
    if not _verify(World.open(name)):
        raise typer.Exit(Exit.FAILURE)


@app.command()
def status(*, name: Name = None) -> None:
    """List what runs, where, and with which addresses."""
    lab = World.open(name)
    heading = typer.style(lab.name, bold=True)
    typer.echo(f"{heading} {_dim(f'{lab.backend} · {lab.directory}')}\n\n{tables.status(lab)}")


@app.command()
def down(*, name: Name = None) -> None:
    """Remove a lab, complete or not."""
    chosen = world.choose(name)
    with terminal.undone_when_interrupted("removing the lab …"):
        world.remove(chosen)
    typer.echo(f"{chosen} is gone.")


def _describe(
    name: str | None, backend: Backend, spokes: int, nodes: int, pods: int | None
) -> World:
    if spokes:
        topology = planned.network(spokes, nodes, 2 if pods is None else pods)
    else:
        topology = cluster(nodes, 4 if pods is None else pods)
    return World(topology, backend=node.Backend(backend.value), name=name)


def _bring_up(lab: World) -> None:
    began = time.monotonic()
    with terminal.console().status("Building …"):
        lab.up()
    took = f"after {time.monotonic() - began:.1f} s · {lab.backend} · {lab.directory}"
    typer.echo(f"{typer.style(lab.name, bold=True)} is up {_dim(took)}\n\n{tables.status(lab)}")


def _next_commands(lab: World) -> Iterator[tuple[str, str]]:
    # Another lab may come: what has a name of its own is named, what is alone so far is not.
    is_alone = world.names() == [lab.name] == [world.FIRST_NAME]
    which = "" if is_alone else f" --name {lab.name}"
    first = lab.nodes[0].name
    if lab.topology.spokes:
        yield f"{PROGRAM} verify{which}", "who reaches whom, and as whom"
        yield f"{PROGRAM} exec{which} researcher -- ip addr", "run anything in a pod or host"
    else:
        yield f"{PROGRAM} traffic{which}", "send UDP and TCP, compare with the count"
        yield f"{PROGRAM} exec{which} pod-1 -- ip addr", "run anything in a pod or host"
    yield f"{PROGRAM} exec{which} {first} -- netmgr node status", f"ask {first}'s agent"
    yield f"{PROGRAM} restart{which} {first}", f"after a change of {lab.nodes[0].document}"
    yield f"{PROGRAM} status{which}", "what runs, with which addresses"
    yield f"{PROGRAM} down{which}", "remove all of it"


def _compare(lab: World) -> bool:
    """Send traffic and print the comparison; returns whether all agrees."""
    before = comparison.read(lab)
    with terminal.console().status("Sending …"):
        sent = traffic.drive(lab, traffic.plan(lab))
    rows = comparison.compare(sent, comparison.since(lab, before, sent.internet))
    agrees, message = comparison.result(rows, sent)
    typer.echo(tables.comparison(rows, sent))
    _conclude(message, agrees=agrees)
    return agrees


def _verify(lab: World) -> bool:
    """Probe and print; returns whether all is as designed."""
    if not lab.topology.spokes:
        raise LabError(
            f"lab {lab.name} has no hub and spokes to verify; "
            f"make one with: {PROGRAM} up --spokes 3"
        )
    with terminal.console().status("Probing …"):
        outcome = verify.verify(lab)
    typer.echo(tables.matrix(outcome))
    if any(drops.sent or drops.counted for drops in outcome.drops):
        typer.echo(f"\n{tables.drops(outcome)}")
    _conclude(verify.result(outcome), agrees=outcome.agrees)
    return outcome.agrees


def _show_metrics(lab: World) -> None:
    pods = lab.pods()
    for host in lab.nodes:
        typer.echo()
        where = f"{host.name}:{EXPORTER_PORT}/metrics"
        typer.echo(_dim(f"What Prometheus gets from {where}, among others:"))
        names = sorted(sandbox.pod.name for sandbox in pods if sandbox.pod.node == host.name)
        labels = [f'pod="{name}"' for name in names[:1]]
        for line in host.scrape().splitlines():
            is_of_pod = line.startswith(comparison.POD_BYTES) and any(
                label in line for label in labels
            )
            if is_of_pod or line.startswith(NODE_BYTES):
                typer.echo(f"  {line}")


def _conclude(message: str, *, agrees: bool) -> None:
    typer.secho(f"\n{message}", fg="green" if agrees else "red", bold=not agrees)


def _dim(text: str) -> str:
    return typer.style(text, dim=True)


def main() -> None:
    """Run one command; what is wrong with a lab or a machine is a message, no traceback."""
    try:
        app()
    except NetmgrError as error:
        sys.exit("\n".join(filter(None, (str(error), error.details))))


if __name__ == "__main__":
    main()
