"""The rules of the hub's routers, as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from netmgr.plan.document import PlanDocument
from netmgr.plan.network import Network
from netmgr.render.node import internal
from netmgr.render.router import router


def test_it_is_the_golden_file(
    rendered_plan: PlanDocument, rendered_network: Network, golden: Callable[[str, str], None]
) -> None:
    golden("render/router.nft", router(rendered_network, internal(rendered_plan)))


def test_a_hub_without_spokes_has_rules_that_match_nothing(rendered_network: Network) -> None:
    empty = tuple(replace(host, drops=(((), ()),)) for host in rendered_network.appliances if host.internet)
    text = router(replace(rendered_network, appliances=empty), ())
    assert "add element inet netmgr_hub spokes" not in text
    assert "flush set inet netmgr_hub spokes4" in text
