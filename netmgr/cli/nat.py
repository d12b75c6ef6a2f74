"""`netmgr nat`: describe what a NAT host translates, through its agent's read-only socket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import typer

from netmgr.cli.asking import ask
from netmgr.cli.options import Format, OutputFormat, Socket
from netmgr.cli.output import Styled, Table, respond, size

SCARCE = 0.8
"""Share of the ports in use that is shown as a warning; the alert has the same."""

app = typer.Typer(no_args_is_help=True, help="Describe a NAT host: translations and ports in use.")


@app.callback()
def _group() -> None:
    """Keep `status` a command of its own, not the whole of `netmgr nat`."""


@app.command()
def status(*, socket: Socket = None, output: Format = OutputFormat.TABLE) -> None:
    """Show translations with their hits, and ports in use."""
    answer = ask(socket, "nat")
    respond(output, answer, _tables(answer))


def _tables(answer: Mapping[str, Any]) -> Iterator[Table | str]:
    nat = answer["nat"]
    snat = nat["source"] == "snat"
    clients = "clients appear as this host" if snat else "clients keep their address"
    yield f"NAT host {typer.style(answer['node'], bold=True)} · {clients}"
    translated = Table("VIP range", "Service CIDR", "packets>", "bytes>", title="Translated")
    for services in nat["ranges"]:
        hits = (f"{services['packets']:,}", size(services["bytes"]))
        translated.row(services["vip_range"], services["service_cidr"], *hits)
    yield translated
    headings = ("", "in use>", "of>", "share>", "toward the busiest endpoint")
    in_use = Table(*headings, title="Ports")
    for ports in nat["ports"]:
        share = ports["used"] / ports["budget"] if ports["budget"] else 0.0
        in_use.row(
            f"{ports['family']} {ports['protocol']}",
            f"{ports['used']:,}",
            f"{ports['budget']:,}",
            Styled(f"{share:.1%}", "red" if share > SCARCE else None),
            ports["endpoint"] or "none",
        )
    if nat["ports"]:
        yield in_use
