"""What is wrong with a cluster: each state is made on purpose, told by `netmgr status --cluster`,
by the Node's condition and by an alert, and mended by the printed remedy alone.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pytest

from netmgr.kube.controller.nodes import STARTUP_TAINT
from tests.e2e import netmgr, network, pods
from tests.e2e.cluster import Cluster, wait_for
from tests.kernel.scraped import Prometheus, scraping
from tests.kubernetes.control_plane import Object

pytestmark = [pytest.mark.root, pytest.mark.e2e, pytest.mark.timeout(900)]

VARIANTS: dict[str, dict[str, object]] = {
    "iptables": {"proxy_mode": "iptables", "with_containerd_2": ("node-2",)},
    "nftables": {"proxy_mode": "nftables", "with_containerd_2": ("node-1",)},
}
"""Both modes of kube-proxy; the node that is broken has either containerd."""

NODE, OTHER = network.NODES
POD_CIDR_LENGTH = 28
POD_CIDR_ADDRESSES = 16
LABEL = "node-restriction.kubernetes.io/netmgr-controller"
CONTROLLER_PORT = 9121

SECONDS_TO_BE_TOLD = 15
"""In which `status --cluster` names what is wrong: what is promised."""

SECONDS = 120
"""For the condition and the alert, and until nothing tells it any more."""


@pytest.fixture(scope="module", params=sorted(VARIANTS))
def options(request: pytest.FixtureRequest) -> dict[str, object]:
    return VARIANTS[request.param] | {"pod_cidr_length": POD_CIDR_LENGTH}


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Cluster:
    # There is no control plane among the nodes.
    cluster.label(OTHER, LABEL)
    settings = {"pool": {"cooldown_seconds": 5}}
    folder = netmgr.overlay(cluster, "flat", components=("node-health",), node_yaml=settings)
    netmgr.apply(cluster, folder)
    netmgr.roll_out(cluster)
    wait_for(cluster.nodes_are_ready, "Ready Nodes", 60)
    wait_for(lambda: not errors(cluster), "a healthy cluster", SECONDS)
    return cluster


@pytest.fixture(scope="module")
def prometheus(
    installed: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    nodes = [f"{network.address(node)}:{netmgr.EXPORTER_PORT}" for node in network.NODES]
    controllers = [f"{network.address(OTHER)}:{CONTROLLER_PORT}"]
    folder = tmp_path_factory.mktemp("prometheus")
    with scraping(installed.namespace(network.FABRIC), nodes, folder, controllers) as started:
        started.wait_for("count(netmgr_up) == 2", bool)
        yield started


def errors(cluster: Cluster) -> list[Object]:
    """What `netmgr status --cluster` calls an error."""
    config = cluster.plane.kubeconfig()
    netns = f"--net={cluster.namespace(network.CONTROL_PLANE)}"
    command = [sys.executable, "-m", "netmgr", "status", "--cluster", "--kubeconfig", str(config)]
    ended = subprocess.run(
        ["nsenter", netns, *command, "-o", "json"], check=False, capture_output=True, text=True
    )
    assert ended.stdout, ended.stderr
    findings = json.loads(ended.stdout)["findings"]
    return [finding for finding in findings if finding["severity"] == "error"]


def error_about(cluster: Cluster, words: str) -> Object | None:
    """The first error whose message has these words."""
    return next((error for error in errors(cluster) if words in error["message"]), None)


def condition(cluster: Cluster, node: str) -> tuple[str, str]:
    """Status and reason of a Node's NetmgrHealthy."""
    conditions = cluster.plane.ask("GET", f"/api/v1/nodes/{node}")["status"]["conditions"]
    healthy = next((each for each in conditions if each["type"] == "NetmgrHealthy"), None)
    return (healthy["status"], healthy["reason"]) if healthy else ("", "")


@dataclass(frozen=True)
class State:
    """What is wrong, and by which words, condition and alert it is told.

    `mend` does what the finding says, and no more.
    """

    broken: Callable[[Cluster], None]
    words: str
    mend: Callable[[Cluster, Object], None]
    alert: str
    reason: str = ""
    """The condition's; empty for what is no Node's."""
    node: str = NODE
    tidy: Callable[[Cluster], None] | None = None
    """Removes what was made and is harmless, once it is mended."""


def run_commands(cluster: Cluster, finding: Object) -> None:
    """Run on the node the commands that are in brackets, or after `or: `."""
    message = finding["message"]
    said = message.partition("or: ")[2] or re.findall(r"\(([^()]*)\)", message)[-1]
    cluster.run_at(NODE, "sh", "-ec", said)


def put_a_configuration_in_front(cluster: Cluster) -> None:
    other = '{"cniVersion": "0.4.0", "name": "other", "type": "ptp"}'
    cluster.node(NODE).machine.write("/etc/cni/net.d/00-other.conf", other)


def move_it_away(cluster: Cluster, finding: Object) -> None:
    (path,) = re.findall(r"takes (\S+),", finding["message"])
    cluster.node(NODE).machine.run("mv", path, "/etc/cni/")


def fill_the_pool(cluster: Cluster) -> None:
    for number in range(POD_CIDR_ADDRESSES + 1):
        pods.create(cluster, f"fill-{number}", NODE)
    wait_for(partial(_waits_for_an_address, cluster), "a pod that waits for an address", SECONDS)


def _waits_for_an_address(cluster: Cluster) -> bool:
    events = cluster.plane.ask("GET", "/api/v1/namespaces/default/events")["items"]
    return any("address is free" in event.get("message", "") for event in events)


def start_fewer_pods(cluster: Cluster, _: Object) -> None:
    pods.delete(cluster, [f"fill-{number}" for number in range(POD_CIDR_ADDRESSES + 1)])


def shadow_a_route(cluster: Cluster) -> None:
    (pod_cidr,) = cluster.pod_cidrs(OTHER)
    shadow = pod_cidr.replace("/28", "/30")
    cluster.run_at(NODE, "ip", "route", "add", shadow, "via", str(network.gateway()))


def replace_a_route(cluster: Cluster) -> None:
    (pod_cidr,) = cluster.pod_cidrs(OTHER)
    cluster.run_at(NODE, "ip", "route", "replace", pod_cidr, "via", str(network.gateway()))


def drop_what_is_forwarded(cluster: Cluster) -> None:
    table = "add table ip fw; add chain ip fw f { type filter hook forward priority 0; }"
    cluster.run_at(NODE, "nft", f"{table}; add rule ip fw f drop")


def remove_the_table(cluster: Cluster) -> None:
    cluster.run_at(NODE, "nft", "delete table ip fw")


def withdraw_addresses(cluster: Cluster) -> None:
    pods.run(cluster, {"left": NODE})
    before = cluster.pod_cidrs(NODE)
    cluster.plane.kubectl("delete", "node", NODE, "--wait=false")
    node = cluster.node(NODE)
    node.stop_kubelet()
    node.start_kubelet(registerWithTaints=[{"key": STARTUP_TAINT, "effect": "NoSchedule"}])
    wait_for(partial(_is_registered_again, cluster, before), "other podCIDRs", 60)


def _is_registered_again(cluster: Cluster, before: list[str]) -> bool:
    status, text = cluster.plane.answer("GET", f"/api/v1/nodes/{NODE}")
    cidrs = json.loads(text)["spec"].get("podCIDRs", []) if status == 200 else []
    return bool(cidrs) and cidrs != before


def delete_the_pods(cluster: Cluster, finding: Object) -> None:
    named = re.findall(r" of (?:default/)?([a-z0-9-]+)[,;]", finding["message"])
    assert named == ["left"], finding["message"]
    pods.delete(cluster, named)


def register_a_phantom(cluster: Cluster) -> None:
    (pod_cidr,) = cluster.pod_cidrs(NODE)
    spec = {"podCIDR": pod_cidr, "podCIDRs": [pod_cidr]}
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "phantom"}, "spec": spec}
    cluster.plane.ask("POST", "/api/v1/nodes", body)


def delete_the_phantom(cluster: Cluster, finding: Object) -> None:
    (command,) = re.findall(r"kubectl (delete node \S+);", finding["remedy"])
    cluster.plane.kubectl(*command.split())


def leave_controllers_no_node(cluster: Cluster) -> None:
    cluster.plane.kubectl("label", "node", OTHER, f"{LABEL}-")
    select = "app.kubernetes.io/component=controller"
    cluster.plane.kubectl("-n", "netmgr", "delete", "pods", "-l", select)


def label_a_node(cluster: Cluster, finding: Object) -> None:
    command = finding["remedy"].removeprefix("kubectl ").replace("NODE", OTHER)
    cluster.plane.kubectl(*command.split())


def problem(reason: str) -> str:
    return f'ALERTS{{alertname="NetmgrNodeProblem", reason="{reason}"}}'


def alert(name: str) -> str:
    return f'ALERTS{{alertname="{name}"}}'


STATES = {
    "a configuration in front": State(
        put_a_configuration_in_front,
        "PluginNotFound: the runtime takes ",
        move_it_away,
        problem("PluginNotFound"),
        "PluginNotFound",
    ),
    "a route shadowed": State(
        shadow_a_route, "RoutesWrong: ", run_commands, problem("RoutesWrong"), "RoutesWrong"
    ),
    "a route replaced": State(
        replace_a_route, "RoutesWrong: ", run_commands, problem("RoutesWrong"), "RoutesWrong"
    ),
    "a rule that drops": State(
        drop_what_is_forwarded,
        "ForwardDropped: ",
        run_commands,
        problem("ForwardDropped"),
        "ForwardDropped",
        tidy=remove_the_table,
    ),
    "a pool used up": State(
        fill_the_pool,
        "AddressesUsedUp: ",
        start_fewer_pods,
        problem("AddressesUsedUp"),
        "AddressesUsedUp",
    ),
    "addresses withdrawn": State(
        withdraw_addresses,
        "AddressesWithdrawn: ",
        delete_the_pods,
        problem("AddressesWithdrawn"),
        "AddressesWithdrawn",
    ),
    "two Nodes with one range": State(
        register_a_phantom,
        f"its pods and those of Node {NODE} have the same addresses",
        delete_the_phantom,
        alert("NetmgrNodesShareRanges"),
        "RangesShared",
        node="phantom",
    ),
    "no controller": State(
        leave_controllers_no_node,
        f"no Node has the label {LABEL}",
        label_a_node,
        alert("NetmgrControllerNotLed"),
    ),
}


@contextmanager
def timed(capsys: pytest.CaptureFixture[str], what: str) -> Iterator[None]:
    begin = time.monotonic()
    yield
    with capsys.disabled():
        sys.stdout.write(f"\n{what}: {time.monotonic() - begin:.1f} s")


@pytest.mark.parametrize("name", STATES)
def test_what_is_wrong_is_told_everywhere_until_its_remedy_was_followed(
    installed: Cluster, prometheus: Prometheus, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    state = STATES[name]
    state.broken(installed)
    with timed(capsys, f"{name}: in status --cluster"):
        finding = wait_for(
            partial(error_about, installed, state.words), state.words, SECONDS_TO_BE_TOLD
        )
    if state.reason:
        expected = ("False", state.reason)
        wait_for(lambda: condition(installed, state.node) == expected, "the condition", SECONDS)
    wait_for(lambda: prometheus.query(state.alert), state.alert, SECONDS)

    state.mend(installed, finding)
    with timed(capsys, f"{name}: gone from status --cluster"):
        wait_for(lambda: not errors(installed), "a healthy cluster", SECONDS)
    wait_for(lambda: condition(installed, NODE)[0] == "True", "the condition's end", SECONDS)
    wait_for(lambda: not prometheus.query(state.alert), f"the end of {state.alert}", SECONDS)
    if state.tidy:
        state.tidy(installed)
