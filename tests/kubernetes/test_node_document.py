"""`netmgr kube node`, the init container: one request, one document, or a clear error and nothing
at all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from netmgr.documents import loader
from netmgr.documents.node import Backend, NodeDocument
from netmgr.kube.allocations import NodeAllocation, NodeIndex
from tests.kubernetes import manifests
from tests.kubernetes.control_plane import ControlPlane, Object
from tests.kubernetes.controllers import Starter, add_nodes, node
from tests.lab.topology import cluster
from tests.lab.world import World

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("no_nodes")]

HEAD = "apiVersion: netmgr.io/v1alpha1\nkind: Node\n"
SITES = """
site: train
sites:
  - {name: hub, prefixes: [10.200.0.0/16]}
  - {name: train, prefixes: [10.0.0.0/12, "fd00:10::/48"]}
"""
OVERLAYS = manifests.HERE / "overlays"
Outcome = subprocess.CompletedProcess[str]
Render = Callable[..., Outcome]


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "etc" / "node.yaml"


@pytest.fixture
def render(installed: ControlPlane, starter: Starter, tmp_path: Path, to: Path) -> Render:
    account = starter.account("netmgr", "netmgr-node")

    def run(template: str, name: str = "a") -> Outcome:
        to.parent.mkdir(exist_ok=True)
        (tmp_path / "template.yaml").write_text(template)
        command = [
            sys.executable,
            "-m",
            "netmgr",
            "kube",
            "node",
            f"--template={tmp_path / 'template.yaml'}",
        ]
        environment = {
            k: v for k, v in os.environ.items() if k != "KUBECONFIG"
        } | installed.environment
        return subprocess.run(
            [*command, f"--to={to}", f"--service-account={account}", "--wait=1"],
            env=environment | {"NODE_NAME": name},
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def register(
    plane: ControlPlane, name: str, addresses: list[str], cidrs: list[str], **annotations: str
) -> None:
    spec: Object = {"podCIDR": cidrs[0], "podCIDRs": cidrs} if cidrs else {}
    made = node(name, **spec)
    made["metadata"]["annotations"] = {
        f"netmgr.io/{key}": value for key, value in annotations.items()
    }
    add_nodes(plane, [made])
    entries = [{"type": "InternalIP", "address": address} for address in addresses]
    status = {"status": {"addresses": [*entries, {"type": "Hostname", "address": name}]}}
    plane.ask("PATCH", f"/api/v1/nodes/{name}/status", status, kind="merge-patch+json")


def events_of(plane: ControlPlane, name: str) -> str:
    path = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name}"
    return " ".join(
        f"{event['reason']}: {event['message']}" for event in plane.ask("GET", path)["items"]
    )


def test_one_request_makes_a_dual_stack_document(
    installed: ControlPlane, render: Render, to: Path
) -> None:
    register(installed, "a", ["10.0.0.4", "fd00:10::4"], ["10.1.0.0/27", "fd00:10:0:1::/112"])
    with installed.counted() as asked:
        outcome = render(HEAD + SITES + "node: {uplink: eth7}\nmtu: 1400\n")
    assert outcome.returncode == 0, outcome.stderr
    assert {
        key: count for key, count in asked.items() if key[1] in ("nodes", "events", "pods")
    } == {("GET", "nodes"): 1}
    found = loader.load(to, NodeDocument)
    assert found.node.name == "a"
    assert [str(address) for address in found.node.addresses] == ["10.0.0.4", "fd00:10::4"]
    assert (found.node.uplink, found.mtu, found.site) == ("eth7", 1400, "train")
    assert [str(prefix) for prefix in found.ranges] == ["10.1.0.0/27", "fd00:10:0:1::/112"]


@pytest.mark.parametrize(("pods", "is_reported"), [("110", True), ("32", False), ("16", False)])
def test_more_pods_than_addresses_are_an_event_and_in_the_document(
    installed: ControlPlane, render: Render, to: Path, pods: str, *, is_reported: bool
) -> None:
    register(installed, "a", ["10.0.0.4", "fd00:10::4"], ["10.1.0.0/27", "fd00:10:0:1::/112"])
    status = {"status": {"allocatable": {"pods": pods}}}
    installed.ask("PATCH", "/api/v1/nodes/a/status", status, kind="merge-patch+json")
    outcome = render(HEAD + SITES)
    assert outcome.returncode == 0, outcome.stderr
    assert loader.load(to, NodeDocument).node.max_pods == int(pods)
    said = "MorePodsThanAddresses: the kubelet takes 110 pods, and the Node's ranges have 32"
    assert (said in events_of(installed, "a")) is is_reported


def test_outside_a_pod_a_kubeconfig_says_whom_to_ask(
    installed: ControlPlane, to: Path, tmp_path: Path
) -> None:
    register(installed, "a", ["10.0.0.4"], ["10.1.0.0/27"])
    token = installed.token("netmgr", "netmgr-node")
    installed.write_kubeconfig(tmp_path / "config", node=token)
    (tmp_path / "broken").write_text("kind: [")
    (tmp_path / "template.yaml").write_text(HEAD)
    to.parent.mkdir()
    command = [
        "kube",
        "node",
        "--node-name=a",
        f"--template={tmp_path / 'template.yaml'}",
        f"--to={to}",
    ]
    environment = {k: v for k, v in os.environ.items() if k != "KUBECONFIG"}
    for option, code in (
        (f"--kubeconfig={tmp_path / 'config'}", 0),
        (f"--kubeconfig={tmp_path / 'broken'}", 2),
        (f"--service-account={tmp_path}", 2),
    ):
        outcome = subprocess.run(
            [sys.executable, "-m", "netmgr", *command, option],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
        )
        assert outcome.returncode == code, outcome.stderr
    assert "give --kubeconfig" in outcome.stderr
    assert loader.load(to, NodeDocument).node.name == "a"


@pytest.mark.parametrize(
    ("template", "address", "cidrs"),
    [
        ("cni/node.yaml", "10.0.0.4", ["10.1.0.0/27"]),
        ("observer/node.yaml", "10.0.0.4", []),
        ("nat-host/node.yaml", "10.0.0.4", []),
        ("openai-like/node.yaml", "10.224.0.4", []),
        ("openai-like/nat-host.yaml", "10.224.0.5", []),
    ],
)
def test_the_templates_of_the_manifests_become_documents(
    installed: ControlPlane, render: Render, to: Path, template: str, address: str, cidrs: list[str]
) -> None:
    register(installed, "a", [address], cidrs)
    outcome = render((OVERLAYS / template).read_text())
    assert outcome.returncode == 0, outcome.stderr
    found = loader.load(to, NodeDocument)
    assert [str(prefix) for prefix in found.ranges] == cidrs
    assert [str(each) for each in found.node.addresses] == [address]


@pytest.mark.parametrize(
    ("cidrs", "template", "said"),
    [
        ([], HEAD, "Node a has no podCIDRs yet"),
        (["10.64.0.0/27"], HEAD + SITES, "10.64.0.0/27 lies in no prefix of train"),
        (["10.1.0.0/27"], HEAD + "node: [b]\n", "node is not a mapping"),
        (["10.1.0.0/27"], HEAD + "colour: blue\n", "colour: unknown key"),
        ([], HEAD + "cni: perhaps\n", "cni: "),
        (["10.1.0.0/27"], "{", "is not YAML"),
        (["10.0.0.0/27"], HEAD, "holds the node's own address 10.0.0.4"),
    ],
)
def test_what_is_wrong_is_told_in_the_log_and_on_the_node_and_nothing_is_written(
    installed: ControlPlane,
    render: Render,
    to: Path,
    cidrs: list[str],
    template: str,
    said: str,
) -> None:
    register(installed, "a", ["10.0.0.4"], cidrs)
    to.parent.mkdir()
    to.write_text("the one before")
    outcome = render(template)
    assert outcome.returncode == 2
    assert said in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert said in events_of(installed, "a")
    assert [path.read_text() for path in to.parent.iterdir()] == ["the one before"]


def test_what_stays_wrong_is_told_again_by_the_same_event(
    installed: ControlPlane, render: Render, to: Path
) -> None:
    register(installed, "a", ["10.0.0.4"], [])
    outcomes = [render(HEAD) for _ in range(2)]
    assert [outcome.returncode for outcome in outcomes] == [2, 2]
    assert "no Event" not in outcomes[1].stderr
    assert events_of(installed, "a").count("NodeDocumentRefused") == 1
    assert list(to.parent.iterdir()) == []


def test_a_node_without_an_address_of_its_own_is_waited_for(
    installed: ControlPlane, render: Render, to: Path
) -> None:
    """So a kubelet registers it for an external cloud provider, which says its addresses some
    seconds later.
    """
    register(installed, "a", [], ["10.1.0.0/27"])
    outcome = render(HEAD)
    assert outcome.returncode == 2
    assert "Node a has no InternalIP yet" in outcome.stderr
    assert "Node a has no InternalIP yet" in events_of(installed, "a")
    assert not to.exists()
    told = {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.4"}]}}
    installed.ask("PATCH", "/api/v1/nodes/a/status", told, kind="merge-patch+json")
    assert render(HEAD).returncode == 0
    assert [str(address) for address in loader.load(to, NodeDocument).node.addresses] == [
        "10.0.0.4"
    ]


def test_without_a_node_object_the_error_names_it(render: Render, to: Path) -> None:
    outcome = render(HEAD, "nobody")
    assert outcome.returncode == 2
    assert "there is no Node 'nobody'" in outcome.stderr
    assert not to.exists()


def test_a_server_that_is_away_is_asked_again_for_a_while(
    installed: ControlPlane, render: Render, to: Path
) -> None:
    installed.stop_server()
    try:
        outcome = render(HEAD)
    finally:
        installed.start_server()
    assert outcome.returncode == 1
    assert "no answer" in outcome.stderr
    assert "try again" in outcome.stderr
    assert not to.exists()


@pytest.mark.root
def test_an_agent_start_costs_one_request_and_pods_cost_none(
    installed: ControlPlane, render: Render, to: Path
) -> None:
    quiet = replace(cluster(pods=100), pods=())
    with World(quiet, backend=Backend.NFTABLES, name=f"test-{os.getpid()}-api") as world:
        lab_node = world.node("node-1")
        planned = next(each for each in quiet.nodes if each.host == "node-1")
        allocation = NodeAllocation.of(NodeIndex("lab", 0), planned.ranges)
        cidrs, ranges = list(map(str, allocation.cidrs)), allocation.annotation
        register(installed, "node-1", list(map(str, planned.addresses)), cidrs, ranges=ranges)
        lab_node.stop_agent()
        here = (
            f"state_dir: {lab_node.directory / 'state'}\nrun_dir: "
            f"{lab_node.run_dir}\nreader_group: nogroup\n"
        )
        with installed.counted() as asked:
            assert render(HEAD + here, "node-1").returncode == 0
            lab_node.document.write_text(to.read_text())
            lab_node.start_agent()
            lab_node.wait_until_ready()
        assert {key: number for key, number in asked.items() if key[1] in SEEN} == {
            ("GET", "nodes"): 1
        }
        with installed.counted() as asked:
            for number in range(8):
                sandbox = lab_node.add(f"pod-{number}")
                assert any(block.holds(sandbox.address(block.family)) for block in planned.ranges)
                lab_node.runtime.delete(sandbox)
        assert not [key for key in asked if key[1] in SEEN]
        installed.stop_server()
        try:
            lab_node.runtime.delete(lab_node.add("while-the-server-is-away"))
        finally:
            installed.start_server()


SEEN = ("nodes", "pods", "services", "endpointslices", "events", "namespaces")
"""What an agent could be tempted to ask for."""
