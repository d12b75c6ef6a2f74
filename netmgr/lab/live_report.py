"""A lab as it is, for people: a tree of sites, machines, their links and pods."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text
from rich.tree import Tree

from netmgr.lab.live import Host, Live, Site


def tree(live: Live) -> Tree:
    """Everything under the lab's name."""
    root = Tree(Text.assemble((live.name, "bold"), (f"  {live.backend}", "dim")))
    _add_hosts(root, live.at(""))
    for site in live.sites:
        _add_hosts(root.add(_site(site)), live.at(site.name))
    return root


def _site(site: Site) -> Text:
    told = [", ".join(site.prefixes)]
    for seen, real in zip(site.seen, site.real, strict=True):
        told.append(f"Services {seen}" + (f" → {real}" if real != seen else ""))
    if site.translation:
        told.append(f"{site.translation}, {site.source}")
    return Text.assemble((site.name, "bold cyan"), ("  " + " · ".join(told), "dim"))


def _add_hosts(branch: Tree, hosts: Iterable[Host]) -> None:
    for host in hosts:
        state = ("", "") if not host.role else ("  ready", "green") if host.ready else (f"  {host.reason}", "red")
        leaf = branch.add(Text.assemble((host.name, "bold"), (f"  {host.role}", "dim"), state))
        for link in host.links:
            where = f" port of {link.bridge}" if link.bridge else ""
            state = ("", "") if link.up else (" down", "red")
            leaf.add(
                Text.assemble(
                    f"{link.name}{where}", (f" mtu {link.mtu}", "dim"), state, "  " + "  ".join(link.addresses)
                )
            )
        for pod in host.pods:
            leaf.add(Text.assemble((pod.name, "bold"), "  " + "  ".join(pod.addresses)))
        for each in host.dropped:
            if each.packets:
                leaf.add(Text(each.seen_from(host.site), style="red"))
