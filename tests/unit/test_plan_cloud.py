"""Azure's quirks and limits, and how plans meet them."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from netmgr.documents.diagnostics import Severity
from netmgr.plan import machines
from netmgr.plan.check.checks import check_limits, check_plan
from netmgr.plan.check.usage import forecasts, limit_usage, network_mappings
from netmgr.plan.clouds.cloud import Cloud, CloudLimits
from netmgr.plan.derive import address_spaces
from netmgr.plan.document import PlanDocument
from netmgr.plan.files import load_limits
from netmgr.plan.growth import grown_plan
from netmgr.plan.lock import LockDocument, PlanRefused
from netmgr.plan.locking import make_lock
from netmgr.prefixes import Address, Prefix, overlaps
from tests.builders import plan_of
from tests.locks import agreed_limits, lock_for

Locked = tuple[PlanDocument, LockDocument, CloudLimits]


def locked(clusters: dict[str, Any], **keys: Any) -> Locked:
    plan = PlanDocument.model_validate(plan_of(clusters, **keys))
    return plan, lock_for(plan), agreed_limits(plan)


def cluster(**pool: Any) -> dict[str, Any]:
    return {"services": {"length": 18}, "node_pools": {"gpu": {"surge": 0, **pool}}}


def messages(locked: Locked, severity: Severity) -> list[str]:
    found = [*check_plan(*locked), *check_limits(*locked)[1]]
    return [str(finding) for finding in found if finding.severity is severity]


def test_a_block_counts_as_one_mapping_and_single_addresses_count_each():
    plan, lock, _ = locked({"a": cluster(nodes=7500, pods_per_node=31)})
    assert network_mappings(plan.clusters["a"], lock.clusters["a"]) == {"a": 7500 * 3 + 2}
    plan, lock, _ = locked({"a": cluster(nodes=7500, pods_per_node=31, addressing="single")})
    found = network_mappings(plan.clusters["a"], lock.clusters["a"])
    assert sum(found.values()) == 7500 * 32 + 2


def test_single_addresses_of_many_nodes_need_several_vnets_and_break_the_group_limit():
    clusters = {"a": cluster(nodes=7500, pods_per_node=31, addressing="single")}
    found = locked(clusters)
    assert len({segment.network for _, _, segment in machines.segments(found[1])}) == 4
    assert set(address_spaces(found[1])) == {"hub", "a", "a_2", "a_3", "a_4"}
    assert forecasts(*found)[0].networks == 4
    spaces = [prefix for held in address_spaces(found[1]).values() for prefix in held.prefixes]
    assert not list(overlaps(spaces, lambda prefix: prefix))
    errors = "".join(messages(found, Severity.ERROR))
    assert "mappings of the hub and its peers, hub: 240,254 of 128,000 (azure, 2022-12)" in errors
    agreed = locked(clusters, limits={"mappings_per_peered_group": 300_000})
    assert "hub and its peers" not in "".join(messages(agreed, Severity.ERROR))


def test_what_the_cloud_limits_by_region_is_counted_by_region():
    east = {"a": cluster(nodes=40_000), "b": cluster(nodes=30_000)}
    more = {"mappings_per_peered_group": 400_000}
    (error,) = messages(locked(east, limits=more), Severity.ERROR)
    assert "NICs of a region, eastus: 70,256 of 65,536 (azure, 2022-12)" in error
    both = {"a": cluster(nodes=40_000), "b": {**cluster(nodes=30_000), "location": "westus3"}}
    found = locked(both, limits={**more, "route_tables_per_region": 3})
    assert messages(found, Severity.ERROR) == []
    used = {(line.what, line.subject): line.used for line in limit_usage(*found)}
    assert used["route tables of a region", "eastus"] == 3
    assert used["route tables of a region", "westus3"] == 2
    assert used["VNets of a region", "westus3"] == 2
    assert used["security groups of a region", "eastus"] == 1


def test_public_addresses_depend_on_the_contract_and_stop_no_plan():
    found = locked({"a": {**cluster(nodes=5), "nat_gateway_ips": 11}})
    assert messages(found, Severity.ERROR) == []
    assert "public IPs of a region: 12 of 10" in "".join(messages(found, Severity.NOTE))


@pytest.mark.parametrize(
    ("cloud", "keys", "refused"),
    [
        ("azure", {"block_length": 27}, "is 27, and a NIC takes blocks of /28 alone"),
        ("azure", {"block_length_v6": 112}, "is 112, and a NIC takes blocks of /80"),
        ("azure", {"block_length": 27, "addressing": "single"}, ""),
        ("none", {"block_length": 27, "block_length_v6": 112}, ""),
    ],
)
def test_blocks_are_of_the_only_length_that_the_cloud_has(cloud, keys, refused):
    pools = {"nodes": ["10.0.0.0/8", "fd00:7::/40"], "services": ["172.16.0.0/12"]}
    found = locked({"a": cluster(nodes=5, **keys)}, cloud=cloud, pools=pools)
    errors = "".join(messages(found, Severity.ERROR))
    assert refused in errors
    assert bool(errors) == bool(refused)


def test_the_figures_say_how_old_they_are():
    limits = load_limits(Cloud.AZURE)
    assert limits.months_old(date(2024, 1, 15)) == 13


def test_nobody_gets_a_forbidden_range():
    pools = {"nodes": ["168.0.0.0/6"], "services": ["172.16.0.0/12"]}
    found = locked({f"c{number}": cluster(nodes=7000) for number in range(12)}, pools=pools)
    held = [each.reserve for name in found[1].clusters for each in found[1].clusters[name].prefixes]
    assert not any(prefix.holds(Address.parse("168.63.129.16")) for prefix in held)
    assert not any(prefix.overlaps(Prefix.parse("169.254.0.0/16")) for prefix in held)
    assert "forbids" not in "".join(messages(found, Severity.ERROR))


def test_a_nic_holds_no_more_than_256_addresses():
    most, more = (
        locked({"a": cluster(nodes=5, pods_per_node=pods, addressing="single")})
        for pods in (255, 256)
    )
    assert messages(most, Severity.ERROR) == []
    (error,) = messages(more, Severity.ERROR)
    assert "addresses of a scale set's NIC, a/gpu: 257 of 256" in error


def test_unknown_limits_are_shown_as_unknown():
    lines = limit_usage(*locked({"a": cluster(nodes=5, addressing="single")}))
    assert {line.limit for line in lines if line.what == "scale sets of a region"} == {2500}
    lines = limit_usage(*locked({"a": cluster(nodes=5)}, cloud="none"))
    assert {line.status for line in lines if "Kubernetes" not in line.what} == {"unknown"}


def test_the_first_limit_is_met_where_it_is_said():
    plan, lock, limits = locked({"a": cluster(nodes=1000, pods_per_node=31)})
    first = forecasts(plan, lock, limits)[0]
    assert first.first_limit == "mappings of one VNet (then it needs another)"
    assert first.at_nodes == 65536 * 1000 // 3002
    for nodes, networks in ((21_840, 1), (21_850, 2)):
        _, lock, _ = locked({"a": cluster(nodes=nodes, pods_per_node=31)})
        assert len({segment.network for _, _, segment in machines.segments(lock)}) == networks


NEIGHBOURS = {"b": cluster(nodes=1500), "c": cluster(nodes=900)}
SINGLE = cluster(nodes=10, pods_per_node=1, addressing="single")


@pytest.mark.parametrize(
    ("clusters", "pool", "keys", "doublings"),
    [
        ({"a": cluster(nodes=1000), **NEIGHBOURS}, "10.0.0.0/12", {}, 1),
        ({"a": {**cluster(nodes=1000), "grow_to": 3000}, **NEIGHBOURS}, "10.0.0.0/12", {}, 1),
        (
            {"a": cluster(nodes=3)},
            "168.63.128.0/18",
            {"cloud": "none", "pinned": {"a": ["168.63.130.0/24"]}},
            0,
        ),
        ({"a": SINGLE}, "10.0.0.0/22", {"cloud": "none"}, 0),
    ],
    ids=[
        "beside its neighbours",
        "as it declares",
        # The cloud forbids nothing, but 168.63.129.16 is of special use in every cloud.
        "over nothing that is never allocated",
        # A node that takes one address for its pods takes two in all.
        "in the smallest subnet that holds a segment",
    ],
)
def test_a_cluster_grows_where_it_stands_as_far_as_is_said(clusters, pool, keys, doublings):
    pools = {"nodes": [pool], "services": ["172.16.0.0/12"]}
    plan, lock, limits = locked(clusters, pools=pools, **keys)
    # Pinned it would not grow in place.
    plan = plan.model_copy(update={"pinned": {}})
    said = forecasts(plan, lock, limits)[0]
    assert said.first_limit == "addresses in place"
    assert said.doublings >= doublings
    assert stays_where_it_is(plan, lock, limits, said.at_nodes)
    assert not stays_where_it_is(plan, lock, limits, said.at_nodes + 1)


def stays_where_it_is(
    plan: PlanDocument, lock: LockDocument, limits: CloudLimits, nodes: int
) -> bool:
    try:
        after = make_lock(grown_plan(plan, "a", nodes), lock, limits).clusters["a"]
    except PlanRefused:
        return False
    # Beyond what is said it may still fit, divided into several segments beside that there was.
    held = len(lock.clusters["a"].prefixes)
    return len(after.prefixes) == held and len(after.node_pools["gpu"].segments) <= 2


def test_shared_services_are_the_same_inside_and_apart_for_the_hub():
    shared = {"services": {"length": 20, "mode": "shared"}, "node_pools": {"gpu": {"nodes": 5}}}
    _, lock, _ = locked({"a": shared, "b": shared}, shared_services="100.64.0.0/16")
    a, b = (lock.clusters[name].services for name in "ab")
    assert a.prefix == b.prefix == Prefix.parse("100.64.0.0/20")
    assert not a.hub_prefix.overlaps(b.hub_prefix)


def test_ipv6_subnets_are_64_and_ipv6_can_be_added_later():
    clusters = {"a": cluster(nodes=100)}
    plan, before, limits = locked(clusters)
    pools = {"nodes": ["10.0.0.0/8", "fd00:7::/40"], "services": ["172.16.0.0/12"]}
    written = plan.model_dump(by_alias=True) | {"pools": pools, "clusters": clusters}
    both = PlanDocument.model_validate(written)
    after = make_lock(both, before, limits)
    old, new = (lock.clusters["a"].node_pools["gpu"].segments[0] for lock in (before, after))
    assert new.v4 == old.v4
    assert new.v6 is not None
    assert (new.v6.subnet.length, new.v6.block_length) == (64, 80)
    assert make_lock(both, after, limits) == after


def test_a_move_to_a_cloud_that_keeps_more_addresses_is_refused():
    plan, before, _ = locked({"a": cluster(nodes=250)}, cloud="none")
    moved = PlanDocument.model_validate(plan.model_dump(by_alias=True) | {"cloud": "azure"})
    azure = load_limits(moved.cloud)
    with pytest.raises(PlanRefused, match="azure keeps addresses of"):
        make_lock(moved, before, azure)
    after = make_lock(moved, before, azure, renumber=True)
    assert make_lock(moved, after, azure) == after


def test_an_adopted_prefix_of_a_cluster_lies_in_a_pool():
    with pytest.raises(PlanRefused, match=r"192.168.0.0/20 lies in no pool; add it to pools.nodes"):
        locked({"a": cluster(nodes=5)}, pinned={"a": ["192.168.0.0/20"]})
    locked({"a": cluster(nodes=5)}, pinned={"somebody": ["192.168.0.0/20"]})
