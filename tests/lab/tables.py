"""What a lab's commands print: hosts and addresses, sent beside counted, the matrix of a hub."""

from __future__ import annotations

from collections.abc import Iterable

from netmgr.cli.output import Styled, Table
from netmgr.prefixes import Family
from tests.lab.comparison import Row
from tests.lab.nodes import EXPORTER_PORT, LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET, Spoke
from tests.lab.traffic import Sent
from tests.lab.verify import Row as MatrixRow
from tests.lab.verify import Verification
from tests.lab.world import World


def status(world: World) -> Table:
    """Every host with its addresses, pods under their node."""
    table = Table("", "", "", "")
    _row(table, "internet", INTERNET.values(), Styled("everything outside", is_dim=True))
    if researcher := world.topology.researcher:
        own = (world.topology.address(researcher, family) for family in Family)
        _row(table, researcher, own, Styled("reaches every spoke from the hub", is_dim=True))
    spokes = {spoke.name: spoke for spoke in world.topology.spokes}
    pods = world.pods()
    former = ""
    for node in world.nodes:
        site = node.node.site
        if site != former or not site:
            table.row("", "", "", "")
        if site != former and site in spokes:
            _add_spoke(table, spokes[site])
        former = site
        _add_node(table, node, pods)
    return table


def _add_node(table: Table, node: LabNode, pods: Iterable[Sandbox]) -> None:
    _row(table, Styled(node.name, is_bold=True), node.node.addresses, _state(node))
    for sandbox in pods:
        if sandbox.pod.node == node.name:
            _row(table, f"  {sandbox.pod.name}", sandbox.addresses)


def _row(
    table: Table, name: str | Styled, addresses: Iterable[object], what: str | Styled = ""
) -> None:
    """A host has up to two addresses, one of each family."""
    first, second = (*map(str, addresses), "", "")[:2]
    table.row(name, first, second, what)


def _add_spoke(table: Table, spoke: Spoke) -> None:
    vips = [shown.vip_range for shown in spoke.services]
    inside = [shown.service_cidr for shown in spoke.services]
    for name, ranges, what in ((spoke.name, vips, "VIP range"), ("", inside, "Service CIDR")):
        _row(table, Styled(name, "cyan", is_bold=True), ranges, Styled(what, is_dim=True))


def _state(node: LabNode) -> Styled:
    reason = node.status()
    if not node.agent_pid():
        return Styled("no agent runs", "red")
    if reason or not node.exporter_pid():
        return Styled(reason or "no exporter runs", "red")
    return Styled(f"agent ready, metrics on :{EXPORTER_PORT}", "green")


def comparison(rows: Iterable[Row], sent: Sent) -> Table:
    """Sent and counted side by side, two lines a pod."""
    table = Table("pod", "", "sent>", "counted>", "packets>", "counted>", "internal>", "")
    for row in rows:
        is_first = row.column.traffic == "internet-out"
        wrong = None if row.agrees else "red"
        internal = f"{sent.internal.get(row.column.pod, 0):,}"
        table.row(
            row.column.pod if is_first else "",
            Styled("out" if is_first else "in", is_dim=True),
            f"{row.sent.bytes:,}",
            Styled(f"{row.counted.bytes:,}", wrong),
            f"{row.sent.packets:,}",
            Styled(f"{row.counted.packets:,}", wrong),
            internal if is_first else "",
            Styled("✓", "green") if row.agrees else Styled("differs", wrong),
        )
    return table


def matrix(found: Verification) -> Table:
    """One line for what each origin does toward each site: what was expected, what happened."""
    table = Table("from", "to", "", "expected", "happened", "probes>", gap=1)
    before = ""
    for row in found.rows:
        if row.origin != before:
            if before:
                table.row(*[""] * 6)
            before, name = row.origin, _origin(row)
        else:
            name = ""
        table.row(
            Styled(name, is_bold=True),
            row.site,
            _kinds(row),
            row.expected,
            Styled(row.happened, "green" if row.agrees else "red"),
            str(row.probes),
        )
    return table


def _origin(row: MatrixRow) -> str:
    is_named = row.origin.startswith(row.origin_site)
    return row.origin if is_named else f"{row.origin} ({row.origin_site})"


def _kinds(row: MatrixRow) -> str:
    if row.kinds == ("nodes", "pods", "Services"):
        return "everything"
    return "" if row.kinds == (row.site,) else ", ".join(row.kinds)


def drops(found: Verification) -> Table:
    """What machines dropped between sites; those with nothing to drop are left out."""
    table = Table("dropped by", "from", "to", "sent>", "counted>")
    for each in found.drops:
        if each.sent or each.counted:
            pair, colour = each.pair, "green" if each.sent == each.counted else "red"
            counted = Styled(str(each.counted), colour)
            table.row(pair.machine, pair.origin, pair.destination, str(each.sent), counted)
    return table
