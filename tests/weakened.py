"""A network without some of what keeps spokes apart: what is left has to do, or be missed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from enum import StrEnum

from netmgr.plan.network import Network, NextHop, RouteTable


class Layer(StrEnum):
    """One of the things that keep spokes apart."""

    ROUTES = "routes"
    """Those to None."""
    GROUPS = "groups"
    """Security groups."""
    ROUTERS = "routers"
    """Their rules."""
    PEERINGS = "peerings"
    """That a spoke takes nothing the hub only passes on."""


def weakened(network: Network, layers: Collection[str]) -> Network:
    """The network as if some of what keeps spokes apart were missing."""
    if Layer.ROUTES in layers:
        network = replace(network, tables=tuple(map(_without_none, network.tables)))
    if Layer.GROUPS in layers:
        network = replace(network, groups=())
    if Layer.ROUTERS in layers:
        harmless = (replace(appliance, drops=()) for appliance in network.appliances)
        network = replace(network, appliances=tuple(harmless))
    if Layer.PEERINGS in layers:
        opened = (replace(peering, forwarded=True) for peering in network.peerings)
        network = replace(network, peerings=tuple(opened))
    return network


def _without_none(table: RouteTable) -> RouteTable:
    routes = (route for route in table.routes if route.hop is not NextHop.NONE)
    return replace(table, routes=tuple(routes))
