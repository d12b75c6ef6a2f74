"""The overlay `openai-like`: the metadata service names each node's ranges."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from netmgr.prefixes import Address, Family, Prefix
from tests.e2e import counting, netmgr, network, pods
from tests.e2e.cluster import Cluster
from tests.e2e.network import HUB, SPOKE
from tests.e2e.pods import BACK, FORTH, Pod
from tests.fakes.metadata import MetadataServer, document, http
from tests.lab import exchange
from tests.lab.errors import LabError
from tests.lab.exchange import End

pytestmark = [pytest.mark.root, pytest.mark.e2e, pytest.mark.timeout(600)]

BLOCKS = {
    "node-1": (Prefix.parse("10.224.0.16/28"), Prefix.parse("10.224.0.48/28")),
    "node-2": (Prefix.parse("10.224.1.16/28"), Prefix.parse("10.224.1.48/28")),
}
"""Two of each node, within the prefix of `training` in the overlay's plan."""


def addresses(block: Prefix) -> list[str]:
    return [str(Address(block.family, block.value + number)) for number in range(block.size)]


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Iterator[Cluster]:
    with ExitStack() as serving:
        for node, blocks in BLOCKS.items():
            own = [str(network.address(node)), *addresses(blocks[0]), *addresses(blocks[1])]
            metadata = MetadataServer(cluster.namespace(node), http(document(own)))
            serving.enter_context(metadata)
            for block in blocks:
                via = str(network.address(node))
                cluster.run_at(network.FABRIC, "ip", "route", "replace", str(block), "via", via)
        netmgr.apply(cluster, netmgr.overlay(cluster, "openai-like"))
        netmgr.roll_out(cluster)
        yield cluster


def test_pods_have_addresses_of_their_nodes_interface(running: dict[str, Pod]):
    for pod in running.values():
        (address,) = pod.addresses
        assert any(block.holds(address) for block in BLOCKS[pod.node])


def test_pods_reach_each_other_with_their_own_addresses(running: dict[str, Pod]):
    pods.reach_each_other(running, Family.V4)


def test_another_cluster_of_the_plan_reaches_no_pod(installed: Cluster, running: dict[str, Pod]):
    """The spoke's machine has an address of `research`."""
    pod = running["a1"].end()
    spoke = End(installed.namespace(SPOKE), network.outside(SPOKE))
    for client, server in ((spoke, pod), (pod, spoke)):
        with pytest.raises(LabError):
            exchange.stream(client, server, 1, 1)
    # The way is there: it is the rules that keep them apart.
    hub = End(installed.namespace(HUB), network.outside(HUB))
    for client, server in ((spoke, hub), (hub, pod)):
        exchange.stream(client, server, FORTH, BACK)


def test_every_byte_of_the_internet_is_counted_for_its_pod(
    installed: Cluster, running: dict[str, Pod], internet: End
):
    counting.check(installed, running, internet)
