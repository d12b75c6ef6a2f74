"""A lab with a hub and spokes is its plan's: nothing overlaps, every gateway is on a link,
documents are valid.
"""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netmgr.documents.node import NodeDocument
from netmgr.documents.sites import Role, SourceAddress, TranslationMode
from netmgr.errors import ConfigError
from netmgr.prefixes import Family, overlaps
from tests.lab import planned
from tests.lab.topology import Topology

SIZES = st.tuples(
    st.integers(1, planned.MAX_SPOKES), st.integers(1, planned.MAX_NODES), st.integers(0, 3)
)
LONGEST_INTERFACE_NAME = 15


def addresses(world: Topology) -> list[object]:
    return [
        own.address
        for host in world.hosts
        for end in world.attached(host.name)
        for own in end.addresses
    ]


@settings(max_examples=20, deadline=None)
@given(SIZES)
def test_no_address_is_given_twice_and_no_pod_shares_one_with_a_machine(
    size: tuple[int, int, int],
) -> None:
    world = planned.network(*size)
    own = addresses(world)
    ranges = [block for node in world.nodes for block in node.ranges]
    assert len(set(own)) == len(own)
    assert list(overlaps(ranges)) == []
    assert not any(block.holds(address) for block in ranges for address in own)


@settings(max_examples=20, deadline=None)
@given(SIZES)
def test_every_gateway_is_on_a_link_of_its_host(size: tuple[int, int, int]) -> None:
    world = planned.network(*size)
    for host in world.hosts:
        near = [network for end in world.attached(host.name) for network in end.networks]
        for route in chain(host.routes, *(table.routes for table in host.tables)):
            assert any(network.holds(route.via) for network in near), (host.name, route)


def test_names_of_the_largest_world_fit_an_interface() -> None:
    world = planned.network(planned.MAX_SPOKES, planned.MAX_NODES, 0)
    names = [end.name for end in world.interfaces()] + [segment.name for segment in world.segments]
    assert max(map(len, names)) <= LONGEST_INTERFACE_NAME


def test_the_default_spokes_show_every_kind_of_translation_and_two_share_a_range() -> None:
    one, two, three = planned.network(3, 2, 2).spokes
    assert (one.translation, one.source) == (TranslationMode.NETMAP, SourceAddress.SNAT)
    assert (two.translation, two.source) == (TranslationMode.ENDPOINTS, SourceAddress.SNAT)
    assert (three.translation, three.source) == (TranslationMode.ENDPOINTS, SourceAddress.PRESERVE)
    assert [each.service_cidr for each in one.services] == [
        each.service_cidr for each in two.services
    ]
    assert not {each.vip_range for each in one.services} & {each.vip_range for each in two.services}
    assert [each.service_cidr for each in three.services] == [
        each.vip_range for each in three.services
    ]


def test_every_machine_has_a_valid_document_and_both_families() -> None:
    world = planned.network(3, 2, 2)
    roles = [NodeDocument.model_validate(node.document).role for node in world.nodes]
    assert roles.count(Role.HUB_ROUTER) == 1
    assert roles.count(Role.NAT_HOST) == 3
    assert roles.count(Role.NODE) == 6
    for node in world.nodes:
        assert {address.family for address in node.addresses} == set(Family)
        assert [str(address) for address in node.addresses] == node.document["node"]["addresses"]


@pytest.mark.parametrize(
    "size", [(0, 1, 1), (planned.MAX_SPOKES + 1, 1, 1), (1, 0, 1), (1, 1, planned.MAX_PODS + 1)]
)
def test_a_world_too_large_for_the_lab_is_refused(size: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="a lab"):
        planned.network(*size)
