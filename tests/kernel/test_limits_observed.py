"""Limits of pods that another plugin wires."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kernel.flows import attains, flows
from tests.kernel.granted import GrantFile, budget
from tests.kernel.observed import ObservedNode, observed_node
from tests.kernel.quota_traffic import MEGABYTE, Exchange
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET

pytestmark = [pytest.mark.root, pytest.mark.alone, pytest.mark.slow]

LIMITS = [
    {"pods": "*/limited-*", "internet-in": "40M", "internet-out": "20M"},
    {"pods": "*/spending-*", "per-day": {"internet-out": "1M"}},
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("budgets") / "budgets.json"


@pytest.fixture(scope="module", params=["ptp", "bridge"])
def node(request: pytest.FixtureRequest, path: Path) -> Iterator[ObservedNode]:
    name = f"lim-{os.getpid()}-{request.param}"
    keys = {"limits": LIMITS, "budgets_file": str(path)}
    with observed_node(request.param, Backend.NFTABLES, name, **keys) as made:
        made.start_agent()
        yield made


@pytest.mark.parametrize(
    ("family", "way", "limit"), [(Family.V4, "out", 20), (Family.V6, "in", 40)]
)
def test_a_pod_of_another_plugin_gets_what_its_limit_allows(
    node: ObservedNode, family: Family, way: str, limit: int
) -> None:
    pod = node.add(f"limited-{way}-{family.value}")
    node.wait_until(
        lambda: any(one["pod"] == pod.pod.name for one in node.node.snapshot()["limits"])
    )
    internet = node.world.internet
    with flows(pod.netns, internet, INTERNET[family], 2, to_server=way == "out") as found:
        assert attains(found, limit)
    node.delete(pod)


def test_a_pod_of_another_plugin_is_in_its_budget(node: ObservedNode, path: Path) -> None:
    file = GrantFile(path, (budget("everyone", "*"),))
    pod = node.add("any")
    file.grant({"everyone": 30})
    with flows(pod.netns, node.world.internet, INTERNET[Family.V4], 2) as found:
        assert attains(found, 30)
    node.delete(pod)
    file.budgets = ()
    file.grant({})


def is_charged(node: ObservedNode, pod: Sandbox) -> bool:
    quotas = node.node.snapshot().get("quotas", ())
    return any(one["pod"] == pod.pod.name for one in quotas)


@pytest.mark.parametrize("family", Family)
def test_a_pod_of_another_plugin_has_its_quota(node: ObservedNode, family: Family) -> None:
    pod = node.add(f"spending-{family.value}")
    node.wait_until(lambda: is_charged(node, pod))
    with ExitStack() as stack:
        found = Exchange(node.world, pod, stack, family)
        assert found.exhaust() == MEGABYTE
        # Another of its name goes on with what is left.
        node.delete(pod)
        node.wait_until(lambda: not is_charged(node, pod))
        pod = node.add(pod.pod.name)
        node.wait_until(lambda: is_charged(node, pod))
        assert Exchange(node.world, pod, stack, family).send(MEGABYTE) == 0
    node.delete(pod)
