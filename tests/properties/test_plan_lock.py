"""What holds for every plan: nothing overlaps, nothing moves, and the lock is a function of plan
and previous lock.
"""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, assume, given, reject, settings
from pydantic import ValidationError

from netmgr.plan import machines
from netmgr.plan.allocate.space import enclosing
from netmgr.plan.allocate.subnetting import taken_by
from netmgr.plan.clouds.cloud import Cloud
from netmgr.plan.diff import ChangeKind, diff
from netmgr.plan.document import PlanDocument
from netmgr.plan.growth import grown_plan, kept_nodes
from netmgr.plan.lock import LockDocument, PlanRefused
from netmgr.prefixes import Address, Family, Prefix, overlaps
from tests.builders import plan_of
from tests.locks import errors, faults, lock_for, published

LIMITS = [published(cloud) for cloud in Cloud]

drawn = settings(
    max_examples=60, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)

names = st.sampled_from([f"c{number}" for number in range(8)])
node_counts = st.sampled_from([0, 1, 5, 30, 100, 500, 2000, 7500])
node_pools = st.fixed_dictionaries(
    {"nodes": node_counts, "pods_per_node": st.integers(1, 120)},
    optional={
        "addressing": st.sampled_from(["blocks", "single"]),
        "block_length": st.integers(26, 31),
        "surge": st.sampled_from([0, 7, "10%", "33%"]),
    },
)
clusters = st.fixed_dictionaries(
    {
        "node_pools": st.dictionaries(
            st.sampled_from(["gpu", "cpu", "system"]), node_pools, min_size=1, max_size=3
        ),
        "services": st.fixed_dictionaries(
            {"length": st.integers(18, 24), "mode": st.sampled_from(["unique", "shared"])},
            optional={"length_v6": st.integers(112, 116)},
        ),
    }
)


POOLS = [
    {"nodes": ["10.0.0.0/8"], "services": ["172.16.0.0/12"]},
    {"nodes": ["10.0.0.0/9", "10.192.0.0/10"], "services": ["172.16.0.0/12"]},
    {"nodes": ["10.0.0.0/8", "fd00:1::/40"], "services": ["172.16.0.0/12"]},
    {"nodes": ["10.0.0.0/8", "fd00:1::/40"], "services": ["172.16.0.0/12", "fd00:5e::/104"]},
]


@st.composite
def documents(draw: st.DrawFn) -> dict[str, object]:
    found = draw(st.dictionaries(names, clusters, max_size=6))
    for name in found:
        if draw(st.booleans()):
            total = sum(pool["nodes"] for pool in found[name]["node_pools"].values())
            found[name]["grow_to"] = total * draw(st.integers(1, 4))
    cloud = draw(st.sampled_from(["azure", "none"]))
    for pool in [pool for each in found.values() for pool in each["node_pools"].values()]:
        if published(cloud).block_length:
            pool.pop("block_length", None)
    return plan_of(
        found,
        cloud=cloud,
        pools=draw(st.sampled_from(POOLS)),
        exclude=draw(
            st.sampled_from([[], [{"prefix": "10.64.0.0/16"}, {"prefix": "172.17.0.0/24"}]])
        ),
        pinned=draw(st.sampled_from([{}, {"vpn": ["10.20.0.0/14"], "c1": ["10.96.0.0/13"]}])),
        shared_services=["100.64.0.0/16", "fd00:5a::/112"],
    )


def locked(data: dict[str, object], previous: LockDocument | None = None) -> LockDocument:
    return lock_for(PlanDocument.model_validate(data), previous)


def fitting(data: dict[str, object], previous: LockDocument | None = None) -> LockDocument:
    try:
        return locked(data, previous)
    except PlanRefused:
        reject()


def outcome(plan: PlanDocument, previous: LockDocument | None = None) -> LockDocument | PlanRefused:
    try:
        return lock_for(plan, previous)
    except PlanRefused as refused:
        return refused


def held(lock: LockDocument) -> list[Prefix]:
    """Everything that is one owner's alone."""
    sites = [lock.hub.prefixes, *(cluster.prefixes for cluster in lock.clusters.values())]
    return [each.reserve for site in sites for each in site] + [
        vip_range for cluster in lock.clusters.values() for vip_range in cluster.services.vip_ranges
    ]


@given(documents())
@drawn
def test_nothing_overlaps_and_every_planned_node_has_its_place(data):
    plan = PlanDocument.model_validate(data)
    lock = fitting(data)
    assert faults(lock, LIMITS) == []
    kept_out = [entry.prefix for entry in plan.exclude] + list(plan.pinned.get("vpn", ()))
    assert not any(prefix.overlaps(out) for prefix in held(lock) for out in kept_out)
    for name, cluster in plan.clusters.items():
        for pool, spec in cluster.node_pools.items():
            assert lock.clusters[name].node_pools[pool].capacity >= spec.capacity


@given(documents(), st.randoms(use_true_random=False))
@drawn
def test_nodes_never_share_an_address(data, source):
    lock = fitting(data)
    for cluster, pool, segment in machines.segments(lock):
        places = sorted(
            {0, segment.nodes - 1, *(source.randrange(segment.nodes) for _ in range(3))}
        )
        found = [machines.node(lock, cluster, pool, segment.first + place) for place in places]
        own: list[Prefix] = []
        for node in found:
            assert node is not None
            own += (*node.blocks, *(host.prefix for host in node.hosts))
            assert machines.node_named(lock, node.name) == node
            assert all(machines.node_owning(lock, host) == node for host in node.hosts)
            assert all(machines.node_owning(lock, block.network) == node for block in node.blocks)
        assert list(overlaps(own, lambda prefix: prefix)) == []


@given(documents())
@drawn
def test_locking_again_changes_nothing(data):
    lock = fitting(data)
    assert locked(data, lock) == lock
    assert locked(data) == lock


@given(documents(), documents(), st.randoms(use_true_random=False))
@drawn
def test_inserting_removing_and_reordering_clusters_moves_nobody(data, other, source):
    before = fitting(data)
    kept = [name for name in data["clusters"] if source.random() < 0.7]
    edited = {f"new-{name}": cluster for name, cluster in other["clusters"].items()}
    edited |= {name: data["clusters"][name] for name in kept}
    shuffled = dict(source.sample(list(edited.items()), len(edited)))
    after = fitting({**data, "clusters": shuffled}, before)
    assert locked({**data, "clusters": edited}, before) == after
    assert faults(after, LIMITS) == []
    for name in kept:
        assert after.clusters[name] == before.clusters[name]
    for name in set(data["clusters"]) - set(kept):
        assert after.clusters[name] == before.clusters[name].model_copy(update={"tombstone": True})


@given(documents(), st.integers(1, 20_000), st.randoms(use_true_random=False))
@drawn
def test_growing_only_ever_adds(data, more, source):
    assume(data["clusters"])
    plan = PlanDocument.model_validate(data)
    before = fitting(data)
    name = source.choice(sorted(plan.clusters))
    larger = grown_plan(plan, name, plan.clusters[name].nodes + more)
    after = outcome(larger, before)
    if isinstance(after, PlanRefused):
        assert "more addresses" in str(after)
        return
    kept, total = kept_nodes(before, after)
    assert kept == total
    assert {change.kind for change in diff(before, after)} <= {ChangeKind.ADD, ChangeKind.CHANGE}
    assert faults(after, LIMITS) == []
    for other in set(plan.clusters) - {name}:
        assert after.clusters[other] == before.clusters[other]


@given(documents())
@drawn
def test_services_in_ipv6_come_beside_what_there_is(data):
    data["pools"] = {"nodes": ["10.0.0.0/8", "fd00:1::/40"], "services": ["172.16.0.0/12"]}
    before = fitting(data)
    data["pools"] = {**data["pools"], "services": ["fd00:5e::/104", "172.16.0.0/12"]}
    after = fitting(data, before)
    assert {change.kind for change in diff(before, after)} <= {ChangeKind.ADD, ChangeKind.CHANGE}
    assert faults(after, LIMITS) == []
    assert locked(data, after) == after
    assert after.hub.routers.prefix == before.hub.routers.prefix
    for hub in (after.hub.routers, *after.hub.researchers):
        assert [prefix.family for prefix in hub.prefixes] == [4, 6]
    for name, cluster in after.clusters.items():
        former = before.clusters[name]
        assert cluster.node_pools == former.node_pools
        assert cluster.services.pairs[0] == former.services.pairs[0]
        assert [len(hosts) for hosts in cluster.nat.hosts] == [2, 2]
        for vip_range, service_cidr in cluster.services.pairs:
            assert vip_range.family is service_cidr.family
            assert vip_range.length == service_cidr.length
            assert (vip_range == service_cidr) == (cluster.services.mode == "unique")


@given(documents())
@drawn
def test_what_does_not_fit_is_refused_with_a_reason(data):
    pools = {"nodes": ["10.0.0.0/13"], "services": ["172.16.0.0/20"]}
    data = {**data, "pools": pools, "exclude": [], "pinned": {}}
    found = outcome(PlanDocument.model_validate(data))
    if isinstance(found, PlanRefused):
        assert (
            "too few" in str(found) and "largest request" in str(found)
        ) or "pools.services" in str(found)
        assert all(each.at.key and each.remedy for each in found.diagnostics)
        return
    pool = Prefix.parse("10.0.0.0/13")
    allocations = [own for cluster in found.clusters.values() for own in cluster.prefixes]
    assert all(pool.covers(own.reserve) for own in allocations)


VNET = Prefix.parse("10.4.0.0/16")


def inside(lengths: st.SearchStrategy[int]) -> st.SearchStrategy[str]:
    """A prefix of the VNet."""
    return st.builds(
        lambda length, offset: str(
            enclosing(Address(Family.V4, VNET.value + offset).prefix, length)
        ),
        lengths,
        st.integers(0, (1 << 16) - 1),
    )


pinning_pools = st.fixed_dictionaries(
    {"nodes": st.sampled_from([0, 5, 100, 500]), "pods_per_node": st.sampled_from([4, 15, 31, 60])},
    optional={"subnets": st.lists(inside(st.integers(18, 28)), max_size=2)},
)
pinned_services = st.sampled_from([{"length": 20}, {"length": 20, "prefix": "172.18.0.0/20"}])
pinning_cluster = st.fixed_dictionaries(
    {
        "services": pinned_services,
        "node_pools": st.fixed_dictionaries({"a": pinning_pools, "b": pinning_pools}),
    }
)
BETA = {"services": {"length": 20}, "node_pools": {"c": {"nodes": 100}}}
pinning = st.builds(
    plan_of,
    pinning_cluster.map(lambda alpha: {"alpha": alpha, "beta": BETA}),
    cloud=st.sampled_from(["azure", "none"]),
    pools=st.sampled_from(
        [
            {"nodes": families, "services": ["172.16.0.0/12"]}
            for families in (["10.0.0.0/12"], ["10.0.0.0/12", "fd00:1::/40"])
        ]
    ),
    pinned=st.just({"alpha": [str(VNET)]}),
    exclude=st.lists(st.builds(dict, prefix=inside(st.integers(20, 26))), max_size=2),
)


@given(pinning, st.booleans())
@settings(drawn, max_examples=80)
def test_what_is_pinned_is_there_and_what_is_live_is_left_alone(data, later):
    before = {**data, "exclude": [], "pinned": {}, "clusters": {"beta": BETA}}
    try:
        plan = PlanDocument.model_validate(data)
    except ValidationError:  # pins that overlap each other
        reject()
    lock = fitting(data, fitting(before) if later else None)
    assert faults(lock, LIMITS) == []
    assert errors(plan, lock) == []
    assert lock_for(plan, lock) == lock
    alpha = lock.clusters["alpha"]
    allocated = taken_by(alpha)
    assert not any(prefix.overlaps(live.prefix) for prefix in allocated for live in plan.exclude)
    for name, spec in plan.clusters["alpha"].node_pools.items():
        for pin, segment in zip(spec.subnets, alpha.node_pools[name].segments, strict=False):
            assert segment.v4.subnet == pin[0]
        assert len(alpha.node_pools[name].segments) >= len(spec.subnets)
        assert alpha.node_pools[name].capacity >= spec.capacity
    if pinned := plan.clusters["alpha"].services.prefix:
        assert alpha.services.prefix == pinned
