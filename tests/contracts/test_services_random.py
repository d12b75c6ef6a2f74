"""Whatever changes come one after the other, a kernel holds in the end what the last state loaded
at once would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netmgr.kernel import netns
from netmgr.prefixes import Address, Family, Prefix
from netmgr.services.engine import ServiceBackend
from netmgr.services.model import Endpoint, Frontend, Protocol, ServicePort
from netmgr.services.nftables import NftablesServices

pytestmark = pytest.mark.root

VIP_RANGES = (Prefix.parse("10.200.0.0/16"), Prefix.parse("fd00:200::/112"))
PORTS = [
    ServicePort(Address.parse(address), protocol, 80)
    for address in ("10.200.0.1", "10.200.1.1", "fd00:200::1")
    for protocol in Protocol
]
BASE = {Family.V4: "10.9.0.{}", Family.V6: "fd00:9::{}"}


def frontends(family: Family) -> st.SearchStrategy[Frontend]:
    endpoints = [
        Endpoint(Address.parse(BASE[family].format(number)), 8080) for number in range(1, 6)
    ]
    return st.builds(Frontend, st.frozensets(st.sampled_from(endpoints)), st.booleans())


changes = st.fixed_dictionaries(
    {}, optional={port: st.none() | frontends(port.family) for port in PORTS}
)


@pytest.fixture
def backends(namespaces) -> Iterator[Callable[[], ServiceBackend]]:
    with netns.entered(namespaces("services").descriptor):
        yield lambda: NftablesServices(VIP_RANGES)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sequence=st.lists(changes, min_size=1, max_size=5))
def test_the_order_of_changes_leaves_no_trace(backends, sequence):
    changing, fresh = backends(), backends()
    wanted: dict[ServicePort, Frontend] = {}
    try:
        changing.reconcile({})
        for step in sequence:
            changing.change(step)
            wanted = {vip: it for vip, it in (wanted | step).items() if it is not None}
        told = {vip: it if it.endpoints else Frontend(frozenset()) for vip, it in wanted.items()}
        assert changing.held() == told
        assert changing.reconcile(wanted) == []
        # A successor that compares all there is with the same wishes finds nothing to do.
        assert fresh.reconcile(wanted) == []
    finally:
        changing.remove()
        changing.close()
        fresh.close()
