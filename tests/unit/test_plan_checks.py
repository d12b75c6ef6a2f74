"""What `netmgr plan check` finds in a plan whose lock is of an earlier one, fault by fault."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from netmgr.documents.diagnostics import Diagnostic, KeyPath, Severity
from netmgr.plan.check import checks
from netmgr.plan.check.checks import check_limits, check_plan, refuse_errors
from netmgr.plan.check.usage import forecasts
from netmgr.plan.clouds.cloud import Figures
from netmgr.plan.derive import network
from netmgr.plan.document import PlanDocument
from netmgr.plan.files import load_limits
from netmgr.plan.lock import PlanRefused
from netmgr.plan.locking import make_lock
from netmgr.prefixes import Prefix
from tests.builders import plan_of
from tests.locks import lock_for

PLACES = 239
"""In a subnet of 256 blocks: sixteen have the nodes' own addresses, and Azure keeps the last."""

Change = dict[str, Any]


def plan(**keys: Any) -> dict[str, Any]:
    pool = {"surge": 0, "nodes": PLACES - 20, "pods_per_node": 16}
    return plan_of({"a": {"services": {"length": 18}, "node_pools": {"gpu": pool}}}, **keys)


def with_pool(name: str = "gpu", cluster: Change | None = None, **changes: Any) -> dict[str, Any]:
    """The plan with one node pool, or its cluster, changed."""
    changed = copy.deepcopy(plan())
    changed["clusters"]["a"]["node_pools"].setdefault(name, {"surge": 0}).update(changes)
    changed["clusters"]["a"].update(cluster or {})
    return changed


def checked(now: dict[str, Any], before: dict[str, Any] | None = None) -> list[Diagnostic]:
    """What the check of the plan finds, with the lock of the plan before."""
    former = PlanDocument.model_validate(before or plan())
    lock = lock_for(former)
    return list(check_plan(PlanDocument.model_validate(now), lock, load_limits(former.cloud)))


def parts(found: Diagnostic) -> tuple[Severity, KeyPath, str, str]:
    return found.severity, found.at.key, found.message, found.remedy


@pytest.mark.parametrize(
    ("now", "pool", "message"),
    [
        (with_pool(nodes=PLACES + 9), "gpu", "248 nodes with surge, but places for 239"),
        (with_pool(nodes=PLACES, surge=2), "gpu", "241 nodes with surge, but places for 239"),
        (with_pool("cpu", nodes=3), "cpu", "3 nodes with surge, but places for 0"),
    ],
)
def test_nodes_without_places_are_named_with_how_many_there_are(now, pool, message):
    key = ("clusters", "a", "node_pools", pool, "nodes")
    assert [parts(one) for one in checked(now)] == [
        (Severity.WARNING, key, f"{message} in the lock", "run: netmgr plan lock")
    ]


def test_a_cluster_that_is_not_in_the_lock_yet_has_no_places_to_count():
    more = copy.deepcopy(plan())
    more["clusters"] |= {"b": more["clusters"]["a"], "c": more["clusters"]["a"]}
    assert checked(more) == []
    short = with_pool(nodes=PLACES + 1)
    short["clusters"] = {"new": plan()["clusters"]["a"], **short["clusters"]}
    assert len(checked(short)) == 1


@pytest.mark.parametrize(("nodes", "is_few"), [(PLACES - 5, 0), (PLACES - 4, 1), (PLACES, 1)])
def test_few_places_that_are_left_are_a_warning(nodes, is_few):
    key = ("clusters", "a", "node_pools", "gpu", "nodes")
    message = f"{nodes} nodes with surge, of {PLACES} that fit"
    remedy = "declare grow_to, or see: netmgr plan grow"
    assert [parts(one) for one in checked(with_pool(nodes=nodes))] == [
        (Severity.WARNING, key, message, remedy)
    ] * is_few


def test_what_is_left_has_to_be_less_than_the_share(monkeypatch):
    monkeypatch.setattr(checks, "FEW_LEFT", 0)
    assert checked(with_pool(nodes=PLACES)) == []


def test_pinned_prefixes_that_overlap_are_a_fault_as_well():
    found = checked(plan(pinned={"office": ["10.9.0.0/16"], "lab": ["10.9.1.0/24"]}))
    overlap = "10.9.1.0/24 overlaps 10.9.0.0/16"
    assert [one.message for one in found if "overlaps" in one.message] == [overlap]


def test_declared_growth_needs_no_warning_of_few_places():
    assert checked(with_pool(nodes=PLACES, grow_to=PLACES)) == []
    assert checked(with_pool(nodes=PLACES, cluster={"grow_to": PLACES})) == []


def test_growth_that_nothing_could_be_reserved_for_is_named():
    """The lock is of a plan without growth, so nothing is kept free beside the cluster."""
    key: KeyPath = ("clusters", "a", "grow_to")
    for declared, is_named in ((438, 1), (437, 0)):
        now = with_pool(cluster={"grow_to": declared})
        found = [parts(one) for one in checked(now) if one.at.key == key]
        message = "438 nodes are declared, but nothing beside 10.235.96.0/19 could be reserved"
        expected = (Severity.WARNING, key, message, "it will grow by another prefix")
        assert found == [expected] * is_named
    reserved = with_pool(cluster={"grow_to": 2 * PLACES})
    assert checked(reserved, reserved) == []


def test_of_several_prefixes_the_largest_is_named_as_what_nothing_is_reserved_beside():
    document = PlanDocument.model_validate(with_pool(cluster={"grow_to": 438}))
    lock = lock_for(PlanDocument.model_validate(plan()))
    held = lock.clusters["a"]
    (own,) = held.prefixes
    few, many = Prefix.parse("10.9.0.0/24"), Prefix.parse("10.240.0.0/16")
    added = [own.model_copy(update={"prefix": prefix, "reserve": prefix}) for prefix in (few, many)]
    held = held.model_copy(update={"prefixes": (own, *added)})
    lock = lock.model_copy(update={"clusters": {"a": held}})
    found = check_plan(document, lock, load_limits(document.cloud))
    message = "438 nodes are declared, but nothing beside 10.240.0.0/16 could be reserved"
    assert message in [one.message for one in found]


def test_a_block_that_the_cloud_does_not_have_is_named_with_what_to_write():
    found = checked(with_pool(block_length=27))
    path = ("clusters", "a", "node_pools", "gpu", "block_length")
    message = "is 27, and a NIC takes blocks of /28 alone"
    remedy = "write 28, or addressing: single"
    assert (Severity.ERROR, path, message, remedy) in [parts(one) for one in found]


@pytest.mark.parametrize(
    ("keys", "at"),
    [
        ({"shared_services": ["168.63.128.0/20"]}, ("shared_services",)),
        ({"pinned": {"a": ["168.63.128.0/20"]}}, ("pinned", "a", 0)),
    ],
)
def test_what_the_cloud_forbids_is_an_error_at_its_key(keys, at):
    message = "168.63.128.0/20 overlaps 168.63.129.16/32, which Azure forbids"
    found = [parts(one) for one in checked(plan(**keys)) if one.at.key == at]
    assert (Severity.ERROR, at, message, "take another prefix") in found


def test_what_the_lock_has_of_it_already_is_named_at_its_cluster():
    """As when a plan moves to another cloud."""
    document = PlanDocument.model_validate(plan(cloud="none"))
    lock = lock_for(document)
    link_local = Prefix.parse("169.254.0.0/18")
    services = lock.clusters["a"].services.model_copy(
        update={"prefix": link_local, "hub_prefix": link_local}
    )
    own = lock.clusters["a"].prefixes[0]
    moved = own.model_copy(update={"prefix": Prefix.parse("168.63.128.0/19")})
    changed = {"services": services, "prefixes": (moved,)}
    clusters = {"a": lock.clusters["a"].model_copy(update=changed)}
    held = lock.model_copy(update={"clusters": clusters})
    found = check_plan(document, held, load_limits("azure"))
    assert {one.at.key for one in found if "Azure forbids" in one.message} == {
        ("clusters", "a"),
        ("clusters", "a", "services"),
    }


@pytest.mark.parametrize(("spare", "is_named"), [(0, 0), (-1, 1)])
def test_room_that_the_cloud_would_not_let_anybody_fill_is_named(spare, is_named):
    """Two node pools are in one network, and a node has an address, and one block or two."""
    both = with_pool("cpu", nodes=PLACES - 20, pods_per_node=31)
    document = PlanDocument.model_validate(both)
    most = 247 * 3 + PLACES * 2 + spare
    limits = load_limits(document.cloud).agreed({"mappings_per_network": most})
    found = check_plan(document, lock_for(document), limits)
    message = f"the places that the lock has in VNet a take 1,219 mappings, it has {most:,}"
    expected = (Severity.WARNING, ("clusters", "a"), message, "let growth go to another node pool")
    assert [parts(one) for one in found] == [expected] * is_named


def test_somebody_elses_pinned_prefix_may_be_what_the_cloud_forbids():
    found = checked(plan(pinned={"office": ["168.63.129.0/24"]}))
    assert [one for one in found if "forbids" in one.message] == []


@pytest.mark.parametrize("owner", ["hub", "a"])
def test_a_pinned_prefix_smaller_than_a_subnet_is_a_warning(owner):
    found = checked(plan(pinned={owner: ["10.9.0.0/29", "10.9.1.0/30"], "office": ["10.8.0.0/32"]}))
    message = "10.9.1.0/30 is smaller than the smallest subnet, a /29"
    assert [parts(one) for one in found if "smaller" in one.message] == [
        (Severity.WARNING, ("pinned", owner, 1), message, "no subnet fits into it")
    ]


def test_errors_come_first():
    found = checked(with_pool(nodes=PLACES + 9) | {"shared_services": ["168.63.128.0/20"]})
    severities = [diagnostic.severity for diagnostic in found]
    assert severities == sorted(severities, key=list(Severity).index)
    assert set(severities) == {Severity.ERROR, Severity.WARNING}


def test_limits_are_errors_when_they_are_exceeded_and_warnings_before():
    document = PlanDocument.model_validate(with_pool(nodes=5000))
    limits, lock = load_limits(document.cloud), lock_for(document)
    lines, _ = check_limits(document, lock, limits)
    mappings = next(line for line in lines if "mappings of" in line.what and line.used > 5000)
    for limit, severity, remedy in (
        (mappings.used - 1, Severity.ERROR, "use larger blocks, fewer nodes"),
        (mappings.used, Severity.WARNING, "plan the next step before it is needed"),
    ):
        agreed = limits.agreed({"mappings_per_peered_group": limit, "mappings_per_network": limit})
        found = check_limits(document, lock, agreed)[1]
        listed = [one for one in found if one.severity is severity]
        assert listed
        assert all(f"of {limit:,} (azure, 2022-12)" in one.message for one in listed)
        assert all(one.remedy.startswith(remedy) for one in listed)
        assert {one.at.key for one in listed} <= {("clusters",), ("clusters", "a", "node_pools")}
        if severity is Severity.ERROR:
            with pytest.raises(PlanRefused, match=f"of {limit:,}"):
                refuse_errors(document, lock, agreed)
        else:
            refuse_errors(document, lock, agreed)


@pytest.mark.parametrize(("clusters", "named"), [("a", "a"), ("ab", "a, and 1 more")])
def test_what_kubernetes_is_not_tested_with_is_one_note_for_all_clusters(clusters, named):
    many = dict.fromkeys(clusters, with_pool(nodes=6000)["clusters"]["a"])
    document = PlanDocument.model_validate(plan_of(many))
    _, found = check_limits(document, lock_for(document), load_limits(document.cloud))
    ports = f"pods to one SNAT port each: 96,000 of 64,512 ({named})"
    nodes = f"nodes (tested by Kubernetes): 6,000 of 5,000 ({named})"
    assert [parts(diagnostic) for diagnostic in found] == [
        (Severity.NOTE, ("clusters", "a", "nat_gateway_ips"), ports, ""),
        (Severity.NOTE, ("clusters", "a"), nodes, ""),
    ]


@pytest.mark.parametrize("name", Figures.model_fields)
def test_every_limit_of_a_cloud_decides_something(name):
    """A limit that can be set and is not counted would be a promise."""

    def outcome(**quotas: int) -> object:
        document = with_pool("single", addressing="single", nodes=2, surge=0)
        asked = PlanDocument.model_validate(document)
        limits = load_limits(asked.cloud).agreed(quotas)
        lock = make_lock(asked, None, limits)
        usages, _ = check_limits(asked, lock, limits)
        return usages, forecasts(asked, lock, limits), network(asked, lock, limits)

    assert outcome(**{name: 1}) != outcome()
