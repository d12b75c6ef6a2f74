"""A cluster for each module of tests, which are the steps of its life, in order."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from netmgr.prefixes import Family
from tests.e2e import lifecycle, netmgr, network, pods, programs
from tests.e2e.cluster import Cluster
from tests.e2e.pods import PODS, Pod
from tests.lab.exchange import End
from tests.lab.topology import INTERNET

WHOLE = {"newest": (), "previous": network.MACHINES}
"""What `--kubernetes` selects: the machines with the minor version before the newest."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """What `make e2e ARGS=…` may say."""
    parser.addoption(
        "--stay",
        action="store_true",
        help="keep each cluster after its tests, until Enter is pressed",
    )
    parser.addoption(
        "--kubernetes",
        choices=sorted(WHOLE),
        help="run one minor version of Kubernetes everywhere",
    )


@pytest.fixture(scope="module")
def options() -> dict[str, object]:
    """What the module's cluster is like; a module replaces this."""
    return {}


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, options: dict[str, object]) -> Iterator[Cluster]:
    """Two nodes without a network plugin, so not Ready."""
    chosen = request.config.getoption("--kubernetes")
    if chosen:
        options = {**options, "with_previous": WHOLE[chosen]}
    if reason := programs.missing(with_previous=chosen != "newest"):
        pytest.fail(reason)
    with Cluster(**options) as made:
        yield made
        if request.config.getoption("--stay"):
            _wait(request.config, made)


def _wait(config: pytest.Config, cluster: Cluster) -> None:
    capturing = config.pluginmanager.getplugin("capturemanager")
    with capturing.global_and_fixture_disabled():
        sys.stdout.write(f"\n{cluster.name} stays until you press Enter; see tests/e2e/README.md\n")
        sys.stdin.readline()


@pytest.fixture(scope="module")
def pristine(cluster: Cluster) -> dict[str, list[str]]:
    """What is on the nodes before netmgr."""
    return {node: lifecycle.traces(cluster, node) for node in network.NODES}


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Cluster:
    """The cluster with the overlay `cni`; most modules replace this."""
    netmgr.apply(cluster, netmgr.overlay(cluster, "cni"))
    netmgr.roll_out(cluster)
    return cluster


@pytest.fixture(scope="module")
def running(installed: Cluster) -> dict[str, Pod]:
    """Two pods on each node."""
    return pods.run(installed, PODS)


@pytest.fixture
def internet(cluster: Cluster) -> End:
    """The internet host, by IPv4."""
    return End(cluster.namespace("internet"), INTERNET[Family.V4])
