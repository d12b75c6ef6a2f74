"""`netmgr kube node`, the init container: one request, one document, or a clear error and nothing
at all.
"""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from netmgr.documents import loader
from netmgr.documents.node import Backend, NodeDocument
from netmgr.kube.controller.allocations import NodeAllocation, NodeIndex
from netmgr.kube.controller.node_document import pod_cidr
from netmgr.plan import machines
from tests.fuzz.of_cluster import go_takes
from tests.kubernetes.control_plane import ControlPlane, Object
from tests.kubernetes.controllers import (
    MERGE,
    Start,
    Starter,
    add_nodes,
    events_of,
    lock_of,
    node,
    pod_cidrs,
    write_plan,
)
from tests.lab.topology import cluster
from tests.lab.world import World
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("no_nodes")]

HEAD = "apiVersion: netmgr.io/v1alpha1\nkind: Node\n"
SITES = """
site: train
sites:
  - {name: hub, prefixes: [10.200.0.0/16]}
  - {name: train, prefixes: [10.0.0.0/12, "fd00:10::/48"]}
"""
SEEN = ("nodes", "pods", "services", "endpointslices", "events", "namespaces")
"""What an agent could be tempted to ask for."""

Outcome = subprocess.CompletedProcess[str]
Render = Callable[..., Outcome]


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "etc" / "node.yaml"


@pytest.fixture
def render(installed: ControlPlane, starter: Starter, tmp_path: Path, to: Path) -> Render:
    account = starter.account("netmgr", "netmgr-node")

    def run(template: str, name: str = "a", wait: float = PATIENCE) -> Outcome:
        to.parent.mkdir(exist_ok=True)
        path = tmp_path / "template.yaml"
        path.write_text(template)
        options = (f"--template={path}", f"--to={to}", f"--service-account={account}")
        command = ("kube", "node", *options, f"--wait={wait}")
        return netmgr(*command, **installed.environment, NODE_NAME=name)

    return run


def netmgr(*arguments: str, **environment: str) -> Outcome:
    """A command, as a person or an init container runs it."""
    kept = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    return subprocess.run(
        [sys.executable, "-m", "netmgr", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        env=kept | environment,
    )


def register(
    plane: ControlPlane, name: str, addresses: list[str], cidrs: list[str], **annotations: str
) -> None:
    spec: Object = {"podCIDR": cidrs[0], "podCIDRs": cidrs} if cidrs else {}
    made = node(name, **spec)
    own = {f"netmgr.io/{key}": value for key, value in annotations.items()}
    made["metadata"]["annotations"] = own
    add_nodes(plane, [made])
    entries = [{"type": "InternalIP", "address": address} for address in addresses]
    status = {"status": {"addresses": [*entries, {"type": "Hostname", "address": name}]}}
    plane.ask("PATCH", f"/api/v1/nodes/{name}/status", status, kind=MERGE)


def said_by_events(plane: ControlPlane, name: str) -> str:
    events = events_of(plane, name)
    return " ".join(f"{reason}: {event['message']}" for reason, event in events.items())


def test_one_request_makes_a_dual_stack_document(
    installed: ControlPlane, render: Render, to: Path
) -> None:
    register(installed, "a", ["10.0.0.4", "fd00:10::4"], ["10.1.0.0/27", "fd00:10:0:1::/112"])
    with installed.counted() as asked:
        outcome = render(HEAD + SITES + "node: {uplink: eth7}\nmtu: 1400\n")
    assert outcome.returncode == 0, outcome.stderr
    assert {key: number for key, number in asked.items() if key[1] in SEEN} == {("GET", "nodes"): 1}
    found = loader.load(to, NodeDocument)
    assert found.node.name == "a"
    assert [str(address) for address in found.node.addresses] == ["10.0.0.4", "fd00:10::4"]
    assert (found.node.uplink, found.mtu, found.site) == ("eth7", 1400, "train")
    assert [str(prefix) for prefix in found.ranges] == ["10.1.0.0/27", "fd00:10:0:1::/112"]


@pytest.mark.parametrize(("pods", "is_reported"), [("110", True), ("32", False)])
def test_more_pods_than_addresses_are_an_event_and_in_the_document(
    installed: ControlPlane, render: Render, to: Path, pods: str, *, is_reported: bool
) -> None:
    register(installed, "a", ["10.0.0.4", "fd00:10::4"], ["10.1.0.0/27", "fd00:10:0:1::/112"])
    status = {"status": {"allocatable": {"pods": pods}}}
    installed.ask("PATCH", "/api/v1/nodes/a/status", status, kind=MERGE)
    outcome = render(HEAD + SITES)
    assert outcome.returncode == 0, outcome.stderr
    assert loader.load(to, NodeDocument).node.max_pods == int(pods)
    said = "MorePodsThanAddresses: the kubelet takes 110 pods, and the Node's ranges have 32"
    assert (said in said_by_events(installed, "a")) is is_reported


def test_outside_a_pod_a_kubeconfig_says_whom_to_ask(
    installed: ControlPlane, to: Path, tmp_path: Path
) -> None:
    register(installed, "a", ["10.0.0.4"], ["10.1.0.0/27"])
    token = installed.token("netmgr", "netmgr-node")
    installed.write_kubeconfig(tmp_path / "config", node=token)
    (tmp_path / "broken").write_text("kind: [")
    template = tmp_path / "template.yaml"
    template.write_text(HEAD)
    to.parent.mkdir()
    for option, code in (
        (f"--kubeconfig={tmp_path / 'config'}", 0),
        (f"--kubeconfig={tmp_path / 'broken'}", 2),
        (f"--service-account={tmp_path}", 2),
    ):
        options = ("--node-name=a", f"--template={template}", f"--to={to}", option)
        outcome = netmgr("kube", "node", *options)
        assert outcome.returncode == code, outcome.stderr
    assert "give --kubeconfig" in outcome.stderr
    assert loader.load(to, NodeDocument).node.name == "a"


@pytest.mark.parametrize(
    ("cidrs", "template", "said"),
    [
        ([], HEAD, "Node a has no podCIDRs yet"),
        (["10.1.0.0/27"], "{", "is not YAML"),
        (["10.64.0.0/27"], HEAD + SITES, "10.64.0.0/27 lies in no prefix of train"),
    ],
)
def test_what_is_wrong_is_told_in_the_log_and_on_the_node_and_nothing_is_written(
    installed: ControlPlane, render: Render, to: Path, cidrs: list[str], template: str, said: str
) -> None:
    register(installed, "a", ["10.0.0.4"], cidrs)
    to.parent.mkdir()
    to.write_text("the one before")
    outcome = render(template)
    assert outcome.returncode == 2
    assert said in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert said in said_by_events(installed, "a")
    assert [path.read_text() for path in to.parent.iterdir()] == ["the one before"]


def test_a_node_without_an_address_of_its_own_is_waited_for_and_told_so_by_one_event(
    installed: ControlPlane, render: Render, to: Path
) -> None:
    """So a kubelet registers it for an external cloud provider, which says its addresses some
    seconds later.
    """
    register(installed, "a", [], ["10.1.0.0/27"])
    for _ in range(2):
        outcome = render(HEAD)
        assert outcome.returncode == 2
        assert "Node a has no InternalIP yet" in outcome.stderr
        assert "no Event" not in outcome.stderr
    (event,) = events_of(installed, "a").values()
    assert event["reason"] == "NodeDocumentRefused"
    assert "Node a has no InternalIP yet" in event["message"]
    assert list(to.parent.iterdir()) == []
    told = {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.4"}]}}
    installed.ask("PATCH", "/api/v1/nodes/a/status", told, kind=MERGE)
    assert render(HEAD).returncode == 0
    assert list(map(str, loader.load(to, NodeDocument).node.addresses)) == ["10.0.0.4"]


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
        outcome = render(HEAD, wait=1)
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
        state = lab_node.directory / "state"
        here = f"state_dir: {state}\nrun_dir: {lab_node.run_dir}\nreader_group: nogroup\n"
        with installed.counted() as asked:
            assert render(HEAD + here, "node-1").returncode == 0
            lab_node.document.write_text(to.read_text())
            lab_node.start_agent()
            lab_node.wait_until_ready()
        asked_for = {key: number for key, number in asked.items() if key[1] in SEEN}
        assert asked_for == {("GET", "nodes"): 1}
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


FORMS = (
    *("10.0.0.0/24", "010.000.1.0/24", "10.0.1.7/24", "10.0.0.0/024", "fd00::/64"),
    *("0000001::/64", "fd00::0001:0/112", "::ffff:10.0.0.0/120", "::ffff:010.0.0.0/120"),
    *("fd00::10.0.0.1/120", "fe80::%1/64", "10.0.0/24", "0x0a.0.0.0/24", "10.0.0.0/33"),
    *("::10000/112", "1:2:3:4:5:6:7::/64"),
)


def test_every_form_of_a_podcidr_that_an_api_server_takes_is_read(
    control_plane: ControlPlane,
) -> None:
    taken = []
    for number, form in enumerate(FORMS):
        body = node(f"n{number}", podCIDR=form, podCIDRs=[form])
        status, _ = control_plane.answer("POST", "/api/v1/nodes", body)
        if status < 300:
            taken.append(form)
    assert taken == [form for form in FORMS if go_takes(form)]
    for form in taken:
        assert ipaddress.ip_network(str(pod_cidr(form)))


POOLS = (
    "{gpu: {nodes: 3, pods_per_node: 31}, odd: {nodes: 2, pods_per_node: 40}, "
    "one: {nodes: 2, addressing: single}}"
)
NAMES = ("train-gpu-2", "train-odd-1", "train-one-0")


def test_a_node_of_a_plan_ends_up_with_the_document_that_the_plan_renders(
    installed: ControlPlane, start: Start, starter: Starter, tmp_path: Path
) -> None:
    """The whole way: a plan's lock, a controller, a Node, its init container."""
    plan = write_plan(tmp_path, POOLS, v6=True)
    lock = lock_of(plan)
    add_nodes(installed, (node(name, name.split("-")[1]) for name in NAMES))
    for name in NAMES:
        planned = machines.node_named(lock, name)
        assert planned is not None
        addresses = [{"type": "InternalIP", "address": str(address)} for address in planned.hosts]
        status = {"status": {"addresses": addresses}}
        installed.ask("PATCH", f"/api/v1/nodes/{name}/status", status, kind=MERGE)
    start(f"--plan={plan}")
    eventually(lambda: len(pod_cidrs(installed)) == len(NAMES))
    template = tmp_path / "template.yaml"
    template.write_text(netmgr("plan", "render", "template", "train", f"--file={plan}").stdout)
    account = starter.account("netmgr", "netmgr-node")
    for name in NAMES:
        to = tmp_path / f"{name}.yaml"
        options = (f"--template={template}", f"--to={to}", f"--service-account={account}")
        netmgr("kube", "node", *options, **installed.environment, NODE_NAME=name)
        expected = netmgr("plan", "render", "node", name, f"--file={plan}").stdout
        found = loader.load(to, NodeDocument)
        assert found.ranges_version > 0
        own = {"ranges_file": None, "ranges_version": 0}
        assert found.model_copy(update=own) == loader.parse(expected, name, NodeDocument)
