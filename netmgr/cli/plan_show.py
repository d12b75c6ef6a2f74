"""`netmgr plan show`, `export`, `explain` and `map`: what is locked, and what an address is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from netmgr.cli import terminal
from netmgr.cli.options import DEFAULT_PLAN, Format, OutputFormat, PlanFile, To
from netmgr.cli.output import Table, respond, show_document
from netmgr.cli.plan_common import load, up_to_date, write
from netmgr.documents.diagnostics import listed
from netmgr.errors import ConfigError
from netmgr.plan import files
from netmgr.plan.document import NodePool, PlanDocument
from netmgr.plan.explain import explain as look_up
from netmgr.plan.lock import Allocation, ClusterLock, LockDocument, Segment, SubnetLock
from netmgr.prefixes import Address

if TYPE_CHECKING:
    from rich.tree import Tree

_TOMBSTONE = ("", " [yellow](tombstone)[/]")
"""By whether it is one."""


def show(
    *,
    file: PlanFile = DEFAULT_PLAN,
    output: Format = OutputFormat.TABLE,
    tree: Annotated[
        bool, typer.Option("--tree", help="Show a tree: prefixes, subnets, node pools.")
    ] = False,
) -> None:
    """Show what is locked."""
    planned = load(file)
    if output is not OutputFormat.TABLE:
        show_document(files.sealed(planned.locked), output)
    elif tree:
        terminal.console().print(_tree(planned.plan, planned.locked))
    else:
        typer.echo(_table(planned.locked))


def export(
    *,
    file: PlanFile = DEFAULT_PLAN,
    as_csv: Annotated[bool, typer.Option("--csv", help="As NetBox imports prefixes.")] = False,
    to: To = None,
) -> None:
    """Export the lock's prefixes, as JSON or for NetBox.

    Neither form has what plan.yaml asks for. NetBox has to have each `role` before it imports them;
    its VRF and scope are left empty.
    """
    from netmgr.plan.exchange import rows, to_csv

    planned = load(file)
    listing = list(rows(planned.plan, planned.locked))
    document = {"version": 1, "plan": planned.plan.name, "prefixes": listing}
    write(to, to_csv(listing) if as_csv else f"{json.dumps(document, indent=1)}\n")
    typer.echo(f"Not in it: what {file} asks for", err=True)


def _table(lock: LockDocument) -> Table:
    headings = ("", "", "prefixes", "reserved", "places>", "VIP range")
    table = Table(*headings, "routers, NAT hosts")
    table.row("hub", "", *_held(lock.hub.prefixes), "", "", _fixed(lock.hub.routers))
    for name, held in lock.clusters.items():
        capacity = sum(pool.capacity for pool in held.node_pools.values())
        vip_range = " ".join(map(str, held.services.vip_ranges))
        services = f"{vip_range} (shared)" if held.services.mode == "shared" else vip_range
        state = "tombstone" if held.tombstone else ""
        prefixes, reserved = _held(held.prefixes)
        table.row(name, state, prefixes, reserved, f"{capacity:,}", services, _fixed(held.nat))
    return table


def _fixed(subnet: SubnetLock) -> str:
    return listed((*subnet.addresses, *subnet.addresses_v6))


def _held(allocations: Iterable[Allocation]) -> tuple[str, str]:
    """Prefixes, and those that are reserved around them."""
    prefixes, reserved = [], []
    for held in allocations:
        prefixes.append(str(held.prefix))
        if held.reserve != held.prefix:
            reserved.append(str(held.reserve))
    return " ".join(prefixes), " ".join(reserved)


def _tree(plan: PlanDocument, lock: LockDocument) -> Tree:
    from rich.tree import Tree

    root = Tree(f"[bold]{plan.name}[/] {listed(plan.pools.nodes)}")
    hub = root.add(f"[bold]hub[/] {_prefixes(lock.hub.prefixes)}")
    hub.add(f"routers {_hosts(lock.hub.routers)}")
    for subnet in lock.hub.researchers:
        hub.add(f"researchers {listed(subnet.prefixes)}")
    for name, held in lock.clusters.items():
        branch = root.add(f"[bold]{name}[/] {_prefixes(held.prefixes)}{_TOMBSTONE[held.tombstone]}")
        for vip_range, service_cidr in held.services.pairs:
            vips = f", with VIPs in {vip_range}" if vip_range != service_cidr else ""
            branch.add(f"Services {service_cidr}{vips}")
        branch.add(f"NAT hosts {_hosts(held.nat)}")
        cluster = plan.clusters.get(name)
        _node_pools(branch, cluster.node_pools if cluster else {}, held)
    return root


def _node_pools(branch: Tree, asked: Mapping[str, NodePool], held: ClusterLock) -> None:
    for pool, spec in held.node_pools.items():
        nodes = f"{asked[pool].nodes:,} nodes, " if pool in asked else ""
        inner = branch.add(
            f"{pool}: {nodes}places for {spec.capacity:,}{_TOMBSTONE[spec.tombstone]}"
        )
        for segment in spec.segments:
            inner.add(f"nodes {segment.first:,} to {segment.last:,}: {_layouts(segment)}")


def _layouts(segment: Segment) -> str:
    return "; ".join(
        f"{part.subnet}, hosts from {part.host_base}, "
        f"pods from {part.pod_base} ({part.blocks} x /{part.block_length} a node)"
        for part in segment.layouts
    )


def _hosts(subnet: SubnetLock) -> str:
    return f"{listed(subnet.prefixes)}: {_fixed(subnet)}"


def _prefixes(allocations: tuple[Allocation, ...]) -> str:
    return ", ".join(
        str(held.prefix)
        if held.prefix == held.reserve
        else f"{held.prefix} [dim](reserved: {held.reserve})[/]"
        for held in allocations
    )


def explain(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="An IPv4 or IPv6 address.")],
    *,
    file: PlanFile = DEFAULT_PLAN,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Explain an address: owner, node, block, key and packets."""
    planned = load(file)
    try:
        wanted = Address.parse(address)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    owner = look_up(planned.plan, planned.locked, wanted)
    answer = {"address": str(wanted), **owner._asdict(), "prefix": str(owner.prefix)}
    lines = (
        f"{typer.style(f'{name:>8}', dim=True)}  {value}" for name, value in answer.items() if value
    )
    respond(output, {**answer, "version": 1}, lines)


def map_(*, file: PlanFile = DEFAULT_PLAN, to: To = None) -> None:
    """Draw the address space as an HTML page: who has which block, and what is reserved.

    The page is one file that fetches nothing. A pointer on a block shows what it is.
    """
    from netmgr.plan.render.map import page

    given = up_to_date(file)
    write(to, page(given.plan, given.locked))
