"""A node that loses its power, on a real cluster without a control plane among the nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import pytest

from tests.e2e import counting, netmgr, network, pods
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.pods import Pod
from tests.lab import exchange
from tests.lab.capture import Tally
from tests.lab.exchange import End
from tests.lab.traffic import Column

pytestmark = [pytest.mark.root, pytest.mark.e2e, pytest.mark.timeout(600)]

NODE = network.NODES[0]
PODS = 10
BOOT_ID = "/proc/sys/kernel/random/boot_id"
SEES_THE_NODES_BOOT_ID = f"""
import ctypes, os
MS_BIND = 4096
if ctypes.CDLL(None, use_errno=True).mount(b"/etc/boot_id", b"{BOOT_ID}", None, MS_BIND, None):
    raise OSError(ctypes.get_errno(), "{BOOT_ID}")
os.execvp("netmgr", ["netmgr", "agent"])
"""
"""The agent's command. A container has a /proc of its own, with the real machine's boot id, where
runc mounts nothing.
"""

PATCH = (
    {
        "op": "replace",
        "path": "/spec/template/spec/containers/0/command",
        "value": ["python3", "-c", SEES_THE_NODES_BOOT_ID],
    },
    {
        "op": "add",
        "path": "/spec/template/spec/containers/0/volumeMounts/-",
        "value": {"name": "boot-id", "mountPath": "/etc/boot_id", "readOnly": True},
    },
    {
        "op": "add",
        "path": "/spec/template/spec/volumes/-",
        "value": {"name": "boot-id", "hostPath": {"path": BOOT_ID, "type": "File"}},
    },
)


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Cluster:
    for number in range(PODS):
        pods.create(cluster, f"early-{number}", "")
    components = ("controller-on-workers",)
    netmgr.apply(cluster, netmgr.overlay(cluster, "cni", components=components, patch=PATCH))
    netmgr.roll_out(cluster)
    return cluster


def test_the_controller_runs_on_workers_where_a_component_allows_it(installed: Cluster) -> None:
    rolled_out = ("rollout", "status", "deployment/netmgr-controller", "--timeout=60s")
    installed.plane.kubectl("-n", "netmgr", *rolled_out, timeout=70)


def test_pods_that_wait_for_the_installation_start_at_the_first_attempt(installed: Cluster) -> None:
    early = [pods.started(installed, f"early-{number}") for number in range(PODS)]
    assert pods.refusals(installed, "early") == []
    pods.delete(installed, [pod.name for pod in early])


def _runs_again(cluster: Cluster, names: Iterable[str]) -> bool:
    found = [cluster.plane.ask("GET", f"/api/v1/namespaces/default/pods/{name}") for name in names]
    return all(
        pods.is_ready(each) and each["status"]["containerStatuses"][0]["restartCount"]
        for each in found
    )


def test_a_node_that_lost_its_power_counts_on_and_gives_no_address_twice(
    installed: Cluster, internet: End
) -> None:
    node = installed.node(NODE)
    names = [f"powered-{number}" for number in range(PODS)]
    gained = partial(counting.difference, installed, counting.counts(installed))

    def talk(running: Mapping[str, Pod], times: int) -> None:
        for pod in running.values():
            exchange.datagrams(pod.end(), internet, [1000] * 10, [500] * 10)
        expected = {
            Column("default", name, way): Tally(bytes=times * 10 * size, packets=times * 10)
            for name in names
            for way, size in zip(counting.WAYS, (1028, 528), strict=True)
        }
        wait_for(lambda: gained() == expected, f"the bytes of {times} talks", 30)

    talk(pods.run(installed, dict.fromkeys(names, NODE)), 1)
    node.lose_power()
    node.power_on()
    wait_for(node.containerd_answers, "containerd", 30)
    node.join()
    wait_for(partial(_runs_again, installed, names), "all pods, with new sandboxes", 120)
    running = {name: pods.started(installed, name) for name in names}
    assert pods.refusals(installed, "powered") == []
    addresses = [each for pod in running.values() for each in pod.addresses]
    assert len(set(addresses)) == PODS
    talk(running, 2)
    logs = "grep -rlF node-rebooted /var/log/pods"
    assert "/agent/" in node.machine.run("sh", "-c", logs), "the agent has seen another boot id"
    routes = installed.run_at(NODE, "ip", "-4", "route").splitlines()
    to_pods = [line.split()[0] for line in routes if " dev nm" in line]
    sandboxes = node.machine.run("ls", "/run/netns").split()
    assert sorted(to_pods) == sorted(map(str, addresses))
    assert netmgr.links(installed, NODE) == netmgr.leases(installed, NODE) == PODS
    assert len(sandboxes) == PODS
    pods.delete(installed, names)
