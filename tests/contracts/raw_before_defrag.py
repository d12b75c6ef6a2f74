"""What SECURITY.md says of a module's parameter that puts the legacy raw tables before reassembly.

Run by `make vm`: this machine's kernel may have the tables built in, and others may be using them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from netmgr import programs
from netmgr.rules.engine import Rules
from netmgr.rules.policy import Policy
from tests.contracts.routed import FAMILIES, INTERNAL, PODS, guarded, routed
from tests.contracts.star import PORT
from tests.contracts.test_rules_fragments import test_a_planted_fragment_joins_nobody_elses_datagram

SURROUNDINGS = routed
pytestmark = [
    pytest.mark.root,
    pytest.mark.parametrize("real_kernel", ["iptables-legacy"], indirect=True),
]

MODULES = ("iptable_raw", "ip6table_raw")

__all__ = ["test_a_planted_fragment_joins_nobody_elses_datagram"]


@pytest.fixture(scope="module", autouse=True)
def tables_before_reassembly() -> Iterator[None]:
    for module in MODULES:
        programs.run(["modprobe", "--remove", module])
        loaded = programs.run(["modprobe", module, "raw_before_defrag=1"])
        assert loaded.returncode == 0, loaded.stderr
    yield
    for module in MODULES:
        programs.run(["modprobe", "--remove", module])


@pytest.fixture
def node(real_kernel, policy: Policy) -> Rules:
    return guarded(real_kernel.backend, policy, knows_links=True)


@FAMILIES
def test_whole_datagrams_of_a_pod_pass_in_fragments(world, node, family):
    del node
    pod = world.socket(world.pod, family, PODS[family], PORT)
    host = world.socket(world.host, family, INTERNAL[family], PORT)
    for size in (2000, 65_000):
        assert world.reaches(pod, host, INTERNAL[family], size) == PODS[family]
