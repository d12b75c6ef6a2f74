"""A lab's answers as tables and trees for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from netmgr.cli.output import Styled, Table

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

    from netmgr.lab.comparison import Row
    from netmgr.lab.live import Host, Link, Live, LiveSite
    from netmgr.lab.traffic import Sent
    from netmgr.lab.verify import Row as MatrixRow
    from netmgr.lab.verify import Verification


def status(lab: Mapping[str, Any]) -> Table:
    """Every host with its addresses, pods under their node."""
    table = Table("", "", "", "")
    _row(table, "internet", lab["internet"], Styled("everything outside", is_dim=True))
    if lab["researcher"]:
        what = Styled("reaches every spoke from the hub", is_dim=True)
        _row(table, "researcher", lab["researcher"], what)
    spokes = {spoke["name"]: spoke for spoke in lab["spokes"]}
    former = ""
    for node in lab["nodes"]:
        is_new_site = node["site"] != former
        former = node["site"]
        if is_new_site or not node["site"]:
            table.row("", "", "", "")
        if is_new_site and node["site"] in spokes:
            _add_spoke(table, spokes[node["site"]])
        _add_node(table, node, lab["pods"])
    return table


def _add_node(table: Table, node: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> None:
    _row(table, Styled(node["name"], is_bold=True), node["addresses"], _state(node))
    for pod in pods:
        if pod["node"] == node["name"]:
            _row(table, f"  {pod['name']}", pod["addresses"])


def _row(table: Table, name: str | Styled, addresses: list[str], what: str | Styled = "") -> None:
    """A host has up to two addresses, one of each family."""
    first, second = (*addresses, "", "")[:2]
    table.row(name, first, second, what)


def _add_spoke(table: Table, spoke: Mapping[str, Any]) -> None:
    for name, side, what in (
        (spoke["name"], "vip_range", "VIP range"),
        ("", "service_cidr", "Service CIDR"),
    ):
        ranges = [each[side] for each in spoke["services"]]
        _row(table, Styled(name, "cyan", is_bold=True), ranges, Styled(what, is_dim=True))


def _state(node: Mapping[str, Any]) -> Styled:
    from netmgr.lab.nodes import EXPORTER_PORT

    if node["ready"] and node["exporter_pid"]:
        return Styled(f"agent ready, metrics on :{EXPORTER_PORT}", "green")
    if not node["agent_pid"]:
        return Styled("no agent runs", "red")
    return Styled(node["reason"] or "no exporter runs", "red")


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


def tree(live: Live) -> Tree:
    """Sites, machines, their links and pods, under the lab's name."""
    from rich.text import Text
    from rich.tree import Tree

    root = Tree(Text.assemble((live.name, "bold"), (f"  {live.backend}", "dim")))
    _add_hosts(root, live.at(""))
    for site in live.sites:
        what = f"  {' · '.join(_about(site))}"
        branch = root.add(Text.assemble((site.name, "bold cyan"), (what, "dim")))
        _add_hosts(branch, live.at(site.name))
    return root


def _about(site: LiveSite) -> list[str]:
    parts = [", ".join(site.prefixes), *(f"Services {each}" for each in site.services())]
    return [*parts, f"{site.translation}, {site.source}"] if site.translation else parts


def _add_hosts(branch: Tree, hosts: Iterable[Host]) -> None:
    from rich.text import Text

    for host in hosts:
        leaf = branch.add(_headline(host))
        for link in host.links:
            leaf.add(_interface(link))
        for pod in host.pods:
            leaf.add(Text.assemble((pod.name, "bold"), "  " + "  ".join(pod.addresses)))
        for each in host.dropped:
            if each.packets:
                leaf.add(Text(each.seen_from(host.site), style="red"))


def _interface(link: Link) -> Text:
    from rich.text import Text

    name = f"{link.name} port of {link.bridge}" if link.bridge else link.name
    down = "" if link.up else " down"
    addresses = "  " + "  ".join(link.addresses)
    return Text.assemble(name, (f" mtu {link.mtu}", "dim"), (down, "red"), addresses)


def _headline(host: Host) -> Text:
    from rich.text import Text

    state = ("", "")
    if host.role:
        state = ("  ready", "green") if host.ready else (f"  {host.reason}", "red")
    return Text.assemble((host.name, "bold"), (f"  {host.role}", "dim"), state)
