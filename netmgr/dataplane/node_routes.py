"""The node's own routes: the document's, those to other nodes, and blackholes of unused addresses.

Ours are in the main table. With protocol 110 those of full length are pods' own (`wiring`), shorter
ones the document's `routes`, blackholes of the node's ranges. With protocol 111 they lead to other
nodes' pods. Any other route is neither replaced nor removed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from errno import EEXIST, EHOSTUNREACH, ENETUNREACH, ENOENT, ESRCH
from functools import cache, partial

from netmgr.dataplane.routes_to_nodes import Way, decide
from netmgr.documents.node import NodeDocument
from netmgr.documents.node_list import ListedNode
from netmgr.documents.sites import StaticRoute
from netmgr.errors import KernelError
from netmgr.kernel import routes
from netmgr.kernel.netlink import Netlink, Operation
from netmgr.kernel.routes import RTN_BLACKHOLE, Route, read_routes
from netmgr.model import NODE_ROUTE_PROTOCOL, ROUTE_PROTOCOL
from netmgr.prefixes import Prefix, merge
from netmgr.suspects import Suspects, unlocked

_FOREIGN_ROUTE = (
    "a route that is not netmgr's goes there already: if that is right, take it out of routes; "
    "else have its owner remove it"
)
# What the kernel answers of IPv4 and of IPv6 when no link has the gateway.
_OFF_LINK = (ENETUNREACH, EHOSTUNREACH)
# Somebody else removed the route first.
_GONE = (ENOENT, ESRCH)

log = logging.getLogger(__name__)


class _OwnRoutes:
    """Routes of ours; methods raise KernelError if the kernel's routes cannot be read."""

    def __init__(self) -> None:
        self._netlink = Netlink()

    def close(self) -> None:
        self._netlink.close()

    def _carry_out(
        self, changes: Mapping[Operation, str]
    ) -> tuple[list[str], dict[Operation, KernelError]]:
        """Descriptions of the changes that were made, and the failures of the others."""
        failures = self._netlink.attempt(list(changes))
        return [line for operation, line in changes.items() if operation not in failures], failures


class StaticRoutes(_OwnRoutes):
    """The document's routes and the kernel's."""

    def __init__(self, wanted: Iterable[StaticRoute]) -> None:
        super().__init__()
        self._wanted = {(route.to, route.via) for route in wanted}
        self._off_link: set[str] = set()

    def reconcile(self) -> list[str]:
        """Remove routes of ours that the document does not list, install missing ones; a line each.

        Raises:
            KernelError: a route cannot be installed though its gateway is on a link; others are.
        """
        listed = read_routes(self._netlink, protocol=ROUTE_PROTOCOL)
        present = {(to, via) for to, via in _ways(listed, ROUTE_PROTOCOL) if not to.is_address}
        # Removals first: a new gateway for the same prefix is refused while the old one is there.
        changes = _removals(present - self._wanted, ROUTE_PROTOCOL, "is not in the document")
        for to, via in sorted(self._wanted - present):
            addition = routes.add_gateway_route(to, via, protocol=ROUTE_PROTOCOL)
            changes[addition] = f"route to {to} via {via} was missing"
        done, failures = self._carry_out(changes)
        off_link = {
            operation.text for operation, error in failures.items() if error.errno in _OFF_LINK
        }
        # Once for each, and not with every pass.
        for text in sorted(off_link - self._off_link):
            log.warning("route-left-to-network reason=no-link-has-the-gateway route=%s", text)
        self._off_link = off_link
        for operation, error in failures.items():
            if error.errno == EEXIST:
                raise KernelError(operation.text, details=_FOREIGN_ROUTE)
            # A gateway on no link cannot be this machine's next hop. That is normal in a cloud's
            # subnets, where the cloud's own route tables lead there (the plan renders them, too).
            if error.errno not in _OFF_LINK + _GONE:
                raise error
        return done


class RoutesToNodes(_OwnRoutes):
    """The kernel's routes to the other nodes' pods, on a flat network."""

    def reconcile(
        self, nodes: Collection[ListedNode], document: NodeDocument
    ) -> tuple[list[str], list[str], tuple[Prefix, ...]]:
        """Have the routes to these nodes, and no others, with protocol 111.

        Returns:
            A line for each change, and one for each route that is refused, by us or by the kernel;
            and all that is reached by such routes, next hops included.
        """
        everything = read_routes(self._netlink)
        foreign = _foreign(everything)
        wanted, refused = decide(nodes, document, foreign)
        present = _ways(everything, NODE_ROUTE_PROTOCOL)
        # Where the network of a next hop is missing in one listing, a second one shows it.
        again = cache(lambda: decide(nodes, document, _foreign(read_routes(self._netlink)))[0])
        failures: dict[Operation, KernelError] = {}

        def change(changes: Mapping[Operation, str]) -> list[str]:
            lines, failed = self._carry_out(changes)
            failures.update(failed)
            return lines

        # Removals first: a new gateway for the same prefix is refused while the old one is there.
        # This thread alone changes these routes.
        suspects = tuple(sorted(present - wanted.keys()))
        done = Suspects(suspects).resolve(
            unlocked, lambda way: way not in again(), lambda way: change(_removals_of_nodes([way]))
        )
        if suspects:
            wanted |= again()
        # An administrator's own route to that node does the same.
        made_by_others = {(route.destination, route.gateway) for route in foreign}
        additions, destinations = {}, {}
        for to, via in sorted(wanted.keys() - present - made_by_others):
            addition = routes.add_gateway_route(to, via, protocol=NODE_ROUTE_PROTOCOL)
            additions[addition] = f"route to {to} via {via} of Node {wanted[to, via]} was missing"
            destinations[addition] = to
        done += change(additions)
        refused += _detours(wanted, foreign)
        for operation, error in failures.items():
            if error.errno == EEXIST:
                refused.append(
                    f"{operation.text}: another program's route goes there already; remove it "
                    f"(ip route delete {destinations[operation]})"
                )
            elif error.errno not in _GONE:
                refused.append(error.message)
        reached = merge(prefix for to, via in wanted for prefix in (to, via.prefix))
        return done, refused, tuple(reached)

    def remove(self) -> list[str]:
        """Remove them all; a line for each."""
        listed = read_routes(self._netlink, protocol=NODE_ROUTE_PROTOCOL)
        return self._carry_out(_removals_of_nodes(_ways(listed, NODE_ROUTE_PROTOCOL)))[0]


def _detours(wanted: Mapping[Way, str], foreign: Iterable[Route]) -> Iterator[str]:
    """Other programs' routes that lead packets for some of these nodes' pods elsewhere."""
    ranges = {to: node for (to, _), node in wanted.items()}
    # Only longer ones: the longest prefix wins, whatever its metric.
    for route in foreign:
        for to, node in ranges.items():
            if to.covers(route.destination) and to != route.destination:
                yield (
                    f"another program's route to {route.destination} leads packets for pods of "
                    f"Node {node} elsewhere; remove it (ip route delete {route.destination})"
                )


def _ways(present: Iterable[Route], protocol: int) -> set[Way]:
    return {
        (route.destination, route.gateway)
        for route in present
        if route.protocol == protocol and route.gateway
    }


def _removals(unwanted: Iterable[Way], protocol: int, reason: str) -> dict[Operation, str]:
    return {
        routes.delete_gateway_route(to, via, protocol=protocol): f"route to {to} via {via} {reason}"
        for to, via in sorted(unwanted)
    }


_removals_of_nodes = partial(_removals, protocol=NODE_ROUTE_PROTOCOL, reason="is no other node's")


class UnusedAddresses(_OwnRoutes):
    """The blackholes of a node's ranges. Thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def reconcile(self, ranges: Callable[[], Iterable[Prefix]]) -> list[str]:
        """Have these ranges, and no others, be blackholes of ours; a line for each change.

        Raises:
            KernelError: the kernel refused one; all the others were tried.
        """
        with self._lock:
            # Read within the lock: older ranges must not come last, or a new one would go again.
            wanted = set(merge(ranges()))
            listed = read_routes(self._netlink, kind=RTN_BLACKHOLE, protocol=ROUTE_PROTOCOL)
            present = {route.destination for route in listed}
            # The network delivers a node's ranges to it. A packet to an address without a pod would
            # take the default route back to the network that has just brought it, and bounce until
            # its hops are used up; one packet would be counted thirty times. A pod's own route is
            # longer, or has a lower metric, and wins.
            changes = {}
            for prefix in sorted(present - wanted):
                removal = routes.delete_blackhole(prefix, protocol=ROUTE_PROTOCOL)
                changes[removal] = f"blackhole {prefix} is not a range"
            for prefix in sorted(wanted - present):
                addition = routes.add_blackhole(prefix, protocol=ROUTE_PROTOCOL)
                changes[addition] = f"blackhole for unused addresses of {prefix} was missing"
            done, failures = self._carry_out(changes)
            for error in failures.values():
                # Another program may have been faster.
                if error.errno not in (EEXIST, *_GONE):
                    raise error
            return done

    def outranking(self, ranges: Iterable[Prefix]) -> list[str]:
        """Other programs' routes and rules that lead packets for the ranges, or from, elsewhere."""
        own = merge(ranges)
        lines = list(_diversions(self._netlink, own))
        # Also of the ranges' own length: a blackhole has the last metric there is.
        for route in _foreign(read_routes(self._netlink)):
            if any(block.covers(route.destination) for block in own):
                via = f" via {route.gateway}" if route.gateway else ""
                lines.append(
                    f"the route to {route.destination}{via} is not netmgr's and leads packets for "
                    "this node's unused addresses elsewhere, so that they are counted: remove it "
                    f"(ip route delete {route.destination}{via})"
                )
        return lines


def _diversions(kernel: Netlink, own: Collection[Prefix]) -> Iterator[str]:
    """Local routes and policy rules that reach into these ranges; a line each."""
    for prefix, by in local_routes(kernel).items():
        if any(map(prefix.overlaps, own)):
            yield (
                f"{prefix} is {by}, so that pods of it get nothing: have its program leave it "
                f"alone, and remove it (ip route delete local {prefix} table local)"
            )
    for rule in routes.read_rules(kernel):
        if rule.table not in routes.KERNELS_TABLES and any(map(rule.source.overlaps, own)):
            yield (
                f"the policy rule `{rule}` is not netmgr's and leads what pods send past the main "
                "table, as amazon-ec2-net-utils, nm-cloud-setup and AWS VPC CNI do: remove it "
                f"(ip -{rule.source.family.value} rule delete {rule})"
            )


def local_routes(kernel: Netlink) -> dict[Prefix, str]:
    """What other programs have the node take for its own by routes, and how they do."""
    # Beside the kernel's own, which are those of addresses.
    listed = read_routes(kernel, table=routes.RT_TABLE_LOCAL, kind=routes.RTN_LOCAL)
    return {
        route.destination: "routed to the node itself by a local route of protocol "
        f"{route.protocol} (66 is google-guest-agent's, for alias ranges)"
        for route in listed
        if route.protocol not in routes.KERNELS_PROTOCOLS
    }


def _foreign(present: Iterable[Route]) -> list[Route]:
    ours = (ROUTE_PROTOCOL, NODE_ROUTE_PROTOCOL)
    return [route for route in present if route.protocol not in ours]
