"""Keeps the routes that the node document lists: installed, as written, and no others of ours.

Ours are the routes of the main table with protocol 110 that are shorter than a single address
(those of full length are pods' own, `wiring`). Any other route is somebody else's: it is
neither replaced nor removed, and one that stands where ours should is told.
"""

from __future__ import annotations

from collections.abc import Iterable
from errno import EEXIST, ENETUNREACH

from netmgr.dataplane import rtnetlink
from netmgr.dataplane.netlink import Netlink
from netmgr.errors import KernelError
from netmgr.model import ROUTE_PROTOCOL
from netmgr.prefixes import Address, Family, Prefix
from netmgr.sites import StaticRoute

_REMEDIES = {
    EEXIST: "a route that is not netmgr's goes there already; remove it, or take it out of routes",
    ENETUNREACH: "the gateway is on none of this machine's links",
}


class StaticRoutes:
    """The document's routes and the kernel's."""

    def __init__(self, wanted: Iterable[StaticRoute]) -> None:
        self._wanted = {(route.to, route.via) for route in wanted}
        self._netlink = Netlink()

    def close(self) -> None:
        """Close the netlink socket; the routes stay."""
        self._netlink.close()

    def reconcile(self) -> list[str]:
        """Remove routes of ours that the document does not list and install those that are missing.

        Returns:
            A sentence for each.

        Raises:
            KernelError: a route cannot be installed; all the others were tried.
        """
        present = self._present()
        done = []
        for to, via in sorted(present - self._wanted):
            self._netlink.attempt([rtnetlink.delete_gateway_route(to, via, protocol=ROUTE_PROTOCOL)])
            done.append(f"route to {to} via {via} is none of the document's")
        missing = {
            rtnetlink.add_gateway_route(to, via, protocol=ROUTE_PROTOCOL): f"route to {to} via {via} was missing"
            for to, via in sorted(self._wanted - present)
        }
        failures = self._netlink.attempt(list(missing))
        done += [sentence for operation, sentence in missing.items() if operation not in failures]
        for operation, error in failures.items():
            raise KernelError(operation.text, details=_REMEDIES.get(error.errno, error.message))
        return done

    def _present(self) -> set[tuple[Prefix, Address]]:
        routes = [
            route
            for family in Family
            for route in self._netlink.dump(rtnetlink.dump_routes(family, ROUTE_PROTOCOL), rtnetlink.route_of)
        ]
        return {
            (route.destination, route.gateway)
            for route in routes
            if route.protocol == ROUTE_PROTOCOL
            and route.gateway is not None
            and route.destination.length < route.destination.family.width
        }
