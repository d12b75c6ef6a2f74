"""Keeps packets to addresses of the node's ranges that no pod has from leaving the node again.

Their network delivers the ranges to the node. Without a route of its own an address that no pod has, or has
any more, would go by the default route, back to the network that has just brought it, and be forwarded to and
fro until its time to live ends: one packet that somebody sent to try an address, or that still comes for a pod
that has ended, would be counted thirty times. So each range is a blackhole; a pod's own route is
longer, or has the lower metric, and wins.

Ours are the blackholes of the main table with protocol 110.
"""

from __future__ import annotations

from collections.abc import Iterable
from errno import EEXIST, ENOENT, ESRCH
from functools import partial

from netmgr.dataplane import rtnetlink
from netmgr.dataplane.netlink import Netlink
from netmgr.dataplane.rtnetlink import RTN_BLACKHOLE
from netmgr.model import ROUTE_PROTOCOL
from netmgr.prefixes import Family, Prefix, merge

_DONE_ALREADY = (EEXIST, ENOENT, ESRCH)
"""Somebody else was faster."""


class UnusedAddresses:
    """The blackholes of a node's ranges. Thread-safe."""

    def __init__(self) -> None:
        self._netlink = Netlink()

    def close(self) -> None:
        """Close the netlink socket; the routes stay."""
        self._netlink.close()

    def reconcile(self, ranges: Iterable[Prefix]) -> list[str]:
        """Have these ranges, and no others, be blackholes of ours; a sentence for each change.

        Raises:
            KernelError: the kernel refused one; all the others were tried.
        """
        wanted, present = set(merge(ranges)), self._present()
        operations = {
            rtnetlink.blackhole(one, protocol=ROUTE_PROTOCOL, removed=True): f"blackhole {one} is none of the ranges"
            for one in sorted(present - wanted)
        }
        operations |= {
            rtnetlink.blackhole(one, protocol=ROUTE_PROTOCOL): f"blackhole for unused addresses of {one} was missing"
            for one in sorted(wanted - present)
        }
        failures = self._netlink.attempt(list(operations))
        for error in failures.values():
            if error.errno not in _DONE_ALREADY:
                raise error
        return [sentence for operation, sentence in operations.items() if operation not in failures]

    def _present(self) -> set[Prefix]:
        decode = partial(rtnetlink.route_of, wanted=RTN_BLACKHOLE)
        requests = [rtnetlink.dump_routes(family, ROUTE_PROTOCOL, RTN_BLACKHOLE) for family in Family]
        routes = [route for request in requests for route in self._netlink.dump(request, decode)]
        return {route.destination for route in routes if route.protocol == ROUTE_PROTOCOL}
