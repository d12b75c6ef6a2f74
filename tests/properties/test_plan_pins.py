"""What holds for every plan that pins subnets and Service ranges, and excludes live subnets of its
own clusters.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, reject, settings
from pydantic import ValidationError

from netmgr.documents.diagnostics import Severity
from netmgr.plan.allocate.subnetting import taken_by
from netmgr.plan.check.checks import check_limits, check_plan
from netmgr.plan.clouds.cloud import Cloud
from netmgr.plan.document import PlanDocument
from netmgr.plan.files import load_limits
from netmgr.plan.lock import LockDocument, PlanRefused
from netmgr.plan.locking import make_lock
from netmgr.prefixes import Family, Prefix
from tests.locks import faults

pytestmark = pytest.mark.timeout(120)

LIMITS = {cloud: load_limits(cloud) for cloud in Cloud}
VNET = Prefix.parse("10.4.0.0/16")


def inside(lengths: st.SearchStrategy[int]) -> st.SearchStrategy[str]:
    """A prefix of the VNet."""
    return st.tuples(lengths, st.integers(0, (1 << 16) - 1)).map(
        lambda drawn: str(
            Prefix(
                Family.V4, (VNET.value + drawn[1]) >> (32 - drawn[0]) << (32 - drawn[0]), drawn[0]
            )
        )
    )


node_pools = st.fixed_dictionaries(
    {"nodes": st.sampled_from([0, 5, 100, 500]), "pods_per_node": st.sampled_from([4, 15, 31, 60])},
    optional={
        "subnets": st.lists(
            st.fixed_dictionaries(
                {"hosts": inside(st.integers(22, 28)), "pods": inside(st.integers(18, 24))}
            ),
            max_size=2,
        )
    },
)
services = st.sampled_from([{"length": 20}, {"length": 20, "prefix": "172.18.0.0/20"}])
documents = st.fixed_dictionaries(
    {
        "apiVersion": st.just("netmgr.io/v1alpha1"),
        "kind": st.just("NetworkPlan"),
        "name": st.just("drawn"),
        "cloud": st.sampled_from(["azure", "none"]),
        "pools": st.sampled_from(
            [
                {"nodes": families, "services": ["172.16.0.0/12"]}
                for families in (["10.0.0.0/12"], ["10.0.0.0/12", "fd00:1::/40"])
            ]
        ),
        "pinned": st.just({"alpha": [str(VNET)]}),
        "exclude": st.lists(
            inside(st.integers(20, 26)).map(lambda prefix: {"prefix": prefix}), max_size=2
        ),
        "clusters": st.fixed_dictionaries(
            {
                "alpha": st.fixed_dictionaries(
                    {
                        "services": services,
                        "node_pools": st.fixed_dictionaries({"a": node_pools, "b": node_pools}),
                    }
                ),
                "beta": st.just({"services": {"length": 20}, "node_pools": {"c": {"nodes": 100}}}),
            }
        ),
    }
)


def locked(data: dict[str, Any], previous: LockDocument | None = None) -> LockDocument:
    try:
        plan = PlanDocument.model_validate(data)
        return make_lock(plan, previous, LIMITS[plan.cloud])
    except (ValidationError, PlanRefused):
        reject()


@given(documents, st.booleans())
@settings(
    max_examples=80, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)
def test_what_is_pinned_is_there_and_what_is_live_is_left_alone(
    data: dict[str, Any],
    later: bool,  # noqa: FBT001  drawn
) -> None:
    before = {**data, "exclude": [], "pinned": {}, "clusters": {"beta": data["clusters"]["beta"]}}
    lock = locked(data, locked(before) if later else None)
    plan = PlanDocument.model_validate(data)
    limits = LIMITS[plan.cloud]
    found = [*check_plan(plan, lock, limits), *check_limits(plan, lock, limits)[1]]
    assert faults(lock, LIMITS.values()) == []
    assert [finding for finding in found if finding.severity is Severity.ERROR] == []
    assert make_lock(plan, lock, limits) == lock
    alpha = lock.clusters["alpha"]
    allocated = taken_by(alpha)
    assert not any(prefix.overlaps(live.prefix) for prefix in allocated for live in plan.exclude)
    for name, spec in plan.clusters["alpha"].node_pools.items():
        for pin, segment in zip(spec.subnets, alpha.node_pools[name].segments, strict=False):
            assert (segment.v4.hosts, segment.v4.pods) == (pin.hosts[0], pin.pods[0])
        assert len(alpha.node_pools[name].segments) >= len(spec.subnets)
        assert alpha.node_pools[name].capacity >= spec.capacity
    if pinned := plan.clusters["alpha"].services.prefix:
        assert alpha.services.prefix == pinned
