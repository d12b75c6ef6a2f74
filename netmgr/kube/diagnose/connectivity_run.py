"""Runs `netmgr connectivity-test`: makes its pods, reads what they print and what was counted.

Everything is in a namespace of its own, which is deleted in the end, whatever happened. A pod's
answer is read from its log, and the counts from the exporter of its Node, both through the API
server with the rights of the person who runs it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain

from netmgr.api.connectivity import CLIENT_SECONDS, LONGEST_ANSWER, ProbeAnswer, ProbeTask
from netmgr.documents.diagnostics import Severity
from netmgr.errors import ApiError, ApiUnavailable, ConfigError
from netmgr.findings import Finding
from netmgr.kube.client.agent_pods import SELECTOR
from netmgr.kube.client.api import NOT_FOUND, Api, Object
from netmgr.kube.client.concurrency import THREADS
from netmgr.kube.diagnose import connectivity, connectivity_objects
from netmgr.kube.diagnose.cluster import agent_pods, items, short
from netmgr.kube.diagnose.cluster_status import PodState
from netmgr.kube.diagnose.connectivity import (
    CountedBytes,
    NodeCandidate,
    NodeResult,
    Options,
    ProbeServer,
    RunningPod,
)
from netmgr.kube.diagnose.connectivity_objects import CLIENT, SERVER, PodNow, pod_name

AT_ONCE = 8
POLL_SECONDS = 0.6
COUNT_SECONDS = 30.0
"""How long an exporter may take to show what a pod exchanged; agents read every five seconds."""

PAGE_SECONDS, LONGEST_PAGE = 10.0, 16 * 1024 * 1024
LOG_SECONDS = 10.0
GONE = PodNow("", (), (), "the API server does not list it")
RIGHTS = (
    ("create", "namespaces", ""),
    ("delete", "namespaces", ""),
    ("create", "serviceaccounts", ""),
    ("create", "services", ""),
    ("create", "pods", ""),
    ("list", "pods", ""),
    ("get", "pods", "log"),
)
"""Verbs, resources and subresources in the test's namespace; all of the core API group."""

Progress = Callable[[str, int, int], object]
"""Called with what is being done, how many are done, and of how many."""


@dataclass
class ConnectivityOutcome:
    """The outcome of a run: the tested Nodes, and all findings, worst first."""

    namespace: str
    tested: list[NodeResult] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True)
class ConnectivityRequest:
    name: str
    """Of the namespace to make."""
    agents: tuple[str, ...]
    """netmgr's namespaces."""
    options: Options
    nodes: tuple[str, ...] = ()
    """Names of Nodes; without any, up to `connectivity.MOST_NODES`, spread."""
    is_all: bool = False
    seconds: float = 120.0
    """How long pods may take to start."""
    is_kept: bool = False
    """Leave the namespace."""


def run(
    api: Api, request: ConnectivityRequest, report: Progress = lambda *_: None
) -> ConnectivityOutcome:
    """Test the Nodes' network, and remove what was made for it.

    Raises:
        ConfigError: a Node of this name is not there.
        ApiError: the account lacks a right, or the server refuses an object of the test.
    """
    outcome = ConnectivityOutcome(request.name)
    others = list(_left_over(api, request.name))
    chosen, absent = _chosen(api, request)
    if chosen:
        _require_rights(api, request)
        with _namespace(api, request):
            outcome.tested = _Run(api, request, report).test(chosen)
    outcome.findings = connectivity.findings(outcome.tested, [*absent, *others])
    return outcome


def _left_over(api: Api, own: str) -> Iterator[Finding]:
    """Namespaces of earlier runs, or of others that run now."""
    query = {"labelSelector": connectivity_objects.LABEL}
    for namespace in items(api, "/api/v1/namespaces", query):
        name = namespace["metadata"]["name"]
        is_going = namespace.get("status", {}).get("phase") == "Terminating"
        if name != own and not is_going:
            message = "left by an earlier run, unless one is running now"
            remedy = f"kubectl delete namespace {name}"
            yield Finding(Severity.WARNING, message, remedy, "left-over", (f"namespace/{name}",))


def _chosen(api: Api, request: ConnectivityRequest) -> tuple[list[NodeCandidate], list[Finding]]:
    pods: list[PodState] = []
    for namespace in request.agents:
        path = f"/api/v1/namespaces/{namespace}/pods"
        pods += agent_pods(items(api, path, {"labelSelector": SELECTOR}))
    known = {
        candidate.name: candidate
        for candidate in connectivity.candidates(items(api, "/api/v1/nodes"), pods)
    }
    if unknown := [name for name in request.nodes if name not in known]:
        raise ConfigError(
            f"--node {unknown[0]}: no Node of this name on which netmgr's agents serve pods; "
            f"there are {', '.join(sorted(known)[:10]) or 'none'}"
        )
    wanted = [known[name] for name in dict.fromkeys(request.nodes)] or list(known.values())
    return connectivity.usable(
        wanted, len(wanted) if request.nodes or request.is_all else connectivity.MOST_NODES
    )


def _require_rights(api: Api, request: ConnectivityRequest) -> None:
    # Asked first, so that no namespace is made that could not be deleted.
    wanted = [(request.name, right) for right in RIGHTS]
    # Exporters are in the first alone: the second of the manifests has only claims.
    wanted += [(namespace, ("get", "pods", "proxy")) for namespace in request.agents[:1]]
    missing = []
    for namespace, (verb, resource, part) in wanted:
        attributes = {"verb": verb, "group": "", "resource": resource, "subresource": part}
        attributes["namespace"] = namespace
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        if not api.create(path, review).get("status", {}).get("allowed"):
            missing.append(f"{verb} {resource}{'/' if part else ''}{part} in {namespace}")
    if missing:
        raise ApiError(
            "this account may not: " + ", ".join(missing) + "; nothing was made. Have an "
            "administrator grant these rights, or choose another account with --context"
        )


@contextmanager
def _namespace(api: Api, request: ConnectivityRequest) -> Iterator[None]:
    """The test's namespace, deleted with all that is in it."""
    body = connectivity_objects.namespace(
        request.name, has_host_port=bool(request.options.host_port)
    )
    is_ours = True
    try:
        try:
            api.create("/api/v1/namespaces", body)
        except ApiError as error:
            # If refused, it may be somebody else's; without an answer it may exist.
            is_ours = isinstance(error, ApiUnavailable)
            raise
        yield
    finally:
        if is_ours and not request.is_kept:
            try:
                _delete(api, request.name)
            except SystemExit:  # interrupted meanwhile; a second signal is ignored
                _delete(api, request.name)
                raise


def _delete(api: Api, name: str) -> None:
    try:
        api.delete(f"/api/v1/namespaces/{name}")
    except ApiError as error:
        if error.status != NOT_FOUND:
            hint = f"the test's namespace may still be there: kubectl delete namespace {name}"
            raise ApiError(f"{error.message}; {hint}", error.status) from None


class _Run:
    def __init__(self, api: Api, request: ConnectivityRequest, report: Progress) -> None:
        self._api, self._request, self._report = api, request, report
        self._path = f"/api/v1/namespaces/{request.name}"
        self._addresses: dict[str, tuple[str, ...]] = {}
        # More than a run takes, in which pods start twice: no server may end before the clients.
        self._lifetime = 2 * (request.seconds + CLIENT_SECONDS + COUNT_SECONDS)

    def test(self, chosen: Sequence[NodeCandidate]) -> list[NodeResult]:
        """Start servers, have clients probe them, and compare the counts."""
        asked = self._request.options
        self._api.create(f"{self._path}/serviceaccounts", connectivity_objects.account())
        made = self._api.create(f"{self._path}/services", connectivity_objects.service())
        service = tuple(made["spec"].get("clusterIPs") or ())
        results = [NodeResult(candidate.name) for candidate in chosen]
        running = self._running([candidate.name for candidate in chosen])
        images = [candidate.agent.image if candidate.agent else "" for candidate in chosen]
        self._make(
            connectivity_objects.server(
                number, candidate.name, images[number], self._lifetime, asked.host_port
            )
            for number, candidate in enumerate(chosen)
        )
        ring = self._servers(results)
        servers = list(ring.values())
        for number, own in ring.items():
            results[number].planned = connectivity.plan(own, servers, service, asked, running)
        self._make(
            connectivity_objects.client(
                number, own.node, images[number], self._lifetime, self._task(results[number])
            )
            for number, own in ring.items()
        )
        self._read_answers({number: results[number] for number in ring})
        self._compare([(chosen[number], results[number], number) for number in ring])
        for result in results:
            connectivity.conclude(result, service, asked)
        return results

    def _running(self, nodes: Sequence[str]) -> Mapping[str, Sequence[RunningPod]]:
        """Pods that run on these Nodes; none if this account may not list them all."""

        def listed(node: str) -> list[Object]:
            query = {"fieldSelector": f"spec.nodeName={node},status.phase=Running"}
            return list(items(self._api, "/api/v1/pods", query))

        policies = "/apis/networking.k8s.io/v1/networkpolicies"
        try:
            shielded = {policy["metadata"]["namespace"] for policy in items(self._api, policies)}
            pods = chain.from_iterable(THREADS.map(AT_ONCE, listed, nodes))
        except ApiError:
            return {}
        return connectivity.running_pods(pods, shielded)

    def _task(self, result: NodeResult) -> ProbeTask:
        probes = tuple(planned.probe for planned in result.planned)
        asked = self._request.options
        return ProbeTask(probes=probes, internet=asked.internet, unreachable=asked.unreachable)

    def _make(self, pods: Iterable[Object]) -> None:
        THREADS.map(AT_ONCE, lambda pod: self._api.create(f"{self._path}/pods", pod), pods)

    def _await(
        self, role: str, numbers: Sequence[int], phase: str, seconds: float
    ) -> dict[str, PodNow]:
        """The pods of a role: once each is in the phase, or failed, or the time is over."""
        names = {pod_name(role, number) for number in numbers}
        deadline = time.monotonic() + seconds
        while True:
            pods = self._pods(role)
            done = {
                name
                for name, pod in pods.items()
                if pod.phase == "Failed" or (pod.phase == phase and self._addresses[name])
            }
            self._report(f"{role}s", len(done), len(names))
            if names <= done or time.monotonic() > deadline:
                # Somebody may have deleted a pod, or its Node.
                return dict.fromkeys(names, GONE) | pods
            time.sleep(POLL_SECONDS)

    def _pods(self, role: str) -> dict[str, PodNow]:
        try:
            listed = list(items(self._api, f"{self._path}/pods", {"labelSelector": f"role={role}"}))
        except ApiUnavailable:
            return {}  # asked again until the time is over
        pods = {pod["metadata"]["name"]: connectivity_objects.pod_now(pod) for pod in listed}
        for name, pod in pods.items():
            # Of a pod that has ended, they may be gone.
            self._addresses[name] = pod.addresses or self._addresses.get(name, ())
        return pods

    def _servers(self, results: Sequence[NodeResult]) -> dict[int, ProbeServer]:
        """Those that run, by their Node's number."""
        pods = self._await(SERVER, range(len(results)), "Running", self._request.seconds)
        ring = {}
        for number, result in enumerate(results):
            name = pod_name(SERVER, number)
            pod = pods[name]
            if pod.phase == "Running" and pod.addresses:
                ring[number] = ProbeServer(result.node, pod.addresses, pod.host_addresses)
            else:
                result.trouble = self._trouble(name, pod, self._request.seconds)
        return ring

    def _trouble(self, name: str, pod: PodNow, seconds: float) -> str:
        reason = pod.reason or self._last_warning(name) or f"its phase is {pod.phase or 'unknown'}"
        how = "failed" if pod.phase == "Failed" else f"is not ready after {seconds:.0f} s"
        # Without its number, so that one cause on many Nodes is one finding.
        return f"the pod {name.partition('-')[0]} {how}: {reason}"

    def _last_warning(self, name: str) -> str:
        """The last Warning Event about a pod, such as an error of the CNI plugin."""
        query = {"fieldSelector": f"type=Warning,involvedObject.name={name}"}
        try:
            events = list(items(self._api, f"{self._path}/events", query))
        except ApiError:
            return ""
        # The API server lists by name, and an Event's ends in its time: the last is the newest.
        words = [f"{event.get('reason', '')}: {event.get('message', '')}" for event in events]
        return connectivity_objects.shortened(words[-1]) if words else ""

    def _read_answers(self, results: Mapping[int, NodeResult]) -> None:
        seconds = self._request.seconds + CLIENT_SECONDS
        pods = self._await(CLIENT, list(results), "Succeeded", seconds)

        def read(number: int) -> None:
            name, result = pod_name(CLIENT, number), results[number]
            result.addresses = self._addresses.get(name, ())
            if pods[name].phase != "Succeeded":
                result.trouble = self._trouble(name, pods[name], seconds)
                return
            path, query = f"{self._path}/pods/{name}/log", {"limitBytes": LONGEST_ANSWER}
            try:
                text = self._api.bounded(path, LOG_SECONDS, LONGEST_ANSWER, query)
                # What a client prints ends with its answer.
                result.answer = ProbeAnswer.model_validate_json(text.strip().rpartition(b"\n")[2])
            except ApiError as error:
                result.trouble = f"the log of its client cannot be read: {short(error)}"
            except ValueError:
                result.trouble = "its client printed something else than an answer"

        THREADS.map(AT_ONCE, read, results)

    def _compare(self, wanted: Sequence[tuple[NodeCandidate, NodeResult, int]]) -> None:
        """Read the exporters until all counts are as they should be, or time is over."""
        deadline = time.monotonic() + COUNT_SECONDS
        left = [tested for tested in wanted if tested[1].answer is not None]
        total, is_first = len(left), True
        while left and time.monotonic() < deadline:
            THREADS.map(AT_ONCE, lambda tested: self._count(*tested, deadline), left)
            # One look is not enough: what an agent has not read yet looks like nothing.
            if not is_first:
                left = [tested for tested in left if not connectivity.is_as_expected(tested[1])]
            is_first = False
            self._report("counts", total - len(left), total)
            time.sleep(POLL_SECONDS if left else 0)

    def _count(
        self, candidate: NodeCandidate, result: NodeResult, number: int, deadline: float
    ) -> None:
        if time.monotonic() > deadline:
            result.uncounted = result.uncounted or "it was not asked in time"
            return
        agent = candidate.agent
        if agent is None or not agent.pod.exporter[1]:
            result.uncounted = "its exporter does not answer: its agent's pod has no exporter"
            return
        try:
            body = self._api.bounded(f"{agent.exporter}/metrics", PAGE_SECONDS, LONGEST_PAGE)
        except ApiError as error:
            result.uncounted = f"its exporter does not answer: {short(error)}"
            return
        page = body.decode(errors="replace")
        result.server_counted, result.counted = (
            counted(page, self._request.name, pod_name(role, number)) for role in (SERVER, CLIENT)
        )
        # Set in any case: it is only shown where one of the two is None.
        result.uncounted = "its exporter does not name the test's pods"


def counted(page: str, namespace: str, pod: str) -> CountedBytes | None:
    """What a page of an exporter says of a pod; None if it does not have it."""
    counts = []
    for way in ("out", "in"):
        labels = rf'namespace="{namespace}",pod="{pod}",traffic="internet-{way}"'
        # Bounded: whoever controls the node writes the page, and int() takes no infinity.
        number = r"(\d{1,16}(\.\d{1,16})?(e\+\d\d)?)"
        line = rf"^netmgr_pod_traffic_bytes_total\{{{labels}\}} {number}$"
        match = re.search(line, page, re.MULTILINE)
        if match is None:
            return None
        counts.append(int(float(match[1])))
    return CountedBytes(*counts)
