"""The steps by which a site gets addresses, one after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netmgr.documents.special_use import SPECIAL_USE
from netmgr.plan.allocate.demand import SubnetRequest
from netmgr.plan.allocate.pool import AddressPool, SiteRequest, free_pool
from netmgr.plan.allocate.space import Space
from netmgr.plan.clouds.cloud import Cloud
from netmgr.plan.document import PlanDocument
from netmgr.plan.files import load_limits
from netmgr.plan.lock import Allocation, PlanRefused
from netmgr.prefixes import Family, Prefix
from tests.builders import plan_of


def pool(*free: str, family: Family = Family.V4) -> AddressPool:
    return AddressPool(Space(family, [Prefix.parse(text) for text in free]))


def held(prefix: str, reserve: str = "") -> Allocation:
    return Allocation(prefix=Prefix.parse(prefix), reserve=Prefix.parse(reserve or prefix))


def subnet(name: str, length: int, family: Family = Family.V4) -> SubnetRequest:
    return SubnetRequest((name,), family, length, ("clusters", "a", name))


def site(
    *subnets: SubnetRequest,
    has: tuple[Allocation, ...] = (),
    taken: tuple[str, ...] | None = None,
    reserve: int = 0,
) -> SiteRequest:
    """What a site asks for whose subnets take all that it has, or what is `taken`."""
    full = tuple(own.prefix for own in has)
    used = full if taken is None else tuple(map(Prefix.parse, taken))
    # Without a name, which would choose among places that are equally good.
    return SiteRequest("", has, used, subnets, reserve)


def granted(pool: AddressPool, site: SiteRequest) -> tuple[list[str], dict[str, str]]:
    """Allocations as `prefix of reserve`, and where each subnet is."""
    allocations, placed = pool.grant(site)
    reserves = [
        str(own.prefix) if own.prefix == own.reserve else f"{own.prefix} of {own.reserve}"
        for own in allocations
    ]
    return reserves, {name: str(prefix) for (name,), prefix in placed.items()}


def reserved(*has: Allocation, reserve: int) -> list[str]:
    """What a site holds once so much growth is declared."""
    found = pool("10.0.0.0/16")
    return granted(found, site(has=owning(found, *has), taken=(), reserve=reserve))[0]


def free(pool: AddressPool) -> list[str]:
    return [str(block) for block in pool.space.blocks()]


def owning(pool: AddressPool, *allocations: Allocation) -> tuple[Allocation, ...]:
    """What a site holds already is withdrawn from the pool."""
    for each in allocations:
        pool.hold(each.reserve, "a")
    return allocations


def test_a_pool_lacks_what_nothing_is_allocated_from_and_what_sites_hold():
    keys = plan_of(
        {},
        pools={"nodes": ["10.0.0.0/20", "168.63.129.0/24", "192.0.2.0/24"]},
        exclude=[{"prefix": "10.0.0.0/24", "reason": "office"}, {"prefix": "10.0.1.0/24"}],
        pinned={"vpn": ["10.0.4.0/22"]},
    )
    plan = PlanDocument.model_validate(keys)
    forbidden = (Prefix.parse("192.0.2.0/24"),)
    limits = load_limits(Cloud.NONE).model_copy(update={"forbidden": forbidden})
    found = free_pool(plan, limits, {"a": [held("10.0.2.0/24", "10.0.2.0/23")]}, Family.V4)
    assert free(found) == [
        "10.0.8.0/21",
        "168.63.129.128/25",
        "168.63.129.64/26",
        "168.63.129.32/27",
        "168.63.129.0/28",
        "168.63.129.24/29",
        "168.63.129.20/30",
        "168.63.129.18/31",
        "168.63.129.17/32",
    ]
    assert {(str(prefix), holder) for prefix, holder in found.holders} == {
        ("192.0.2.0/24", "special use"),
        *((str(prefix), "special use") for prefix in SPECIAL_USE),
        ("10.0.0.0/24", "excluded: office"),
        ("10.0.1.0/24", "excluded: 10.0.1.0/24"),
        ("10.0.4.0/22", "vpn"),
        ("10.0.2.0/23", "a"),
    }


def test_what_fits_inside_costs_nothing_and_the_largest_are_placed_first():
    found = pool("10.0.0.0/16")
    has = owning(found, held("10.0.0.0/24"))
    before = free(found)
    asked = site(subnet("small", 28), subnet("large", 26), has=has, taken=("10.0.0.0/26",))
    assert granted(found, asked) == (
        ["10.0.0.0/24"],
        {"large": "10.0.0.64/26", "small": "10.0.0.128/28"},
    )
    assert free(found) == before


def test_of_equally_large_ones_the_key_decides():
    asked = site(subnet("b", 28), subnet("a", 28))
    assert granted(pool("10.0.0.0/16"), asked)[1] == {"a": "10.0.0.0/28", "b": "10.0.0.16/28"}


def test_what_does_not_fit_inside_goes_elsewhere_and_the_rest_stays_inside():
    found = pool("10.1.0.0/16")
    asked = site(subnet("x", 24), subnet("y", 26), has=(held("10.0.0.0/26"),), taken=())
    assert granted(found, asked) == (
        ["10.0.0.0/26", "10.1.0.0/24"],
        {"x": "10.1.0.0/24", "y": "10.0.0.0/26"},
    )


def test_a_reserve_is_used_bit_by_bit_before_anything_else():
    found = pool("10.0.0.0/16")
    has = owning(found, held("10.0.0.0/26", "10.0.0.0/23"))
    before = free(found)
    asked = site(subnet("x", 27), has=has)
    assert granted(found, asked) == (["10.0.0.0/25 of 10.0.0.0/23"], {"x": "10.0.0.64/27"})
    asked = site(subnet("x", 24), has=has)
    assert granted(found, asked) == (["10.0.0.0/23"], {"x": "10.0.1.0/24"})
    # Enough addresses, but no whole block of that size before the next step.
    asked = site(subnet("x", 25), has=has, taken=("10.0.0.0/27", "10.0.0.32/27"))
    assert granted(found, asked) == (["10.0.0.0/24 of 10.0.0.0/23"], {"x": "10.0.0.128/25"})
    assert free(found) == before


def test_then_the_prefix_with_the_largest_reserve_grows_in_place():
    found = pool("10.0.0.0/22", "10.1.0.0/16")
    has = owning(found, held("10.1.0.0/26"), held("10.0.0.0/25"))
    asked = site(subnet("x", 25), has=has)
    assert granted(found, asked) == (["10.0.0.0/24", "10.1.0.0/26"], {"x": "10.0.0.128/25"})
    assert not found.space.is_free(Prefix.parse("10.0.0.0/24"))
    assert ("", "10.0.0.0/24") in {(name, str(prefix)) for prefix, name in found.holders}


def test_a_prefix_grows_in_place_by_no_more_than_is_needed():
    found = pool("10.0.0.0/16")
    asked = site(subnet("x", 26), has=owning(found, held("10.0.0.0/26")))
    assert granted(found, asked) == (["10.0.0.0/25"], {"x": "10.0.0.64/26"})
    assert free(found)[-1] == "10.0.0.128/25"
    # One address can double as well.
    found = pool("10.0.0.0/24")
    asked = site(subnet("x", 28), has=owning(found, held("10.0.0.0/32")))
    assert granted(found, asked) == (["10.0.0.0/27"], {"x": "10.0.0.16/28"})


def test_where_the_largest_reserve_cannot_grow_the_next_one_does():
    found = pool("10.0.0.0/25", "10.1.0.0/25")
    has = owning(found, held("10.0.0.0/25"), held("10.1.0.0/26"))
    asked = site(subnet("x", 26), has=has)
    assert granted(found, asked) == (["10.0.0.0/25", "10.1.0.0/25"], {"x": "10.1.0.64/26"})


@pytest.mark.parametrize("reserve", [0, 4096])
def test_a_neighbour_stops_growth_in_place_and_another_prefix_is_added(reserve):
    found = pool("10.0.0.0/22", "10.1.0.0/16")
    has = owning(found, held("10.0.0.0/25"))
    found.hold(Prefix.parse("10.0.0.128/32"), "b")
    # With room for its own growth: the largest free block is its own from its lower end on.
    both = (["10.0.0.0/25", "10.1.0.0/25"], {"x": "10.1.0.0/25"})
    # It keeps its one reserve, whatever growth is declared.
    asked = site(subnet("x", 25), has=has, reserve=reserve)
    assert granted(found, asked) == both


def test_declared_growth_is_kept_free_beside_what_declares_it():
    found = pool("10.0.0.0/16")
    asked = site(subnet("x", 26), subnet("y", 26), reserve=1000)
    assert granted(found, asked) == (
        ["10.0.0.0/25 of 10.0.0.0/22"],
        {"x": "10.0.0.0/26", "y": "10.0.0.64/26"},
    )
    assert not found.space.is_free(Prefix.parse("10.0.3.0/24"))
    # Where there is no room for all of it, without.
    tight = pool("10.0.0.0/24")
    assert granted(tight, asked)[0] == ["10.0.0.0/25"]


def test_a_reserve_is_widened_to_what_is_declared_where_its_neighbourhood_is_free():
    own = held("10.0.0.0/25")
    assert reserved(own, reserve=500) == ["10.0.0.0/25 of 10.0.0.0/23"]
    # What it has elsewhere is part of that, and only the largest one grows.
    both = reserved(own, held("10.0.128.0/26"), reserve=300)
    assert both == ["10.0.0.0/25 of 10.0.0.0/24", "10.0.128.0/26"]
    both = reserved(held("10.0.0.0/26"), held("10.0.128.0/25"), reserve=300)
    assert both == ["10.0.0.0/26", "10.0.128.0/25 of 10.0.128.0/24"]
    # A reserve that is larger already stays.
    larger = held("10.0.0.0/25", "10.0.0.0/20")
    assert reserved(larger, reserve=500) == ["10.0.0.0/25 of 10.0.0.0/20"]
    found = pool("10.0.0.0/16")
    has = owning(found, own)
    found.hold(Prefix.parse("10.0.1.0/32"), "b")
    assert granted(found, site(has=has, taken=(), reserve=500))[0] == ["10.0.0.0/25"]
    assert granted(found, site(reserve=500)) == ([], {})


def test_a_reserve_never_grows_over_a_prefix_that_the_site_gets_in_the_same_step():
    found = pool("10.0.0.0/25", "10.1.0.0/26")
    has = owning(found, held("10.0.0.0/26"))
    asked = site(subnet("x", 26), subnet("y", 26), has=has, reserve=256)
    assert granted(found, asked) == (
        ["10.0.0.0/26", "10.0.0.64/26", "10.1.0.0/26"],
        {"x": "10.0.0.64/26", "y": "10.1.0.0/26"},
    )


def test_without_one_block_for_all_the_fewest_that_hold_them_are_taken():
    found = pool("10.0.0.0/26", "10.1.0.0/25", "10.2.0.64/26")
    asked = site(subnet("x", 26), subnet("y", 26), subnet("z", 26))
    assert granted(found, asked) == (
        ["10.1.0.0/25", "10.2.0.64/26"],
        {"x": "10.2.0.64/26", "y": "10.1.0.0/26", "z": "10.1.0.64/26"},
    )
    assert free(found) == ["10.0.0.0/26"]


def test_an_ipv6_site_has_room_for_256_subnets_and_no_declared_reserve():
    found = pool("fd00::/40", family=Family.V6)
    asked = site(subnet("x", 64, Family.V6), reserve=1 << 20)
    assert granted(found, asked) == (["fd00::/56"], {"x": "fd00::/64"})
    assert granted(found, site(subnet("y", 52, Family.V6)))[0] == ["fd00:0:80::/52"]


def refused(pool: AddressPool, site: SiteRequest) -> str:
    before = free(pool)
    with pytest.raises(PlanRefused) as caught:
        pool.grant(replace(site, name="a"))
    assert free(pool) == before
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.at.key == ("clusters", "a", "x")
    remedy = "add a prefix to pools.nodes, release what is unused, or ask for less"
    assert diagnostic.remedy == remedy
    return diagnostic.message


def test_a_refusal_says_what_is_missing_and_the_largest_request():
    found = pool("10.0.0.0/26", "10.0.0.128/27")
    assert refused(found, site(subnet("y", 26), subnet("x", 25))) == (
        "a needs 192 more addresses, a /24, but of pools.nodes the largest free block is "
        "10.0.0.0/26 (64): 192 too few; the largest request is clusters.a.x (128)"
    )
    assert refused(pool(), site(subnet("x", 25))) == (
        "a needs 128 more addresses, a /25, but of pools.nodes nothing is free: 128 too few; "
        "the largest request is clusters.a.x (128)"
    )


def test_a_refusal_of_ipv6_counts_the_whole_prefix_that_a_site_takes():
    found = pool("fd00::/57", family=Family.V6)
    message = refused(found, site(subnet("x", 64, Family.V6)))
    assert message.startswith(
        f"a needs {1 << 64:,} more addresses, a /56, but of pools.nodes the largest free block is "
        f"fd00::/57 ({1 << 71:,}): {1 << 71:,} too few; "
    )


def test_a_refusal_names_who_is_in_the_way_of_growing_in_place():
    found = pool("10.0.0.0/23")
    has = owning(found, held("10.0.0.0/25"))
    found.hold(Prefix.parse("10.0.1.0/25"), "b")
    found.hold(Prefix.parse("10.0.1.128/25"), "c")
    # Behind those two, so that nothing would be won by its leaving.
    found.hold(Prefix.parse("10.0.2.0/24"), "d")
    assert refused(found, site(subnet("x", 24), has=has)) == (
        "a needs 256 more addresses, a /24, but of pools.nodes the largest free block is "
        "10.0.0.128/25 (128): 128 too few; the largest request is clusters.a.x (256); "
        "in the way of growing in place: b (10.0.1.0/25), c (10.0.1.128/25)"
    )
    two = pool("10.0.0.0/24", "10.0.2.0/24")
    has = owning(two, held("10.0.0.0/25"), held("10.0.2.0/25"))
    two.hold(Prefix.parse("10.0.0.128/25"), "b")
    two.hold(Prefix.parse("10.0.2.128/25"), "c")
    assert refused(two, site(subnet("x", 24), has=has)).endswith(
        "; in the way of growing in place: b (10.0.0.128/25), c (10.0.2.128/25)"
    )
    alone = pool("10.0.0.0/24")
    asked = site(subnet("x", 24), has=owning(alone, held("10.0.0.0/25")))
    assert refused(alone, asked).endswith(
        "; in the way of growing in place: the end of the pool beyond 10.0.0.0/24"
    )
