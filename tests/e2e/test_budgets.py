"""`components/budgets` on two nodes, installed as docs/budgets.md says."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from pathlib import Path

import jwt
import pytest

from exporter.reporting import ServerConnection
from netmgr.budgets import messages
from netmgr.budgets.identity import AUDIENCE
from netmgr.budgets.messages import BudgetReport
from netmgr.budgets.terms import LEASE, OUTSTANDING
from tests.e2e import agents, lifecycle, netmgr, network, pods, quick_starts
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.pods import Pod
from tests.kernel.budgeted import Downloads
from tests.kernel.flows import MEGABIT
from tests.kubernetes.control_plane import Object
from tests.lab import exchange, wiring
from tests.lab.exchange import End

pytestmark = [pytest.mark.root, pytest.mark.e2e, pytest.mark.timeout(900)]

LIMIT = 20 * MEGABIT
SENT = 6_000_000
WITHOUT_PODS = "research"
DOCUMENT = f"""
apiVersion: netmgr.io/v1alpha1
kind: Budgets
budgets:
  - {{name: everyone, namespaces: ["*"], internet-in: 1G}}
  - {{name: some, within: everyone, namespaces: [default], internet-in: 20M}}
  - name: sent
    namespaces: [default, {WITHOUT_PODS}]
    internet-out: 100M
    per-day: 5M
    when-spent: 50M
"""
FILE = "/var/lib/netmgr-budgets/budgets.json"
PORT, METRICS = 9122, 9121
SETTLED = 10.0
"""Seconds over which a rate is measured: it has to be right without being exact."""

ACCOUNTS = ("netmgr-node", "netmgr-controller")
NAMESPACES = (WITHOUT_PODS, "kube-system", "netmgr", "netmgr-claims")
Rights = dict[tuple[str, str], set[str]]


@pytest.fixture(scope="module")
def before(cluster: Cluster) -> Rights:
    """What the accounts may do without budgets."""
    for node in network.NODES:
        # There is no control plane among the nodes.
        cluster.label(node, "node-restriction.kubernetes.io/netmgr-controller")
    cluster.plane.kubectl("create", "namespace", WITHOUT_PODS)
    netmgr.apply(cluster, netmgr.overlay(cluster, "cni"))
    return rights(cluster)


@pytest.fixture(scope="module")
def installed(
    cluster: Cluster, before: Rights, tmp_path_factory: pytest.TempPathFactory
) -> Cluster:
    assert before
    folder = tmp_path_factory.mktemp("budgets")
    (folder / "budgets.yaml").write_text(DOCUMENT)
    quick_starts.run(cluster, "On Kubernetes", "docs/budgets.md", folder)
    components, settings = ("seccomp", "budgets"), {"budgets_file": FILE}
    netmgr.apply(cluster, netmgr.overlay(cluster, "cni", components=components, node_yaml=settings))
    netmgr.roll_out(cluster)
    wait_for(lambda: min(netmgr.budget_epochs(cluster)) > 0, "an answer for every node", LEASE)
    return cluster


@pytest.fixture(scope="module")
def running(installed: Cluster) -> dict[str, Pod]:
    return pods.run(installed, {"one": "node-1", "two": "node-2"})


def rights(cluster: Cluster) -> Rights:
    """By account and namespace, each a line of resources and verbs."""
    found = {}
    for account in ACCOUNTS:
        for namespace in NAMESPACES:
            who = f"--as=system:serviceaccount:netmgr:{account}"
            listed = cluster.plane.kubectl("auth", "can-i", "--list", who, "-n", namespace)
            found[account, namespace] = {" ".join(line.split()) for line in listed.splitlines()}
    return found


def leader(cluster: Cluster) -> Object:
    """The pod of the controller that leads."""
    path = "/apis/coordination.k8s.io/v1/namespaces/netmgr-claims/leases/netmgr-controller"
    name = cluster.plane.ask("GET", path)["spec"]["holderIdentity"].rpartition("_")[0]
    return cluster.plane.ask("GET", f"/api/v1/namespaces/netmgr/pods/{name}")


def projected(cluster: Cluster, node: str) -> str:
    """The token in the exporter's container; the agent's has none."""
    found = [
        {path.read_text() for path in Path(f"/proc/{process}/root/run").rglob("token")}
        for process in (agents.process(cluster, node, each) for each in ("agent", "exporter"))
    ]
    assert [len(tokens) for tokens in found] == [0, 1]
    return found[1].pop()


def claims_of(token: str) -> dict[str, object]:
    return jwt.decode(token, options={"verify_signature": False})


def requested(cluster: Cluster, account: str, pod: str, audience: str = AUDIENCE) -> str:
    """What the API server gives to who may ask it for an account's tokens."""
    bound = (f"--bound-object-name={pod}", "--bound-object-kind=Pod") if pod else ()
    create = ("-n", "netmgr", "create", "token", account, f"--audience={audience}")
    return cluster.plane.kubectl(*create, *bound).strip()


@pytest.fixture
def report(installed: Cluster) -> Callable[..., int]:
    """Reports to the leader with a token, and says with which status it answered."""
    authority = installed.plane.ask("GET", "/api/v1/namespaces/netmgr/configmaps/netmgr-budgets-ca")
    context = ssl.create_default_context(cadata=authority["data"]["ca.crt"])
    address = leader(installed)["status"]["podIP"], PORT
    boot = json.loads(installed.node("node-1").machine.path(FILE).read_text())["boot"]

    def send(token: str, **more: object) -> int:
        body = json.loads(messages.encode(BudgetReport(0, boot, 0, "", {})))
        connection = ServerConnection(address, context)
        with wiring.inside(installed.namespace(network.FABRIC)):
            connection.connect()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request("POST", messages.PATH, json.dumps(body | more), headers)
        status = connection.getresponse().status
        connection.close()
        return status

    return send


def show(cluster: Cluster, kubeconfig: Path) -> dict[str, Object]:
    """What `netmgr budgets show` says, by budget."""
    netns = f"--net={cluster.namespace(network.CONTROL_PLANE)}"
    command = (sys.executable, "-m", "netmgr", "budgets", "show", "-o", "json")
    done = subprocess.run(
        ["nsenter", netns, *command, "--kubeconfig", kubeconfig],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return {budget["name"]: budget for budget in json.loads(done.stdout)["budgets"]}


def viewer(cluster: Cluster) -> Path:
    """A kubeconfig of who has the rights that the page names, and no others."""
    kubectl = partial(cluster.plane.kubectl, "create")
    kubectl("serviceaccount", "viewer")
    for namespace, resource in ("netmgr-claims", "leases"), ("netmgr", "pods/proxy"):
        kubectl("role", "viewer", "-n", namespace, "--verb=get", f"--resource={resource}")
        whose = "--serviceaccount=default:viewer"
        kubectl("rolebinding", "viewer", "-n", namespace, "--role=viewer", whose)
    token = kubectl("token", "viewer").strip()
    return cluster.plane.write_kubeconfig(cluster.folder / "viewer.kubeconfig", viewer=token)


def test_every_exporter_reports_with_its_own_token_which_nothing_else_has_or_takes(
    installed: Cluster,
) -> None:
    for node in network.NODES:
        own = projected(installed, node)
        claims = claims_of(own)
        assert claims["aud"] == [AUDIENCE]
        assert claims["kubernetes.io"]["node"]["name"] == node
        assert installed.plane.answer("GET", "/api", token=own)[0] == HTTPStatus.UNAUTHORIZED


def test_the_accounts_may_do_what_the_component_says_and_no_more(
    installed: Cluster, before: Rights
) -> None:
    after = rights(installed)
    more = {key: lines - before[key] for key, lines in after.items() if lines != before[key]}
    added = {"events [] [] [create patch]", "namespaces [] [] [list]"}
    assert more == {("netmgr-controller", namespace): added for namespace in NAMESPACES}


def test_the_server_takes_an_agents_token_alone_and_for_its_node_alone(
    installed: Cluster, report: Callable[..., int]
) -> None:
    (agent,) = [
        pod["metadata"]["name"]
        for pod in lifecycle.agents(installed)
        if pod["spec"]["nodeName"] == "node-1"
    ]
    controller = leader(installed)
    own = projected(installed, "node-1")
    header, claims = jwt.get_unverified_header(own), claims_of(own)
    signing = (installed.plane.folder / "service-accounts.key").read_text()
    signed = partial(jwt.encode, key=signing, algorithm=header["alg"], headers=header)
    refused = {
        "anonymous": "",
        "account": requested(installed, "netmgr-controller", controller["metadata"]["name"]),
        "audience": requested(installed, "netmgr-node", agent, "https://kubernetes.default.svc"),
        # The API server makes none that lasts less than ten minutes.
        "expired": signed({**claims, "exp": int(time.time()) - 1}),
        "node": requested(installed, "netmgr-node", ""),
        "token": f"{own[:-8]}AAAAAAAA",
    }
    for reason, token in refused.items():
        assert report(token) == HTTPStatus.UNAUTHORIZED, reason
    metrics = f"http://{controller['status']['podIP']}:{METRICS}/metrics"
    figures = installed.run_at(network.FABRIC, "curl", "--silent", metrics)
    for reason in refused:
        assert f'netmgr_controller_budget_reports_total{{outcome="{reason}"}}' in figures
    # This one is the node's, which has reported later things of the same boot.
    assert report(signed(claims)) == report(own) == HTTPStatus.CONFLICT
    # Whatever else it says: it is not taken for another node's.
    assert report(own, node="node-2") == HTTPStatus.CONFLICT


def test_both_nodes_share_a_rate_and_go_on_when_the_machine_of_the_leader_dies(
    installed: Cluster, running: dict[str, Pod], internet: End
) -> None:
    config = viewer(installed)
    with Downloads(internet.namespace) as downloads:
        for name, pod in running.items():
            downloads.start(name, pod.netns)

        def is_kept() -> bool:
            rates = downloads.rates(SETTLED)
            share = {name: rates.get(name, 0) / LIMIT for name in running}
            return 0.8 <= sum(share.values()) <= 1.1 and min(share.values()) > 0.3

        def is_shown() -> bool:
            nodes = show(installed, config)["some"]["nodes"]
            waiting = {(share["node"], share["waiting"]) for share in nodes}
            return waiting == {(node, 1) for node in network.NODES}

        wait_for(is_kept, "a budget that is kept", 120)
        began = time.monotonic()
        wait_for(is_shown, "a pod of each node that is held back", 60)
        former, known = leader(installed), max(netmgr.budget_epochs(installed))
        machine = installed.node(former["spec"]["nodeName"])
        # Nobody starts it again, and its address stays among those of the Service.
        machine.stop_kubelet()
        try:
            os.kill(agents.process_of(former["metadata"]["uid"], "controller"), signal.SIGKILL)
            wait_for(
                lambda: min(netmgr.budget_epochs(installed)) > known,
                "an answer of the other controller for every node",
                LEASE,
            )
            assert leader(installed)["metadata"]["name"] != former["metadata"]["name"]
            wait_for(is_kept, "a budget that is kept by another leader", 120)
        finally:
            machine.start_kubelet()
        # Longer than a busy machine keeps what came from being read.
        assert max(downloads.windows(began, 15)) <= OUTSTANDING * LIMIT
    assert show(installed, config)["some"]["outstanding"] <= OUTSTANDING * LIMIT


def test_a_spent_quota_is_an_event_of_each_namespace_that_it_is_of(
    installed: Cluster, running: dict[str, Pod], internet: End
) -> None:
    def spent(namespace: str) -> list[str]:
        events = installed.plane.ask("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
        return [event["message"] for event in events if event["reason"] == "BudgetQuotaSpent"]

    def is_told() -> bool:
        for pod in running.values():
            exchange.stream(pod.end(), internet, SENT // len(running), 0)
        return all(map(spent, ("default", WITHOUT_PODS)))

    wait_for(is_told, "Events of a spent quota", 120)
    (message,) = spent(WITHOUT_PODS)
    assert "sent has used" in message
    assert "pass at 50000000 bits a second together until midnight" in message
