"""Changes applied one after the other leave in nftables what the outcome loaded at once would."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from netmgr.prefixes import Address, Family
from netmgr.services import nft_diff
from netmgr.services.model import Endpoint, Frontend, Protocol, ServicePort
from netmgr.services.nft_diff import Delta, State
from netmgr.services.nft_layout import endpoint_map
from tests.fakes.service_sets import Table

PORTS = [
    ServicePort(Address.parse(address), protocol, port)
    for address in ("10.200.0.1", "10.200.0.2", "fd00:200::1")
    for protocol, port in ((Protocol.TCP, 80), (Protocol.UDP, 53))
]
BASE = {Family.V4: Address.parse("10.9.0.0").value, Family.V6: Address.parse("fd00:9::").value}


def frontends(family: Family) -> st.SearchStrategy[Frontend]:
    endpoints = [Endpoint(Address(family, BASE[family] + number), 8080) for number in range(6)]
    return st.builds(Frontend, st.frozensets(st.sampled_from(endpoints)), st.booleans())


changes = st.fixed_dictionaries(
    {}, optional={port: st.none() | frontends(port.family) for port in PORTS}
)


@settings(max_examples=150)
@given(st.lists(changes, min_size=1, max_size=6))
def test_deltas_add_up_to_what_a_fresh_load_gives(sequence):
    table, state = Table(), State()
    wanted: dict[ServicePort, Frontend] = {}
    for step in sequence:
        delta, after = Delta(), {}
        for vip, frontend in step.items():
            before = state.get(vip)
            after[vip] = None if frontend is None else nft_diff.placed(frontend, before)
            nft_diff.between(vip, before, after[vip], delta)
        table.carry_out(delta)
        state = nft_diff.update(state, after)
        wanted = {vip: it for vip, it in (wanted | step).items() if it is not None}
        assert nft_diff.against(table.elements, state).is_empty
        assert nft_diff.changes(state, wanted) == {}
    fresh = Table()
    loaded = {vip: nft_diff.placed(frontend, None) for vip, frontend in wanted.items()}
    fresh.carry_out(nft_diff.against(fresh.elements, loaded))
    assert table.chosen() == fresh.chosen()
    unlike = {name for name in table.elements if table.elements[name] != fresh.elements[name]}
    assert unlike <= {endpoint_map(family) for family in Family}


@given(frontends(Family.V4), st.integers(0, 5))
def test_an_endpoint_less_costs_a_handful_of_elements(frontend, number):
    vip = PORTS[0]
    plain = Frontend(frontend.endpoints, sticky=False)
    before = nft_diff.placed(plain, None)
    gone = sorted(plain.endpoints)[number % len(plain.endpoints)] if plain.endpoints else None
    after = nft_diff.placed(Frontend(plain.endpoints - {gone}), before)
    table, delta = Table(), Delta()
    table.carry_out(nft_diff.against(table.elements, {vip: before}))
    nft_diff.between(vip, before, after, delta)
    assert table.carry_out(delta) <= 5
