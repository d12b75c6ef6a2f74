"""Which elements are added and deleted when Services change, and what a repair is called."""

from __future__ import annotations

import pytest

from netmgr.kernel import nf_tables
from netmgr.prefixes import Address, Family
from netmgr.services import nft_diff
from netmgr.services.model import Endpoint, Frontend, Protocol, ServicePort
from netmgr.services.nft_diff import Delta, Elements, Placed, State
from netmgr.services.nft_layout import (
    TABLE,
    choice,
    choice_data,
    elements,
    endpoint_data,
    endpoint_map,
    key,
    service_map,
    slot_key,
    slots,
    vip_set,
)
from tests.fakes.service_sets import Table

WEB = ServicePort(Address.parse("10.200.0.1"), Protocol.TCP, 80)
DNS = ServicePort(Address.parse("10.200.0.2"), Protocol.UDP, 53)
WEB6 = ServicePort(Address.parse("fd00:200::1"), Protocol.TCP, 80)


def endpoints(*numbers: int, family: Family = Family.V4) -> frozenset[Endpoint]:
    base = Address.parse("10.9.0.0" if family is Family.V4 else "fd00:9::")
    return frozenset(Endpoint(Address(family, base.value + number), 8080) for number in numbers)


def frontend(*numbers: int, sticky: bool = False, family: Family = Family.V4) -> Frontend:
    return Frontend(endpoints(*numbers, family=family), sticky)


def state(**frontends: Frontend) -> State:
    ports = {"web": WEB, "dns": DNS, "web6": WEB6}
    return {ports[name]: nft_diff.placed(found, None) for name, found in frontends.items()}


def delta(vip: ServicePort, before: Placed | None, after: Placed | None) -> Delta:
    made = Delta()
    nft_diff.between(vip, before, after, made)
    return made


def test_endpoints_that_stay_keep_their_slots_and_a_sticky_client_its_endpoint() -> None:
    before = nft_diff.placed(frontend(1, 2, 3, 4), None)
    after = nft_diff.placed(frontend(2, 3, 4, 5), before)
    assert (before.choice, before.slots) == (
        choice(len(before.slots), sticky=False),
        slots(frontend(1, 2, 3, 4), ()),
    )
    moved = [pair for pair in zip(before.slots, after.slots, strict=True) if pair[0] != pair[1]]
    (gone,), (come,) = endpoints(1), endpoints(5)
    assert set(moved) == {(gone, come)}
    sticky = frontend(1, 2, 3, 5, sticky=True)
    # Whatever was there before: every NAT host has to choose alike.
    alone = nft_diff.placed(sticky, None)
    assert nft_diff.placed(sticky, before) == nft_diff.placed(sticky, alone) == alone
    assert nft_diff.placed(frontend(1, 2), alone) == nft_diff.placed(frontend(1, 2), None)
    assert (alone.frontend, before.frontend) == (sticky, frontend(1, 2, 3, 4))


def test_what_differs_from_what_is_wanted_is_changed_and_what_nobody_wants_removed() -> None:
    now = state(web=frontend(1), dns=frontend(2), web6=frontend(3, family=Family.V6))
    wanted = {WEB: frontend(1), DNS: frontend(2, sticky=True)}
    assert nft_diff.changes(now, wanted) == {DNS: wanted[DNS], WEB6: None}
    assert nft_diff.changes({}, wanted) == wanted
    # Without endpoints the kernel has no chain that would show stickiness.
    empty = state(web=frontend(sticky=True))
    assert empty[WEB].frontend == Frontend(frozenset())
    assert nft_diff.changes(empty, {WEB: frontend(sticky=True)}) == {}
    assert nft_diff.changes(now, {**wanted, WEB: frontend()}).get(WEB) == frontend()


def test_a_state_is_changed_in_place_and_removing_twice_is_no_error() -> None:
    now = state(web=frontend(1), dns=frontend(2))
    after = state(web=frontend(3))
    assert nft_diff.update(now, {WEB: after[WEB], DNS: None, WEB6: None}) is now
    assert now == after


def test_a_new_serviceport_has_its_elements_in_three_sets() -> None:
    for vip, found in ((WEB, frontend(1)), (WEB6, frontend(1, family=Family.V6))):
        entry = nft_diff.placed(found, None)
        made = delta(vip, None, entry)
        assert made.deleted == {}
        table = Table()
        table.carry_out(made)
        assert nft_diff.against(table.elements, {vip: entry}).is_empty
        assert made.added == {
            vip_set(vip.family): [(key(vip), b"")],
            service_map(vip.family): [(key(vip), choice_data(vip.family, entry.choice))],
            endpoint_map(vip.family): list(elements(vip, entry.slots)),
        }
        gone = delta(vip, entry, None)
        assert gone.added == {}
        assert gone.deleted == {
            name: [one for one, _ in pairs] for name, pairs in made.added.items()
        }


def test_an_unchanged_serviceport_costs_nothing_and_a_changed_endpoint_its_slots() -> None:
    before = nft_diff.placed(frontend(1, 2), None)
    assert delta(WEB, before, before).is_empty
    after = nft_diff.placed(frontend(1, 3), before)
    made = delta(WEB, before, after)
    (gone,), (come,) = endpoints(2), endpoints(3)
    touched = [slot_key(key(WEB), slot) for slot, found in enumerate(before.slots) if found == gone]
    assert made.deleted == {endpoint_map(Family.V4): touched}
    assert made.added == {endpoint_map(Family.V4): [(one, endpoint_data(come)) for one in touched]}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (frontend(1), frontend(1, 2, 3)),
        (frontend(1, 2, 3), frontend(2)),
        (frontend(1), frontend(1, sticky=True)),
        (frontend(1), frontend()),
        (frontend(), frontend(1)),
        (frontend(1, sticky=True), frontend(1, 2, sticky=True)),
    ],
)
def test_changes_one_by_one_are_what_the_kernel_takes_and_what_a_repair_finds(
    before: Frontend, after: Frontend
) -> None:
    table, now = Table(), state(web=before, dns=frontend(7), web6=frontend(5, family=Family.V6))
    table.carry_out(nft_diff.against(table.elements, now))
    other = nft_diff.placed(after, now[WEB])
    table.carry_out(delta(WEB, now[WEB], other))
    now = nft_diff.update(now, {WEB: other})
    assert nft_diff.against(table.elements, now).is_empty
    assert nft_diff.choices_of(now) == {(vip.family, entry.choice) for vip, entry in now.items()}
    # What differs in number or kind is another chain's, so that the VIP's connections are told
    # apart from then on; its counter stays.
    assert table.elements[vip_set(Family.V4)].keys() == {key(WEB), key(DNS)}


def test_an_element_that_stays_is_not_touched_since_it_would_lose_its_counter() -> None:
    before, after = (nft_diff.placed(found, None) for found in (frontend(1), frontend(1, 2)))
    made = delta(WEB, before, after)
    assert vip_set(Family.V4) not in {*made.added, *made.deleted}


def test_deletions_go_before_additions() -> None:
    before, after = (nft_diff.placed(found, None) for found in (frontend(1), frontend(2)))
    made = delta(WEB, before, after)
    name = endpoint_map(Family.V4)
    assert list(made.operations()) == [
        *nf_tables.delete_elements(TABLE, name, made.deleted[name]),
        *nf_tables.add_elements(TABLE, name, made.added[name]),
    ]
    assert list(Delta().operations()) == []
    assert not made.is_empty
    assert not delta(WEB, None, before).is_empty
    assert not delta(WEB, before, None).is_empty


def listing(now: State) -> dict[str, Elements]:
    table = Table()
    table.carry_out(nft_diff.against(table.elements, now))
    return table.elements


def test_a_repair_names_each_serviceport_and_what_is_wrong_with_it() -> None:
    now = state(web=frontend(1), dns=frontend(2), web6=frontend(3, family=Family.V6))
    held = listing(now)
    del held[vip_set(Family.V4)][key(WEB)]
    del held[endpoint_map(Family.V4)][slot_key(key(WEB), 0)]
    held[endpoint_map(Family.V4)][slot_key(key(DNS), 0)] = endpoint_data(*endpoints(9))
    other = ServicePort(Address.parse("10.200.0.9"), Protocol.TCP, 1)
    held[vip_set(Family.V4)][key(other)] = b""
    held[service_map(Family.V6)][key(WEB6)] = b"x"
    assert nft_diff.against(held, now).repairs() == [
        "10.200.0.1:80/tcp: elements missing: 2",
        "10.200.0.2:53/udp: elements altered: 1",
        "[fd00:200::1]:80/tcp: elements altered: 1",
        "10.200.0.9:1/tcp: elements not ours: 1",
    ]
    assert nft_diff.against(listing(now), now).repairs() == []
    (web,) = state(web=frontend(1)).values()
    foreign = len(web.slots) + 2
    assert nft_diff.against(listing({WEB: web}), {}).repairs() == [
        f"10.200.0.1:80/tcp: elements not ours: {foreign}"
    ]


def test_a_repair_says_so_of_an_element_whose_protocol_no_service_has() -> None:
    held = listing({})
    held[vip_set(Family.V4)][WEB.address.packed + b"\x01\0\0\0" + b"\0\x50\0\0"] = b""
    assert nft_diff.against(held, {}).repairs() == ["an unknown protocol: elements not ours: 1"]


@pytest.mark.parametrize(("count", "rest"), [(20, []), (21, ["and 1 more"]), (25, ["and 5 more"])])
def test_a_repair_of_many_serviceports_names_some(count: int, rest: list[str]) -> None:
    many = {
        ServicePort(WEB.address, Protocol.TCP, port): nft_diff.placed(frontend(1), None)
        for port in range(1, count + 1)
    }
    found = nft_diff.against(Table().elements, many).repairs()
    assert (len(found[:20]), found[20:]) == (20, rest)
