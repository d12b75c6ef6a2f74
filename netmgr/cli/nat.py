"""`netmgr nat`: describe what a NAT host translates, through its agent's read-only socket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from netmgr.cli.asking import ask
from netmgr.cli.options import Format, Output, Socket
from netmgr.cli.output import Styled, Table, show, show_document, size
from netmgr.errors import Exit

PATIENCE_SECONDS = 30.0
"""Ten thousand Services take the agent a few seconds to list."""

SCARCE = 0.8
"""Share of the ports in use that is shown as a warning; the alert has the same."""

app = typer.Typer(
    no_args_is_help=True, help="Describe a NAT host: translations, Services, ports in use."
)


@app.callback()
def _group() -> None:
    """Keep `status` a command of its own, not the whole of `netmgr nat`."""


@app.command()
def status(
    *,
    socket: Socket = None,
    output: Format = Output.TABLE,
    services: Annotated[
        bool, typer.Option("--services", help="List every Service and its endpoints.")
    ] = False,
) -> None:
    """Show translations with their hits, and ports in use. Exit 1 if any document is refused."""
    wanted = {"services": "all"} if services else {}
    answer = ask(socket, "nat", timeout=PATIENCE_SECONDS, **wanted)
    if output is Output.TABLE:
        show(*_status(answer, services=services))
    else:
        show_document(answer, output)
    raise typer.Exit(Exit.FAILURE if answer["refused"] else Exit.SUCCESS)


def _status(answer: Mapping[str, Any], *, services: bool) -> Iterator[Table | str]:
    """Headline, ranges, ports, and Services where there are any; what is refused comes last."""
    nat = answer["nat"]
    snat = nat["source"] == "snat"
    clients = "clients appear as this host" if snat else "clients keep their address"
    yield f"NAT host {typer.style(answer['node'], bold=True)} · {nat['translation']} · {clients}"
    yield _ranges(nat)
    if nat["ports"]:
        yield _ports(nat)
    if nat["translation"] == "endpoints":
        if services:
            yield _services(answer)
        else:
            yield (
                f"{nat['services']:,} Services with {nat['endpoints']:,} ready endpoints are "
                "served; --services lists them"
            )
    for reason in answer["refused"]:
        yield typer.style(f"refused: {reason}", fg="yellow")


def _ranges(nat: Mapping[str, Any]) -> Table:
    table = Table("VIP range", "Service CIDR", "packets>", "bytes>", title="Translated")
    for one in nat["ranges"]:
        table.row(one["vip_range"], one["service_cidr"], f"{one['packets']:,}", size(one["bytes"]))
    return table


def _ports(nat: Mapping[str, Any]) -> Table:
    headings = ("", "in use>", "of>", "share>", "toward the busiest endpoint")
    table = Table(*headings, title="Ports")
    for one in nat["ports"]:
        share = one["used"] / one["budget"] if one["budget"] else 0.0
        table.row(
            f"{one['family']} {one['protocol']}",
            f"{one['used']:,}",
            f"{one['budget']:,}",
            Styled(f"{share:.1%}", "red" if share > SCARCE else None),
            one["endpoint"] or "none",
        )
    return table


def _services(answer: Mapping[str, Any]) -> Table:
    headings = ("service", "VIP", "hits>", "ready endpoints", "draining")
    table = Table(*headings, title="Services")
    for one in answer["services"]:
        table.row(
            one["service"],
            one["vip"],
            "" if one["hits"] is None else f"{one['hits']:,}",
            "\n".join(one["ready"]) or Styled("none", "red"),
            "\n".join(one["draining"]),
        )
    return table
