"""An agent with `cni: off` counts for the pods of Debian's plugins, to the byte, and does nothing else."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import pytest

from netmgr.config import Backend
from netmgr.dataplane import netns
from netmgr.lab.topology import Pod
from tests.kernel.observed import ObservedNode, observed_node

pytestmark = pytest.mark.root


@pytest.fixture(scope="module", params=[("bridge", Backend.NFTABLES), ("ptp", Backend.IPTABLES)], ids=str)
def node(request: pytest.FixtureRequest) -> Iterator[ObservedNode]:
    plugin, backend = request.param
    import os

    with observed_node(plugin, backend, f"obs-{os.getpid()}-{plugin}") as node:
        node.start_agent()
        yield node


def test_every_byte_of_a_pod_is_counted_under_its_name_and_stays_when_it_goes(node: ObservedNode):
    pods = [node.add("first"), node.add("second")]
    node.wait_until(lambda: node.live() >= {"first", "second"})
    sent = {pod.pod.name: node.talk(pod, forth=10 * number) for number, pod in enumerate(pods, start=1)}
    assert {name: node.counted(name) for name in sent} == sent
    for pod in pods:
        node.delete(pod)
    node.wait_until(lambda: not node.live())
    assert {name: node.counted(name) for name in sent} == sent
    assert node.gaps() == {}
