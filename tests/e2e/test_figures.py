"""Figures of a cluster, beside a reference that was measured in turns with them or beside a bound.

They are printed as rows of a table; BENCHMARKS.md has some of a quiet machine.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e import agents, netmgr, network, pods
from tests.e2e.cluster import Cluster, wait_for

pytestmark = [pytest.mark.root, pytest.mark.e2e, pytest.mark.timeout(900)]

NODE = network.NODES[0]
PODS = 30
ROUNDS = 3
IDLE_SECONDS = 60
HOUR = 3600
LAUNCHER_WAIT_SECONDS = 10
"""As configs/kubernetes/components/wiring installs the launcher."""

CONTROLLERS = "node-restriction.kubernetes.io/netmgr-controller"
"""Nodes for the controllers, where no control plane is a Node."""

ACCOUNTS = "system:serviceaccount:netmgr:"
PTP_CONFLIST = "/etc/cni/net.d/05-ptp.conflist"
"""Before netmgr's in the order in which runtimes choose one."""

PTP = {
    "cniVersion": "1.0.0",
    "name": "ptp",
    "plugins": [
        {
            "type": "ptp",
            "ipMasq": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "10.99.0.0/24"}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
    ],
}
Row = Callable[..., None]


@pytest.fixture
def row(request: pytest.FixtureRequest) -> Row:
    """Prints a row of the table."""
    capturing = request.config.pluginmanager.getplugin("capturemanager")

    def write(*cells: str) -> None:
        with capturing.global_and_fixture_disabled():
            print("\n|", " | ".join(cells), "|", end="", flush=True)  # noqa: T201  the table

    return write


@pytest.fixture(scope="module")
def installed(installed: Cluster) -> Cluster:
    for node in network.NODES:
        installed.label(node, CONTROLLERS)
    controllers = ("-n", netmgr.NAMESPACE, "rollout", "status", "deployment/netmgr-controller")
    installed.plane.kubectl(*controllers, "--timeout=60s", timeout=70)
    return installed


def requests_during(cluster: Cluster, action: Callable[[], object]) -> Counter[str]:
    """Requests to the API server during an action, by account."""
    before = cluster.plane.requests_by_account()
    action()
    return cluster.plane.requests_by_account() - before


def test_pods_are_ready_as_soon_as_with_ptp(installed: Cluster, row: Row) -> None:
    for plugin in ("ptp", "host-local"):
        installed.node(NODE).add_plugin(plugin)
    ours, theirs = [], []
    for number in range(ROUNDS):
        ours.append(_burst(installed, f"ours-{number}", links=PODS))
        _use_ptp(installed, is_used=True)
        theirs.append(_burst(installed, f"theirs-{number}", links=0))
        _use_ptp(installed, is_used=False)
    ratio = statistics.median(ours) / statistics.median(theirs)
    row(f"{PODS} pods to Ready", _shown(ours), f"ptp: {_shown(theirs)}", f"{ratio:.2f} x")
    assert ratio < 1.5


def test_the_launcher_waits_longer_than_an_agent_is_away(installed: Cluster, row: Row) -> None:
    for how, end in {"killed": agents.kill, "pod replaced": agents.replace}.items():
        gaps, own = [], []
        for _ in range(ROUNDS):
            # The second end of a container in a pod's life costs the kubelet's backoff.
            agents.replace(installed, NODE)
            agents.seconds_until_it_serves(installed, NODE)
            end(installed, NODE)
            gap, of_process = agents.seconds_until_it_serves(installed, NODE)
            gaps.append(gap)
            own.append(of_process)
        row(f"agent {how}: until the next one serves", _shown(gaps), f"its process: {_shown(own)}")
        assert max(gaps) < LAUNCHER_WAIT_SECONDS


def test_requests_do_not_grow_with_pods(installed: Cluster, row: Row) -> None:
    idle = requests_during(installed, lambda: time.sleep(IDLE_SECONDS))
    for account, number in sorted(idle.items()):
        row(f"requests of {account}, idle", f"{number * HOUR // IDLE_SECONDS} an hour")
    busy = requests_during(installed, lambda: _burst(installed, "busy", links=PODS))
    for account, number in sorted(busy.items()):
        row(f"requests of {account}, {PODS} pods started and deleted", str(number))

    def start_again() -> None:
        agents.replace(installed, NODE)
        agents.seconds_until_it_serves(installed, NODE)

    start = requests_during(installed, start_again)
    for account, number in sorted(start.items()):
        row(f"requests of {account}, an agent's pod replaced", str(number))
    node = f"{ACCOUNTS}netmgr-node"
    assert idle[node] == busy[node] == 0
    assert start[node] == 1


def _burst(cluster: Cluster, prefix: str, *, links: int) -> float:
    """Start pods at once and delete them; seconds until all were Ready.

    `links` is how many of them netmgr is expected to wire.
    """
    names = [f"{prefix}-{number}" for number in range(PODS)]

    def all_ready() -> bool:
        found = cluster.plane.ask("GET", "/api/v1/namespaces/default/pods")["items"]
        return len(found) == PODS and all(map(pods.is_ready, found))

    begin = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: pods.create(cluster, name, NODE), names))
    wait_for(all_ready, f"{PODS} Ready pods", 300)
    took = time.monotonic() - begin
    assert netmgr.links(cluster, NODE) == links
    pods.delete(cluster, names)
    return took


def _use_ptp(cluster: Cluster, *, is_used: bool) -> None:
    machine = cluster.node(NODE).machine
    if is_used:
        machine.write(PTP_CONFLIST, json.dumps(PTP))
    else:
        machine.path(PTP_CONFLIST).unlink()
    # containerd 1.6 reads the folder again when it changes, and says nothing of it.
    time.sleep(2)


def _shown(seconds: Sequence[float]) -> str:
    """Median, least and most."""
    return f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"
