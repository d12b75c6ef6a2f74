"""The node's own routes: those its document lists, and blackholes for unused addresses.

Ours are in the main table, with protocol 110. Those of full length are pods' own (`wiring`),
shorter ones the document's `routes`, installed as written; blackholes are of the node's ranges.
Any other route is not ours: it is neither replaced nor removed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from errno import EEXIST, EHOSTUNREACH, ENETUNREACH, ENOENT, ESRCH

from netmgr.documents.sites import StaticRoute
from netmgr.errors import KernelError
from netmgr.kernel import routes
from netmgr.kernel.netlink import Netlink, Operation
from netmgr.kernel.routes import RTN_BLACKHOLE, read_routes
from netmgr.model import ROUTE_PROTOCOL
from netmgr.prefixes import Address, Prefix, merge

_FOREIGN_ROUTE = (
    "a route that is not netmgr's goes there already; remove it, or take it out of routes"
)
_OFF_LINK = (ENETUNREACH, EHOSTUNREACH)
"""What the kernel answers of IPv4 and of IPv6 when no link has the gateway."""
_GONE = (ENOENT, ESRCH)
"""Somebody else removed the route first."""

log = logging.getLogger(__name__)


class StaticRoutes:
    """The document's routes and the kernel's."""

    def __init__(self, wanted: Iterable[StaticRoute]) -> None:
        self._wanted = {(route.to, route.via) for route in wanted}
        self._netlink = Netlink()
        self._off_link: set[str] = set()

    def close(self) -> None:
        """Close the netlink socket; the routes stay."""
        self._netlink.close()

    def reconcile(self) -> list[str]:
        """Remove routes of ours that the document does not list and install those that are missing.

        Returns:
            A line for each.

        Raises:
            KernelError: a route cannot be installed though its gateway is on a link; others are.
        """
        present, changes = self._present(), {}
        # Removals first: a new gateway for the same prefix is refused while the old one is there.
        for to, via in sorted(present - self._wanted):
            removal = routes.delete_gateway_route(to, via, protocol=ROUTE_PROTOCOL)
            changes[removal] = f"route to {to} via {via} is not in the document"
        for to, via in sorted(self._wanted - present):
            addition = routes.add_gateway_route(to, via, protocol=ROUTE_PROTOCOL)
            changes[addition] = f"route to {to} via {via} was missing"
        done, failures = _carry_out(self._netlink, changes)
        self._log_off_link(
            {one.text for one, error in failures.items() if error.errno in _OFF_LINK}
        )
        for operation, error in failures.items():
            if error.errno == EEXIST:
                raise KernelError(operation.text, details=_FOREIGN_ROUTE)
            # A gateway on no link cannot be this machine's next hop. That is normal in a cloud's
            # subnets, where the cloud's own route tables lead there (the plan renders them, too).
            if error.errno not in _OFF_LINK + _GONE:
                raise error
        return done

    def _log_off_link(self, texts: set[str]) -> None:
        for text in sorted(texts - self._off_link):
            log.warning("route-left-to-network reason=no-link-has-the-gateway route=%s", text)
        self._off_link = texts

    def _present(self) -> set[tuple[Prefix, Address]]:
        return {
            (route.destination, route.gateway)
            for route in read_routes(self._netlink, protocol=ROUTE_PROTOCOL)
            if route.gateway and route.destination.length < route.destination.family.width
        }


class UnusedAddresses:
    """The blackholes of a node's ranges. Thread-safe."""

    def __init__(self) -> None:
        self._netlink = Netlink()

    def close(self) -> None:
        """Close the netlink socket; the routes stay."""
        self._netlink.close()

    def reconcile(self, ranges: Iterable[Prefix]) -> list[str]:
        """Have these ranges, and no others, be blackholes of ours; a line for each change.

        Raises:
            KernelError: the kernel refused one; all the others were tried.
        """
        listed = read_routes(self._netlink, kind=RTN_BLACKHOLE, protocol=ROUTE_PROTOCOL)
        wanted, present = set(merge(ranges)), {route.destination for route in listed}
        # The network delivers a node's ranges to it. A packet to an address without a pod would
        # take the default route back to the network that has just brought it, and bounce until its
        # hops are used up; one packet would be counted thirty times. A pod's own route is longer,
        # or has a lower metric, and wins.
        changes = {}
        for one in sorted(present - wanted):
            removal = routes.delete_blackhole(one, protocol=ROUTE_PROTOCOL)
            changes[removal] = f"blackhole {one} is not a range"
        for one in sorted(wanted - present):
            addition = routes.add_blackhole(one, protocol=ROUTE_PROTOCOL)
            changes[addition] = f"blackhole for unused addresses of {one} was missing"
        done, failures = _carry_out(self._netlink, changes)
        for error in failures.values():
            # Another thread may have been faster.
            if error.errno not in (EEXIST, *_GONE):
                raise error
        return done


def _carry_out(
    channel: Netlink, changes: Mapping[Operation, str]
) -> tuple[list[str], dict[Operation, KernelError]]:
    """Descriptions of the changes that were made, and the failures of the others."""
    failures = channel.attempt(list(changes))
    return [line for one, line in changes.items() if one not in failures], failures
