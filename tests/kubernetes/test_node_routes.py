"""The list of nodes that agents of a flat network read, by the manifests' account."""

from __future__ import annotations

import pytest
import yaml

from netmgr.dataplane.routes_to_nodes import decide
from netmgr.documents.node import NodeDocument
from netmgr.documents.node_list import ListedNode, parse
from netmgr.kernel.routes import Route
from netmgr.kube.controller.node_document import render
from netmgr.prefixes import Prefix
from tests.kubernetes import manifests
from tests.kubernetes.control_plane import ControlPlane, Object
from tests.kubernetes.controllers import MERGE, Start, add_nodes, events_of, node
from tests.waiting import eventually

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("no_nodes")]

PATH = "/api/v1/namespaces/netmgr/configmaps/netmgr-nodes"


@pytest.fixture
def start(installed: ControlPlane, start: Start) -> Start:
    """Starts a controller as the overlay `flat` does; the list is empty."""
    installed.ask("PATCH", PATH, {"data": None}, kind=MERGE)
    (deployment,) = [each for each in manifests.overlay("flat") if each["kind"] == "Deployment"]
    command = deployment["spec"]["template"]["spec"]["containers"][0]["command"]
    return lambda: start(*command[2:], "--listen=127.0.0.1:0")


def flat_node(number: int, cidr: str = "") -> Object:
    """A Node as a kubelet and kube-controller-manager make it, on the network 192.168.0.0/24."""
    cidrs = [cidr or f"10.244.{number}.0/24", f"fd00:10:{number}::/64"]
    made = node(f"flat-{number}", podCIDR=cidrs[0], podCIDRs=cidrs)
    addresses = [
        {"type": "Hostname", "address": f"flat-{number}"},
        {"type": "InternalIP", "address": f"192.168.0.{number}"},
        {"type": "InternalIP", "address": f"fd00::{number}"},
    ]
    return made | {"status": {"addresses": addresses}}


def listed(plane: ControlPlane) -> dict[str, ListedNode]:
    text = (plane.ask("GET", PATH).get("data") or {}).get("nodes.json")
    return {listed_node.name: listed_node for listed_node in parse(text)} if text else {}


def test_agents_of_the_overlay_learn_of_every_other_node_that_there_is(
    installed: ControlPlane, start: Start
) -> None:
    add_nodes(installed, [flat_node(1), flat_node(2), flat_node(3)])
    add_nodes(installed, [flat_node(5, "10.244.1.0/25")])
    running = start()
    eventually(lambda: listed(installed).keys() == {"flat-1", "flat-2", "flat-3"})
    # Who claims another one's range is left out.
    eventually(lambda: "NoRouteToNode" in events_of(installed, "flat-5"))
    message = events_of(installed, "flat-5")["NoRouteToNode"]["message"]
    assert "overlaps 10.244.1.0/24 of Node flat-1" in message
    template = yaml.safe_load((manifests.HERE / "overlays/flat/node.yaml").read_text())
    own = render(template, installed.ask("GET", "/api/v1/nodes/flat-1"))
    lan = [
        Route(Prefix.parse(each), 2, None, 2, 253, 0) for each in ("192.168.0.0/24", "fd00::/64")
    ]
    routes, refused = decide(listed(installed).values(), NodeDocument.model_validate(own), lan)
    assert not refused
    assert {(str(to), str(via)) for to, via in routes} == {
        ("10.244.2.0/24", "192.168.0.2"),
        ("10.244.3.0/24", "192.168.0.3"),
        ("fd00:10:2::/64", "fd00::2"),
        ("fd00:10:3::/64", "fd00::3"),
    }

    installed.ask("DELETE", "/api/v1/nodes/flat-3")
    eventually(lambda: listed(installed).keys() == {"flat-1", "flat-2"})
    (wanted,) = [
        each for each in manifests.overlay("flat") if each["metadata"]["name"] == "netmgr-nodes"
    ]
    manifests.apply(installed, wanted)
    assert listed(installed).keys() == {"flat-1", "flat-2"}, "applying again keeps the list"
    assert running.end() == 0
    again = start()
    add_nodes(installed, [flat_node(4)])
    eventually(lambda: "flat-4" in listed(installed))
    # It says so once the server has answered.
    eventually(lambda: "nodes-listed number=3" in again.said)
