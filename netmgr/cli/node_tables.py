"""A node's answers as tables for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import typer

from netmgr.api.gaps import described
from netmgr.cli.output import Styled, Table, short, size

IN, OUT = "internet-in", "internet-out"
_ADDRESS_STATES = ("allocated", "cooldown", "free", "withdrawn")
_HEADERS = (
    "headers: a link counts 14 bytes of Ethernet header with every packet, the rules from the IP "
    "header on."
)
_OFFLOAD = (
    "offload: a packet that a pod leaves to be segmented counts once, whole, on its link and in "
    "the rules alike; an uplink's own figures are higher by the headers of every segment."
)
_REST = (
    "rest: traffic with internal prefixes (other pods, the node, its sites), ARP and neighbour "
    "discovery, and what was dropped between link and rules."
)


def status(snapshot: Mapping[str, Any]) -> Iterator[Table | str]:
    role = str(snapshot.get("role", "node"))
    ready = typer.style("ready", fg="green")
    not_ready = f"{typer.style('not ready', fg='red')}: {snapshot['reason']}"
    yield (
        f"{role} {typer.style(snapshot['node'], bold=True)} is "
        f"{ready if snapshot['ready'] else not_ready} · {snapshot['backend']} · "
        f"netmgr {snapshot['netmgr_version']}"
    )
    if role == "node":
        yield _addresses(snapshot) if snapshot["pool"] else _result_files(snapshot)
    if state := snapshot.get("flowtable"):
        skipping = f"established internal connections of {state['links']} links skip the rules"
        yield f"flowtable: off, {state['off']}" if state["off"] else f"flowtable: {skipping}"
    yield _traffic(snapshot)
    if pairs := snapshot.get("isolation", []):
        yield _dropped(pairs)
    for line in _troubles(snapshot):
        yield typer.style(line, fg="yellow")


def _addresses(snapshot: Mapping[str, Any]) -> Table:
    table = Table("family", *(f"{state}>" for state in _ADDRESS_STATES), title="Addresses")
    for pool in snapshot["pool"]:
        table.row(pool["family"], *(f"{pool.get(state, 0):,}" for state in _ADDRESS_STATES))
    return table


def _result_files(snapshot: Mapping[str, Any]) -> str:
    files = [
        f"{item['count']} {item['state']}" for item in snapshot["result_files"] if item["count"]
    ]
    return f"pods of another plugin, by its runtime's result files: {', '.join(files) or 'none'}"


def _traffic(snapshot: Mapping[str, Any]) -> Table:
    table = Table("", "in>", "out>", title="Internet")
    node = {item["traffic"]: item["bytes"] for item in snapshot["node_totals"]}
    table.row("node", *_both(node))
    for namespace, totals in _by(snapshot["namespaces"], "namespace").items():
        table.row(namespace[0], *_both(totals))
    return table


def _dropped(pairs: list[dict[str, Any]]) -> Table | str:
    hit = [pair for pair in pairs if pair["packets"]]
    if not hit:
        return f"isolation between spokes: {len(pairs)} pairs, nothing dropped"
    table = Table("from", "to", "packets>", "bytes>", title="Dropped between spokes")
    for pair in hit:
        table.row(pair["origin"], pair["destination"], f"{pair['packets']:,}", size(pair["bytes"]))
    return table


def _too_few_addresses(snapshot: Mapping[str, Any]) -> Iterator[str]:
    most = snapshot.get("max_pods", 0)
    for pool in snapshot["pool"]:
        addresses = pool["allocated"] + pool["cooldown"] + pool["free"]
        if most > addresses:
            yield (
                f"the kubelet takes {most} pods, and the ranges have {addresses} {pool['family']} "
                f"addresses: set its maxPods to {addresses}, or give the node more ranges"
            )


def _spent(snapshot: Mapping[str, Any]) -> Iterator[str]:
    for quota in snapshot.get("quotas", ()):
        if quota["spent"]:
            owner = "/".join(filter(None, (quota["namespace"], quota["pod"])))
            until = datetime.fromtimestamp(quota["until"], UTC).strftime("%Y-%m-%dT%H:%MZ")
            used = f"{size(quota['used'])} used of {size(quota['budget'])} of its {quota['period']}"
            yield f"quota spent: {quota['traffic']} of {owner}, {used}, until {until}"


def _troubles(snapshot: Mapping[str, Any]) -> Iterator[str]:
    if changed := snapshot.get("ranges", {}).get("changed"):
        yield changed
    yield from snapshot.get("wiring_faults", ())
    yield from _too_few_addresses(snapshot)
    yield from _spent(snapshot)
    for problem in snapshot.get("problems", ()):
        yield f"{problem['reason']}: {problem['message']}"
    yield from described(snapshot["gaps"])
    for drift in snapshot["drift_repaired"]:
        if drift["count"]:
            yield f"repaired: {drift['reason']} x {drift['count']}"
    if snapshot["state_rebuilds"]:
        yield f"state files rebuilt from the kernel: {snapshot['state_rebuilds']}"


def pods(snapshot: Mapping[str, Any]) -> Iterator[Table]:
    """One line for each pod that is attached or whose series lingers."""
    table = Table("namespace", "pod", "addresses", "link", "in>", "out>")
    totals = _by(snapshot["pods"], "namespace", "pod")
    attached: dict[tuple[str, ...], dict[str, Any]] = {
        (item["namespace"], item["pod"]): item for item in snapshot["attachments"]
    }
    # A pod that is gone still has totals, and one that is new has none yet.
    for name in sorted(totals.keys() | attached.keys()):
        item = attached.get(name)
        addresses = ", ".join(item["addresses"]) if item else Styled("gone", is_dim=True)
        link = item["host_link"] if item else ""
        table.row(*map(short, name), addresses, link, *_both(totals.get(name, {})))
    yield table


def explanation(answer: Mapping[str, Any]) -> Table:
    yes = {True: "yes", False: "no"}
    table = Table("", "")
    for name, value in (
        ("address", answer["address"]),
        ("is", answer["role"]),
        ("pod", answer["pod"] or "none"),
        ("limited by", "\n".join(answer.get("limits", [])) or "nothing"),
        ("in budgets", "\n".join(answer.get("budgets", [])) or "none"),
        ("prefix", answer["prefix"] or "none"),
        ("of", answer["site"] or "no site"),
        ("because", answer["because"]),
        ("written in", answer["where"] or "no document"),
        ("a packet there", answer["packet"]),
        ("is internet, and counted", yes[answer["counted"]]),
        *([("its own internet traffic", "is counted")] if answer["pod"] else ()),
        ("pods reach it as the node", yes[answer["masqueraded"]]),
    ):
        table.row(Styled(name, is_dim=True), value)
    return table


def audit(answer: Mapping[str, Any]) -> Iterator[Table | str]:
    yield _forward(answer)
    if answer["links"]:
        yield _links(answer["links"], "Pods against their links")
    if uplinks := answer.get("uplinks"):
        yield _links(uplinks, "The internet against the uplinks, since the agent started")
    notes = (_HEADERS, _OFFLOAD, _REST) if answer["links"] else ()
    for line in (*_findings(answer), *notes):
        yield f"{typer.style('·', dim=True)} {line}"


def is_sound(answer: Mapping[str, Any]) -> bool:
    # Only outward: packets toward a pod may be dropped after the rules counted them.
    outward = (link_audit for link_audit in answer["links"] if link_audit["direction"] == "out")
    return all(link_audit["rest"] >= 0 for link_audit in outward)


def _forward(answer: Mapping[str, Any]) -> Table:
    title = "Pods against the node's forward rules"
    table = Table("", "forwarded>", "pods>", "unattributed>", "explained>", title=title)
    for forward_audit in answer["forward"]:
        # Without traffic all is explained.
        share = 1 - forward_audit["unattributed"] / (forward_audit["forwarded"] or math.inf)
        sizes = (size(forward_audit[name]) for name in ("forwarded", "attributed", "unattributed"))
        table.row(forward_audit["traffic"], *sizes, f"{share:.2%}")
    return table


def _links(links: Iterable[Mapping[str, Any]], title: str) -> Table:
    headings = ("pod", "link", "", "carried>", "headers>", "counted>", "rest>")
    table = Table(*headings, title=title)
    for link_audit in links:
        counted = sum(link_audit["counted"].values())
        figures = (size(link_audit["carried"]), size(link_audit["headers"]), size(counted))
        pods = ", ".join(map(short, link_audit["pods"]))
        names = (pods, link_audit["link"], link_audit["direction"])
        sign = "-" if link_audit["rest"] < 0 else ""
        table.row(*names, *figures, sign + size(abs(link_audit["rest"])))
    return table


def _findings(answer: Mapping[str, Any]) -> Iterator[str]:
    for forward_audit in answer["forward"]:
        yield from _unexplained(forward_audit)
    yield from described(answer["gaps"])
    for link_audit in answer["links"]:
        if link_audit["rest"] < 0:
            way = link_audit["direction"]
            why = "they were dropped after the rules saw them, by a policy or a full queue."
            if way == "out":
                why = "that cannot be: please report it with `netmgr node audit -o json`."
            more = f"{size(-link_audit['rest'])} more were counted than the link carried"
            yield f"{link_audit['link']} {way}: {more}; {why}"

    for uplinks in answer.get("uplinks", ()):
        if segments := uplinks["segments"]:
            why = "are headers of further segments, if the card counts these; and what passed"
            yield f"uplinks {uplinks['direction']}: {size(segments)} of the rest {why} meanwhile."


def _unexplained(forward_audit: Mapping[str, Any]) -> Iterator[str]:
    if forward_audit["unattributed"]:
        yield (
            f"{forward_audit['traffic']}: {size(forward_audit['unattributed'])} were forwarded "
            "for addresses that no pod had at the time: containers of another network, pods that "
            "were noticed late, NodePort traffic for another node's pod (unless "
            "accounting.cluster_cidrs has its address), or traffic while another program had "
            "removed a pod's counter."
        )
    rest = forward_audit["forwarded"] - forward_audit["attributed"] - forward_audit["unattributed"]
    if rest > 0:
        # The kernel counts on between the two readings. On its way out, the forward rules see a
        # packet before other programs' filters do.
        dropped = forward_audit["traffic"].endswith("-out")
        yield f"{forward_audit['traffic']}: {size(rest)} " + (
            "did not leave: filters dropped them, or they passed while both sides were read."
            if dropped
            else "passed while both sides were read; the next reading settles it."
        )


def _both(totals: Mapping[str, float]) -> tuple[str, str]:
    return size(totals.get(IN, 0)), size(totals.get(OUT, 0))


def _by(items: list[dict[str, Any]], *keys: str) -> dict[tuple[str, ...], dict[str, int]]:
    """Bytes by traffic, for each value of `keys`."""
    grouped: dict[tuple[str, ...], dict[str, int]] = {}
    for item in items:
        grouped.setdefault(tuple(item[key] for key in keys), {})[item["traffic"]] = item["bytes"]
    return grouped
