"""`netmgr connectivity-test` against a real API server; the test is kubelet, pods and exporters."""

from __future__ import annotations

import http.server
import json
import os
import pty
import re
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from netmgr.api.connectivity import LONGEST_ANSWER, Ending, ProbeAnswer, ProbeTask, Result, Sent
from netmgr.errors import SIGNAL_EXIT, ApiError
from netmgr.kube.client.api import connect
from netmgr.kube.diagnose.connectivity import SERVICE, Options
from netmgr.kube.diagnose.connectivity_objects import LABEL, PREFIX
from netmgr.kube.diagnose.connectivity_run import ConnectivityRequest, run
from tests.kubernetes.clusters import Cluster
from tests.kubernetes.control_plane import Object
from tests.kubernetes.controllers import AGENTS, MERGE, agent_pod, make_account, refusing
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("no_nodes")]

NAMESPACES = "/api/v1/namespaces"
SENT = Sent(bytes_out=444, bytes_in=333)

Answering = Callable[[str, str, ProbeTask], str]
"""What a client prints, by its pod's namespace and name, and its task."""


@dataclass
class Kubelets:
    """The kubelets of all Nodes: they start pods of the test, and serve clients' logs by TLS.

    Attributes:
        answering: what a client prints.
        refusing: statuses of pods that do not start, by name.
        counted: bytes that the exporters have for a pod of this name, out and in.
        made: pods that were started, by namespace and name.
    """

    cluster: Cluster
    folder: Path
    answering: Answering
    refusing: dict[str, Object] = field(default_factory=dict)
    counted: dict[str, tuple[int, int]] = field(default_factory=dict)
    made: dict[tuple[str, str], Object] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)

    def serve(self, address: str) -> http.server.ThreadingHTTPServer:
        """A port for the API server, which does not check kubelets' certificates."""
        pem = self.folder / "kubelet.pem"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x"]
        files = ["-keyout", str(pem), "-out", str(self.folder / "kubelet.crt")]
        subprocess.run([*command, *files], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "kubelet.crt", pem)
        kubelets = self

        class Log(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                _, _, namespace, name, *_ = urlsplit(self.path).path.split("/")
                text = kubelets.log(namespace, name).encode()
                self.send_response(200)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer((address, 0), Log)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        return server

    def log(self, namespace: str, name: str) -> str:
        command = self.made[namespace, name]["spec"]["containers"][0]["command"]
        return self.answering(namespace, name, ProbeTask.model_validate_json(command[-1]))

    def page(self) -> Iterator[bytes]:
        """The exporters' page, of all Nodes at once."""
        lines = []
        for namespace, name in list(self.made):
            for way, number in zip(("out", "in"), self.counted.get(name, (0, 0)), strict=True):
                labels = f'namespace="{namespace}",pod="{name}",traffic="internet-{way}"'
                lines.append(f"netmgr_pod_traffic_bytes_total{{{labels}}} {float(number)}\n")
        yield "".join(lines).encode()

    def run(self) -> None:
        """Start what is created, until it is over."""
        while not self._over.wait(0.1):
            found = self.cluster.plane.ask("GET", f"/api/v1/pods?labelSelector={LABEL}")["items"]
            for pod in found:
                key = pod["metadata"]["namespace"], pod["metadata"]["name"]
                if key not in self.made:
                    self.made[key] = pod
                    self._start(*key)

    def address(self, namespace: str, name: str) -> str:
        """The pod's."""
        return f"10.1.0.{list(self.made).index((namespace, name)) + 1}"

    def names(self) -> list[str]:
        """Of the pods that were started."""
        return [name for _, name in self.made]

    def _start(self, namespace: str, name: str) -> None:
        phase, address = "Running", self.address(namespace, name)
        if name.startswith("client"):
            phase = "Succeeded"
        status = {"phase": phase, "podIP": address, "podIPs": [{"ip": address}]}
        change = {"status": self.refusing.get(name, status)}
        path = f"{NAMESPACES}/{namespace}/pods/{name}/status"
        self.cluster.plane.answer("PATCH", path, change, kind=MERGE)

    def stop(self) -> None:
        self._over.set()


def well(kubelets: Kubelets) -> Answering:
    """All probes succeed, as clients of a network that works say it."""

    def answer(namespace: str, name: str, task: ProbeTask) -> str:
        address = kubelets.address(namespace, name)
        path = f"{NAMESPACES}/{namespace}/services/{SERVICE}"
        cluster_ip = kubelets.cluster.plane.ask("GET", path)["spec"]["clusterIP"]
        seen = {"tcp": address, "udp": address, "dns": cluster_ip, "reach": ""}
        probes = [Ending(result=Result.OK, seen=(seen[p.by],)) for p in task.probes]
        return ProbeAnswer(
            probes=tuple(probes),
            internet=tuple(Ending(result=Result.OK) for _ in task.internet),
            unreachable=tuple(Ending(result=Result.NO_ANSWER) for _ in task.unreachable),
            to_internet=SENT if task.internet else Sent(),
        ).model_dump_json()

    return answer


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    return replace(cluster, command=("connectivity-test",))


@pytest.fixture
def kubelets(cluster: Cluster, tmp_path: Path) -> Iterator[Kubelets]:
    """Kubelets of the Nodes a and b, which are well."""
    made = Kubelets(cluster, tmp_path, answering=lambda *_: "")
    made.answering = well(made)
    cluster.exporter.pieces = made.page
    address = cluster.exporter.server_address[0]
    with made.serve(str(address)) as server:
        threads = [
            threading.Thread(target=each, daemon=True) for each in (server.serve_forever, made.run)
        ]
        for each in threads:
            each.start()
        cluster.add("a", "b")
        for node in ("a", "b"):
            port = {"kubeletEndpoint": {"Port": server.server_address[1]}}
            addresses = [{"type": "InternalIP", "address": address}]
            status = {"addresses": addresses, "daemonEndpoints": port}
            cluster.write(f"/api/v1/nodes/{node}/status", {"status": status})
        try:
            yield made
        finally:
            made.stop()
            threads[1].join()
            server.shutdown()
            for name in left(cluster):
                finalize(cluster, name)


def left(cluster: Cluster, *, even_going: bool = True) -> list[str]:
    """The test's namespaces that are there."""
    found = cluster.plane.ask("GET", f"{NAMESPACES}?labelSelector={LABEL}")["items"]
    return [
        each["metadata"]["name"]
        for each in found
        if even_going or each["status"]["phase"] != "Terminating"
    ]


def finalize(cluster: Cluster, name: str) -> None:
    """Remove a namespace with all that is in it, as kube-controller-manager does."""
    plane = cluster.plane
    for kind in ("pods?gracePeriodSeconds=0", "services", "serviceaccounts", "events"):
        plane.answer("DELETE", f"{NAMESPACES}/{name}/{kind}")
    plane.answer("DELETE", f"{NAMESPACES}/{name}")
    found = plane.ask("GET", f"{NAMESPACES}/{name}")
    plane.ask("PUT", f"{NAMESPACES}/{name}/finalize", found | {"spec": {"finalizers": []}})


def report(cluster: Cluster, *options: str) -> tuple[int, Object]:
    """The exit code, and what it says to programs."""
    ended = cluster.run("-o", "json", *options)
    assert ended.stdout, ended.stderr
    answer = json.loads(ended.stdout)
    return ended.returncode, answer


def states(answer: Object, node: str) -> dict[str, str]:
    (found,) = [each["checks"] for each in answer["nodes"] if each["node"] == node]
    return {check: state for check, state in found.items() if state != "skipped"}


def errors(answer: Object) -> dict[str, tuple[str, list[str]]]:
    """By check: the message and the objects."""
    found = [each for each in answer["findings"] if each["severity"] == "error"]
    return {each["check"]: (each["message"], each["objects"]) for each in found}


def test_a_network_that_works_passes_and_nothing_is_left(
    cluster: Cluster, kubelets: Kubelets
) -> None:
    client = (SENT.bytes_out, SENT.bytes_in)
    kubelets.counted = {"client-0": client, "client-1": client}
    code, answer = report(cluster, "--internet", "203.0.113.1:443", "--unreachable", "10.64.0.2:80")
    assert answer["findings"] == []
    assert (code, answer["passed"], answer["kept"]) == (0, True, False)
    everything = ("start", "same-node", "other-nodes", "path-mtu", "own-address", "service", "dns")
    outside = ("internet", "unreachable", "counted")
    assert states(answer, "a") == states(answer, "b") == dict.fromkeys(everything + outside, "ok")
    assert left(cluster, even_going=False) == []
    # The namespace has the strictest pod security, so that the server has looked at the rest.
    assert sorted(kubelets.names()) == ["client-0", "client-1", "server-0", "server-1"]
    for pod in kubelets.made.values():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert not spec.get("volumes")
        assert [each["image"] for each in spec["containers"]] == ["netmgr"]
    # Right at once, they are looked at again: what is not read yet looks like nothing.
    assert cluster.exporter.asked >= 2 * len(answer["nodes"])
    kubelets.counted.clear()
    shown = cluster.run()
    assert (shown.returncode, shown.stderr) == (0, "")
    head, *rows, empty, word = shown.stdout.splitlines()
    assert head.split()[:3] == ["NODE", "START", "SAME-NODE"]
    assert [row.split()[:2] for row in rows] == [["a", "ok"], ["b", "ok"]]
    assert (empty, word) == ("", "passed")


def test_a_namespace_of_the_same_name_is_somebody_elses(
    cluster: Cluster, kubelets: Kubelets
) -> None:
    name = f"{PREFIX}taken"
    metadata = {"name": name, "labels": dict([LABEL.split("=")])}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    cluster.plane.ask("POST", NAMESPACES, body)
    api = connect(cluster.kubeconfig, Path(), {})
    with pytest.raises(ApiError, match="409"):
        run(api, ConnectivityRequest(name, ("netmgr",), Options()))
    assert left(cluster, even_going=False) == [name]
    assert kubelets.made == {}


def test_pods_that_do_not_start_are_named_with_the_kubelets_reason(
    cluster: Cluster, kubelets: Kubelets
) -> None:
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "no such image \x1b[2J"}}
    container = {"name": "server", "ready": False, "state": waiting, "lastState": {}}
    own = {"image": "", "imageID": "", "restartCount": 0}
    kubelets.refusing["server-1"] = {"phase": "Pending", "containerStatuses": [container | own]}
    code, answer = report(cluster, "--timeout", "15")
    assert code == 1
    message, objects = errors(answer)["start"]
    assert message.startswith("the pod server is not ready after 15 s: ErrImagePull: no such image")
    assert "\x1b" not in message
    assert objects == ["node/b"]
    assert states(answer, "b") == {"start": "failed"}
    assert states(answer, "a")["same-node"] == "ok"
    assert "client-1" not in kubelets.names()


def test_an_answer_that_is_none_fails_its_node_alone(cluster: Cluster, kubelets: Kubelets) -> None:
    usual, printed = kubelets.answering, "x" * (LONGEST_ANSWER + 1)
    kubelets.answering = lambda *asked: printed if "client-1" in asked else usual(*asked)
    code, answer = report(cluster)
    assert (code, states(answer, "b")) == (1, {"start": "failed"})
    assert errors(answer)["start"][1] == ["node/b"]
    assert states(answer, "a")["same-node"] == "ok"


def test_a_pod_that_ran_before_and_is_cut_off_is_named(
    cluster: Cluster, kubelets: Kubelets, namespace: str
) -> None:
    usual, address = kubelets.answering, "10.9.0.7"
    make_account(cluster.plane, namespace, ())
    pod = agent_pod("old", "a", component="web")
    pod["spec"]["serviceAccountName"] = "some"
    path = f"{NAMESPACES}/{namespace}/pods"
    cluster.plane.ask("POST", path, pod)
    addresses = {"podIP": address, "podIPs": [{"ip": address}]}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    status = {"phase": "Running"} | addresses | ready
    cluster.plane.ask("PATCH", f"{path}/old/status", {"status": status}, kind=MERGE)

    def answering(its_namespace: str, name: str, task: ProbeTask) -> str:
        lost = Ending(result=Result.NO_ANSWER)
        answer = ProbeAnswer.model_validate_json(usual(its_namespace, name, task))
        pairs = zip(task.probes, answer.probes, strict=True)
        probes = tuple(lost if probe.host == address else end for probe, end in pairs)
        return answer.model_copy(update={"probes": probes}).model_dump_json()

    kubelets.answering = answering
    code, answer = report(cluster)
    cluster.plane.ask("DELETE", f"{path}/old?gracePeriodSeconds=0")
    assert (code, states(answer, "a")["running-pods"]) == (1, "failed")
    message, objects = errors(answer)["running-pods"]
    assert message == f"the pod {namespace}/old at {address}: no answer"
    assert objects == ["node/a", "node/b to node/a"]


def test_what_a_pod_prints_controls_no_terminal(cluster: Cluster, kubelets: Kubelets) -> None:
    def lost(_namespace: str, _name: str, task: ProbeTask) -> str:
        ending = Ending(result=Result.NO_ANSWER, reason="\x1b[2J" + "x" * 190)
        return ProbeAnswer(probes=(ending,) * len(task.probes)).model_dump_json()

    kubelets.answering = lost
    ended = cluster.run()
    assert ended.returncode == 1
    assert "IPv4 TCP: no answer (\N{REPLACEMENT CHARACTER}[2Jxxx" in ended.stdout
    assert "\x1b" not in ended.stdout


def test_the_namespace_is_deleted_when_it_is_interrupted(
    cluster: Cluster, kubelets: Kubelets
) -> None:
    kubelets.refusing = {"server-0": {"phase": "Pending"}}
    command = [sys.executable, "-m", "netmgr", "connectivity-test"]
    with subprocess.Popen(
        command, env=cluster.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        eventually(lambda: "server-0" in kubelets.names(), "no pod was made")
        assert left(cluster, even_going=False)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == SIGNAL_EXIT + signal.SIGINT
    assert b"Interrupted: deleting the namespace" in said
    assert b"Traceback" not in said
    assert left(cluster, even_going=False) == []


def test_a_namespace_that_is_kept_is_named_by_the_next_run_and_left_alone(
    cluster: Cluster, kubelets: Kubelets
) -> None:
    code, answer = report(cluster, "--keep", "--node", "a")
    assert (code, answer["kept"], len(answer["nodes"])) == (0, True, 1)
    (kept,) = left(cluster, even_going=False)
    assert kept == answer["namespace"]
    code, answer = report(cluster, "--node", "a")
    assert code == 0
    (found,) = answer["findings"]
    assert (found["check"], found["severity"]) == ("left-over", "warning")
    assert found["remedy"] == f"kubectl delete namespace {kept}"
    assert len(kubelets.made) == 4
    assert left(cluster, even_going=False) == [kept]


def test_rights_that_lack_are_named_before_anything_is_made(
    cluster: Cluster, kubelets: Kubelets, namespace: str, tmp_path: Path
) -> None:
    plane = cluster.plane
    listed = [("", kind, ("list",)) for kind in ("nodes", "pods", "namespaces")]
    rules = (*listed, ("", "namespaces", ("create",)))
    token = make_account(plane, namespace, rules)
    some = plane.write_kubeconfig(tmp_path / "some", tester=token)
    ended = cluster.run(KUBECONFIG=str(some))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "this account may not: delete namespaces in netmgr-connectivity-test-" in ended.stderr
    for right in ("create pods", "get pods/log", "get pods/proxy in netmgr"):
        assert right in ended.stderr
    assert (left(cluster), kubelets.made) == ([], {})


def test_pods_that_admission_refuses_are_an_error_and_nothing_is_left(
    cluster: Cluster, kubelets: Kubelets
) -> None:
    said: list[str] = []

    def is_refused() -> bool:
        said.append(cluster.run("--timeout", "3").stderr)
        return "no pods of strangers" in said[-1]

    with refusing(cluster.plane, "pods", "CREATE", "false", "no pods of strangers"):
        # A policy is in force a while after it was made: it may refuse a run's second pod alone.
        eventually(is_refused)
        assert is_refused()
    # Nor does it end at once: the next test makes pods.
    tried = f"{AGENTS}?dryRun=All", agent_pod("agent-c", "a")
    eventually(lambda: cluster.plane.answer("POST", *tried)[0] == HTTPStatus.CREATED)
    refused = re.search(rf"POST {NAMESPACES}/({PREFIX}\w+)/pods", said[-1])
    assert refused
    assert refused[1] not in {namespace for namespace, _ in kubelets.made}
    assert left(cluster, even_going=False) == []


def test_wrong_options_are_refused_before_anything_is_made(
    cluster: Cluster, kubelets: Kubelets
) -> None:
    for options, complaint in (
        (("--node", "c"), "--node c: no Node of this name"),
        (("--node", "a", "--all"), "exclude each other"),
    ):
        ended = cluster.run(*options)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert complaint in ended.stderr
    assert (left(cluster), kubelets.made) == ([], {})


def test_progress_is_shown_at_a_terminal_alone(
    cluster: Cluster, kubelets: Kubelets, tmp_path: Path
) -> None:
    printed = tmp_path / "printed"
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "netmgr", "connectivity-test", "--node", "a"]
    environment = cluster.environment(TERM="xterm", COLUMNS="100")
    with (
        printed.open("wb") as output,
        subprocess.Popen(command, env=environment, stdout=output, stderr=follower) as p,
    ):
        os.close(follower)
        shown = b""
        try:
            while piece := os.read(leader, 1 << 16):
                shown += piece
        except OSError:
            pass  # its end
    os.close(leader)
    assert p.returncode == 0, printed.read_text()
    assert b"servers" in shown
    assert b"counts" in shown
    assert kubelets.names() == ["server-0", "client-0"]
