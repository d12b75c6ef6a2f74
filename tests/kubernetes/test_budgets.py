"""Budgets of a cluster: an API server's tokens, and controllers as the manifests have them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from exporter.reporting import ServerConnection
from netmgr.budgets import messages
from netmgr.budgets.identity import AUDIENCE
from netmgr.budgets.messages import BudgetReport, BudgetUse
from tests.fakes.authority import Authority
from tests.kubernetes import manifests
from tests.kubernetes.control_plane import ControlPlane, Object, free_ports
from tests.kubernetes.controllers import (
    AGENTS,
    Program,
    Start,
    add_nodes,
    add_pods,
    agent_pod,
    node,
)
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("no_nodes")]

NAMESPACE = "research-1"
DOCUMENT = f"""
apiVersion: netmgr.io/v1alpha1
kind: Budgets
budgets:
  - {{name: everyone, namespaces: ["*"], internet-in: 10G}}
  - {{name: some, within: everyone, namespaces: [{NAMESPACE}], internet-in: 1G, per-day: 10M}}
"""
STATE = "/api/v1/namespaces/netmgr-claims/configmaps/netmgr-budgets"
EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"


@dataclass
class Serving:
    """A controller with budgets."""

    program: Program
    address: tuple[str, int]
    authority: Authority

    def report(self, token: str, **changed: Any) -> tuple[int, dict[str, Any]]:
        own: dict[str, Any] = {"epoch": 0, "boot": "boot", "version": "", "uses": {}}
        own |= {"sequence": time.monotonic_ns()}
        return self.ask(
            "POST", messages.PATH, messages.encode(BudgetReport(**(own | changed))), token
        )

    def ask(
        self, method: str, path: str, body: bytes = b"", token: str = ""
    ) -> tuple[int, dict[str, Any]]:
        connection = ServerConnection(self.address, self.authority.client())
        connection.timeout = PATIENCE
        connection.request(method, path, body, {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        answer = response.status, json.loads(response.read())
        connection.close()
        return answer

    def status(self, token: str) -> int:
        """That of the answer to a report; 0 while nobody answers."""
        with suppress(OSError, HTTPException):
            return self.report(token)[0]
        return 0

    def leads(self, token: str) -> bool:
        return self.status(token) == HTTPStatus.OK


@dataclass
class Budgets:
    plane: ControlPlane
    start: Start
    folder: Path
    authority: Authority

    def serve(self) -> Serving:
        (port, metrics) = free_ports(2)
        program = self.start(
            f"--budgets={self.folder / 'budgets.yaml'}",
            f"--budgets-listen=127.0.0.1:{port}",
            f"--budgets-tls={self.authority.certify(messages.SERVER_NAME)}",
            "--agent-namespace=netmgr",
            "--lease-seconds=5",
            port=metrics,
        )
        return Serving(program, ("127.0.0.1", port), self.authority)

    def lead(self) -> tuple[Serving, str]:
        """A controller once it leads, and a token of node-1's agent."""
        server, token = self.serve(), self.token()
        eventually(lambda: server.leads(token))
        return server, token

    def write(self, text: str) -> None:
        new = self.folder / "new.yaml"
        new.write_text(text)
        new.replace(self.folder / "budgets.yaml")

    def token(
        self, pod: str = "agent-node-1", account: str = "netmgr-node", audience: str = AUDIENCE
    ) -> str:
        """What the kubelet projects into a pod."""
        spec: Object = {"audiences": [audience], "expirationSeconds": 600}
        if pod:
            uid = self.plane.ask("GET", f"{AGENTS}/{pod}")["metadata"]["uid"]
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/netmgr/serviceaccounts/{account}/token"
        return str(self.plane.ask("POST", path, body)["status"]["token"])

    @property
    def epoch(self) -> int:
        return int(json.loads(self.plane.ask("GET", STATE)["data"]["state.json"])["epoch"])


@pytest.fixture
def budgets(installed: ControlPlane, start: Start, tmp_path: Path) -> Iterator[Budgets]:
    add_nodes(installed, [node("node-1"), node("node-2")])
    add_pods(installed, [agent_pod(f"agent-{name}", name) for name in ("node-1", "node-2")])
    made = Budgets(installed, start, tmp_path, Authority(tmp_path))
    made.write(DOCUMENT)
    with manifests.granted(installed, "budgets", NAMESPACE):
        yield made
    installed.answer("DELETE", STATE)


def test_a_projected_token_of_an_agent_speaks_for_its_node_and_no_other_token_does(
    budgets: Budgets,
) -> None:
    server, own = budgets.lead()
    # Each for itself: nothing in a report names its node.
    first = server.report(own, sequence=10**18)
    assert first[0] == HTTPStatus.OK
    assert server.report(own, sequence=10**18)[0] == HTTPStatus.CONFLICT
    assert server.report(budgets.token("agent-node-2"), sequence=10**18)[0] == HTTPStatus.OK
    pod = agent_pod("another", "node-1")
    pod["spec"]["serviceAccountName"] = "netmgr-controller"
    add_pods(budgets.plane, [pod])
    api = "https://kubernetes.default.svc"
    refused = {
        "audience": budgets.token(audience=api),
        "account": budgets.token("another", "netmgr-controller"),
        "node": budgets.token(pod=""),
        "token": f"{own[:-8]}AAAAAAAA",
        "": "",
    }
    for token in refused.values():
        assert server.report(token)[0] == HTTPStatus.UNAUTHORIZED
    figures = server.program.figures()
    for reason in filter(None, refused):
        assert f'netmgr_controller_budget_reports_total{{outcome="{reason}"}}' in figures
    # The other way round, the API server takes no token for this audience.
    status, _ = budgets.plane.answer("GET", "/api", token=own)
    assert status == HTTPStatus.UNAUTHORIZED


def test_a_machine_without_a_node_object_is_heard_but_its_pods_count_for_none(
    budgets: Budgets,
) -> None:
    server, own = budgets.lead()
    add_pods(budgets.plane, [agent_pod("agent-ghost", "ghost")])
    use = BudgetUse(10**6, 10**6, 50, 0, 0, 0, 0)
    uses = {"everyone": use, "some": use}
    for token in (own, budgets.token("agent-ghost")):
        assert server.report(token, uses=uses)[0] == HTTPStatus.OK
    # Those of the Node alone, each as often as they are held back.
    waiting = 'netmgr_controller_budget_waiting_pods{budget="everyone"} 50.0'
    eventually(lambda: waiting in server.program.figures())


def test_the_follower_names_the_leader_whose_end_makes_a_greater_epoch(budgets: Budgets) -> None:
    first, token = budgets.lead()
    before = budgets.epoch
    second = budgets.serve()
    eventually(lambda: second.status(token) == HTTPStatus.MISDIRECTED_REQUEST)
    named = f"127.0.0.1:{first.address[1]}"
    eventually(lambda: second.report(token)[1].get("leader") == named)
    first.program.kill()
    eventually(lambda: second.leads(token))
    assert budgets.epoch > before
    assert second.report(token)[1]["epoch"] == budgets.epoch


def test_a_changed_document_reaches_nodes_and_a_wrong_one_changes_nothing(budgets: Budgets) -> None:
    server, token = budgets.lead()

    def names() -> list[str]:
        return [budget["name"] for budget in server.report(token)[1]["budgets"]]

    assert names() == ["everyone", "some"]
    budgets.write(DOCUMENT.replace("name: some", "name: others"))
    eventually(lambda: names() == ["everyone", "others"])
    budgets.write(DOCUMENT.replace("within: everyone", "within: nobody"))
    eventually(lambda: "netmgr_controller_budgets_refused 1.0" in server.program.figures())
    assert names() == ["everyone", "others"]
    assert "there is no budget nobody" in server.program.said
    budgets.write(DOCUMENT)
    eventually(lambda: names() == ["everyone", "some"])


@pytest.mark.parametrize("text", ["", "kind: Budgets\n"])
def test_a_controller_without_a_usable_document_does_its_other_work(
    budgets: Budgets, text: str
) -> None:
    if text:
        budgets.write(text)
    else:
        (budgets.folder / "budgets.yaml").unlink()
    server = budgets.serve()
    eventually(lambda: "netmgr_controller_leader 1.0" in server.program.figures())
    token = budgets.token()
    eventually(lambda: server.status(token) == HTTPStatus.MISDIRECTED_REQUEST)
    budgets.write(DOCUMENT)
    eventually(lambda: server.leads(token))


def test_a_damaged_state_is_reported_and_waits_for_its_removal(budgets: Budgets) -> None:
    metadata = {"name": "netmgr-budgets"}
    body = {"kind": "ConfigMap", "metadata": metadata, "data": {"state.json": "{"}}
    budgets.plane.ask("POST", STATE.rpartition("/")[0], body)
    server = budgets.serve()
    eventually(lambda: "ConfigMap netmgr-budgets cannot be read" in server.program.said)
    token = budgets.token()
    assert not server.leads(token)
    budgets.plane.ask("DELETE", STATE)
    eventually(lambda: server.leads(token))


def test_a_quota_that_is_nearly_spent_is_an_event_of_its_namespaces(budgets: Budgets) -> None:
    server, token = budgets.lead()

    allowed = 0

    def has_used(most: int) -> bool:
        """Whether the node, which may pass what each answer lends it, has used so much."""
        nonlocal allowed
        day, used = int(time.time() // 86_400), min(most, allowed)
        whole = BudgetUse(10**6, 10**6, 0, 10**6, day, 0, 0)
        uses = {"everyone": whole, "some": replace(whole, bytes=used, allowance=allowed)}
        status, answer = server.report(token, uses=uses)
        assert status == HTTPStatus.OK
        allowed = answer["grants"]["some"]["allowance"]
        return used == most

    def events() -> dict[str, Object]:
        items = budgets.plane.ask("GET", EVENTS)["items"]
        return {item["reason"]: item for item in items}

    eventually(lambda: has_used(8_000_000))
    eventually(lambda: 'of="used"} 8e+06' in server.program.figures())
    assert events() == {}
    eventually(lambda: has_used(9_500_000))
    eventually(events)
    (event,) = events().values()
    about = event["involvedObject"]
    assert (about["kind"], about["name"], event["reason"]) == (
        "Namespace",
        NAMESPACE,
        "BudgetNearQuota",
    )
    assert "some has used 9500000 of 10000000 bytes of internet-in a day" in event["message"]
    # Nodes never get all of it.
    eventually(lambda: has_used(9_950_000))
    eventually(lambda: "BudgetQuotaSpent" in events())
    assert "further packets are dropped until midnight" in events()["BudgetQuotaSpent"]["message"]
