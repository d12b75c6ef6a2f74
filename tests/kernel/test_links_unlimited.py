"""Counting at links where pods have no limits: what they send passes no program then."""

from __future__ import annotations

import pytest

from tests.kernel import test_attribution
from tests.kernel.test_attribution import (  # noqa: F401 - they run on a node without limits, too
    served,
    test_a_pod_that_asks_itself_through_a_public_address_has_no_internet,
    test_a_service_with_an_endpoint_in_the_internet_is_counted_as_the_internet,
    test_an_error_from_the_internet_is_counted_as_any_packet,
    test_connections_that_are_forgotten_cost_no_byte,
    test_what_a_node_says_from_a_public_address_is_no_pods_internet,
    test_what_a_pod_asks_a_neighbour_through_a_public_address_is_nobodys_internet,
    test_what_no_connection_is_tracked_for_is_counted,
    test_what_the_internet_asks_through_a_translated_source_is_the_internets,
    test_whoever_speaks_first_once_a_connection_was_forgotten_is_counted,
)
from tests.kernel.test_links import (  # noqa: F401 - the same
    backend,
    neighbour,
    test_a_killed_agent_loses_nothing_and_its_successor_reports_no_gap,
    test_a_pod_cannot_have_its_neighbour_billed,
    test_a_pods_packets_are_counted_to_the_byte_and_by_no_rule,
    test_a_stream_each_way_is_what_the_pods_link_carried,
    test_an_uplink_that_comes_later_is_told_as_a_gap_until_it_counts,
    test_what_another_program_removes_comes_back_and_is_told_as_a_gap,
)

pytestmark = pytest.mark.root

SETTINGS = {key: value for key, value in test_attribution.SETTINGS.items() if key != "limits"}
WORLD = test_attribution.WORLD | {"settings": SETTINGS}
