"""Keeps the routes that the node document lists: installed, as written, and no others of ours.

Ours are the routes of the main table with protocol 110 that are shorter than a single address
(those of full length are pods' own, `wiring`). Any other route is somebody else's: it is
neither replaced nor removed, and one that stands where ours should is told.

A gateway that is on none of the machine's links cannot be its next hop: where subnets are a
cloud's, the cloud's route tables lead there, which the plan renders as well. That is told once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from errno import EEXIST, EHOSTUNREACH, ENETUNREACH

from netmgr.dataplane import rtnetlink
from netmgr.dataplane.netlink import Netlink
from netmgr.errors import KernelError
from netmgr.model import ROUTE_PROTOCOL
from netmgr.prefixes import Address, Family, Prefix
from netmgr.sites import StaticRoute

_REMEDIES = {EEXIST: "a route that is not netmgr's goes there already; remove it, or take it out of routes"}
_OFF_LINK = (ENETUNREACH, EHOSTUNREACH)
"""What the kernel answers of IPv4 and of IPv6 when no link has the gateway."""

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
            A sentence for each.

        Raises:
            KernelError: a route cannot be installed though its gateway is on a link; all the others were tried.
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
        self._tell({operation.text for operation, error in failures.items() if error.errno in _OFF_LINK})
        for operation, error in failures.items():
            if error.errno not in _OFF_LINK:
                remedy = _REMEDIES.get(error.errno)
                raise KernelError(operation.text, details=remedy) if remedy else error
        return done

    def _tell(self, off_link: set[str]) -> None:
        """Log what has become the network's own business since the last time."""
        for text in sorted(off_link - self._off_link):
            log.warning("route-left-to-network reason=no-link-has-the-gateway route=%s", text)
        self._off_link = off_link

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
