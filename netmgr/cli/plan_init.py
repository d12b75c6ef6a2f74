"""`netmgr plan init`: the first plan.yaml, from what is known of a network."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from netmgr.cli.options import DEFAULT_PLAN, PlanFile
from netmgr.cli.plan_common import refusals_described
from netmgr.documents import loader
from netmgr.documents.diagnostics import dotted
from netmgr.errors import ConfigError
from netmgr.plan import files
from netmgr.plan.check.checks import refuse_errors
from netmgr.plan.clouds.cloud import Cloud
from netmgr.plan.document import PlanDocument
from netmgr.plan.locking import make_lock
from netmgr.plan.starting import text
from netmgr.prefixes import Prefix

# typer takes lists for defaults, and copies them.
POOLS, SERVICES, CLUSTERS = ["10.0.0.0/8"], ["172.16.0.0/12"], ["cluster-1"]


def init(  # noqa: PLR0913  one a command-line option
    *,
    file: PlanFile = DEFAULT_PLAN,
    name: Annotated[str, typer.Option(help="Name of the network.")] = "network",
    cloud: Annotated[Cloud, typer.Option(help="Whose limits apply.")] = Cloud.NONE,
    pool: Annotated[
        list[str],
        typer.Option(
            metavar="PREFIX", help="Where the hub, nodes and pods get their addresses; repeatable."
        ),
    ] = POOLS,
    services: Annotated[
        list[str],
        typer.Option(metavar="PREFIX", help="Where Service ranges come from; repeatable."),
    ] = SERVICES,
    cluster: Annotated[
        list[str], typer.Option(metavar="NAME", help="A cluster; repeatable.")
    ] = CLUSTERS,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of each cluster.")] = 100,
    pods_per_node: Annotated[int, typer.Option(min=1, help="Pods that each node may have.")] = 31,
    researchers: Annotated[
        int, typer.Option(min=1, help="Addresses in the hub for researchers' machines.")
    ] = 250,
    routers: Annotated[int, typer.Option(min=1, help="Routers of the hub.")] = 2,
) -> None:
    """Write a first plan with a comment on each key.

    It is written only if `plan lock` and `plan check` accept it, and never over another file.
    """
    _refuse_to_replace(file, files.lock_path(file))
    written = text(
        name=name,
        cloud=cloud,
        nodes=_prefixes("--pool", pool),
        services=_prefixes("--services", services),
        researchers=researchers,
        routers=routers,
        clusters=cluster,
        nodes_per_cluster=nodes,
        pods_per_node=pods_per_node,
    )
    _validate(written, file)
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(written)
    except FileExistsError:  # since it was looked for
        _refuse_to_replace(file)
    typer.echo(f"Wrote {file}. Next: netmgr plan lock -f {file}")


def _refuse_to_replace(*files: Path) -> None:
    for file in files:
        if file.exists():
            raise ConfigError(
                f"{file}: is there already, and is not replaced; name another plan with --file"
            )


def _prefixes(option: str, given: Iterable[str]) -> tuple[Prefix, ...]:
    try:
        return tuple(map(Prefix.parse, given))
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None


def _validate(written: str, file: Path) -> None:
    """Refuse a plan that could not be locked."""
    source = f"{file} (not written)"
    plan = loader.parse(written, source, PlanDocument)
    limits = files.limits_of(plan, file)
    with refusals_described(lambda fault: f"{source}: {dotted(fault.at.key)}: {fault}"):
        refuse_errors(plan, make_lock(plan, None, limits), limits)
