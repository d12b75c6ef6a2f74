"""What of a link is in the sandbox: source routing, and how nothing of it stays when the sandbox outlives the link.

Deleting the pair costs a grace period of the kernel's, and so does moving an end. Taking it down, away
from its name and its addresses, costs a fifth of a millisecond; the reaper deletes it later.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOENT

from netmgr.config import POD_GATEWAYS
from netmgr.dataplane import desired, links, netlink, rtnetlink, source_routing
from netmgr.dataplane.links import Link
from netmgr.dataplane.netlink import Netlink
from netmgr.dataplane.netns import entered
from netmgr.dataplane.source_routing import SourceRule, TableRoute
from netmgr.errors import KernelError
from netmgr.model import Attachment
from netmgr.prefixes import Family

FORMER_NAME = "nm-del%d"
"""Name of a pod's end that waits to be deleted; the kernel makes a number of the last part."""


@contextmanager
def reached(host: Netlink, link: Link, path: str) -> Iterator[Netlink | None]:
    """A socket in the sandbox of a link; None when that is not at this path any more.

    `host` is a socket in the namespace that `link` is in.
    """
    try:
        netns = netlink.open_namespace(path)
    except KernelError:
        yield None
        return
    try:
        # Another sandbox may have come to be at the path: the number says whether it is the one.
        if host.query(links.show_namespace_id(netns), links.namespace_id_of) != link.peer_netns:
            yield None
            return
        with entered(netns):
            inside = Netlink()
        with inside:
            yield inside
    finally:
        os.close(netns)


def vacate(host: Netlink, link: Link, path: str, table: int) -> None:
    """Free the name, the addresses and the routes of the pod's end of a link, if its sandbox is at this path.

    `host` is a socket in the namespace that `link` is in, `table` the routing table of a further interface, else 0.

    Raises:
        KernelError: it is there, and the kernel refused.
    """
    with reached(host, link, path) as inside:
        if inside:
            _vacate(inside, link.peer)
            _remove_rules(inside, table)


def _vacate(inside: Netlink, index: int) -> None:
    inside.transact([links.lower_index(index), links.rename(index, FORMER_NAME)])
    held = inside.dump(links.dump_addresses_of(index), rtnetlink.address_of)
    inside.transact([links.delete_address(address, index) for address, owner in held if owner == index])


def _remove_rules(inside: Netlink, table: int) -> None:
    """Routes of a table go with their link, rules do not."""
    if table:
        rules = [rule for family in Family for rule in _rules(inside, family) if rule.table == table]
        inside.transact([source_routing.delete_rule(rule) for rule in rules])


def _rules(inside: Netlink, family: Family) -> list[SourceRule]:
    return inside.dump(source_routing.dump_rules(family), source_routing.rule_of)


def source_routing_faults(inside: Netlink, attachment: Attachment, family: Family, index: int) -> list[str]:
    """What of a further interface's source routing is missing in the sandbox that `inside` is in."""
    wanted = [rule for rule in desired.source_rules(attachment) if rule.source.family is family]
    present = set(_rules(inside, family)) if wanted else set()
    faults = [
        f"rule of {rule.source} for table {rule.table} is missing in the sandbox"
        for rule in wanted
        if rule not in present
    ]
    route = TableRoute(0, index, POD_GATEWAYS[family])
    tables = sorted({rule.table for rule in wanted})
    lacking = [table for table in tables if route not in _routes(inside, family, table)]
    return faults + [f"default route of table {table} is missing in the sandbox" for table in lacking]


def _routes(inside: Netlink, family: Family, table: int) -> list[TableRoute]:
    try:
        return inside.dump(source_routing.dump_table(family, table), source_routing.table_route_of)
    except KernelError as error:
        if error.errno != ENOENT:
            raise
        return []
