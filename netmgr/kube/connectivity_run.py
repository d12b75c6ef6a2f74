"""Runs `netmgr connectivity-test`: makes its pods, reads what they print and what was counted.

Everything is in a namespace of its own, which is deleted in the end, whatever happened. A pod's
answer is read from its log, and the counts from the exporter of its Node, both through the API
server with the rights of the person who runs it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from netmgr.api.connectivity import CLIENT_SECONDS, LONGEST_ANSWER, Answer, Task
from netmgr.documents.diagnostics import Severity
from netmgr.errors import ApiAway, ApiError, ConfigError
from netmgr.kube import connectivity, connectivity_objects
from netmgr.kube.api import NOT_FOUND, Api, Object
from netmgr.kube.cluster import agent_pods, items, short
from netmgr.kube.cluster_status import Finding, PodState
from netmgr.kube.concurrency import THREADS
from netmgr.kube.connectivity import Candidate, Counted, NodeResult, Options, Server
from netmgr.kube.connectivity_objects import CLIENT, SERVER, PodNow, pod_name

AT_ONCE = 8
POLL_SECONDS = 1.0
COUNT_SECONDS = 30.0
"""How long an exporter may take to have what a pod exchanged; agents read every five seconds."""

PAGE_SECONDS, LONGEST_PAGE = 10.0, 16 * 1024 * 1024
LOG_SECONDS = 10.0
RIGHTS = (
    ("create", "", "namespaces", ""),
    ("delete", "", "namespaces", ""),
    ("create", "", "serviceaccounts", ""),
    ("create", "", "services", ""),
    ("create", "", "pods", ""),
    ("list", "", "pods", ""),
    ("get", "", "pods", "log"),
)
"""In the test's namespace."""

Report = Callable[[str, int, int], object]
"""Called with what is being done, how many of how many are done."""


@dataclass
class Outcome:
    """What came of a run: the tested Nodes, and all findings, worst first."""

    namespace: str
    tested: list[NodeResult] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    is_kept: bool = False


@dataclass(frozen=True)
class Request:
    """What to test, where and how.

    Attributes:
        name: of the namespace to make.
        agents: netmgr's namespaces.
        nodes: names of Nodes; none are as many as `connectivity.MOST_NODES`, spread.
        is_all: every Node.
        seconds: how long pods may take to start.
        is_kept: leave the namespace.
    """

    name: str
    agents: tuple[str, ...]
    options: Options
    nodes: tuple[str, ...] = ()
    is_all: bool = False
    seconds: float = 120.0
    is_kept: bool = False


def run(api: Api, request: Request, report: Report = lambda *_: None) -> Outcome:
    """Test the Nodes' network, and remove what was made for it.

    Raises:
        ConfigError: a Node of this name is not there.
        ApiError: the account lacks a right, or the server refuses an object of the test.
    """
    outcome = Outcome(request.name)
    others = list(_left_over(api, request.name))
    chosen, absent = _chosen(api, request)
    if chosen:
        _require_rights(api, request)
        with _namespace(api, request, outcome):
            outcome.tested = _Run(api, request, report).test(chosen)
    outcome.findings = connectivity.findings(outcome.tested, [*absent, *others])
    return outcome


def _left_over(api: Api, own: str) -> Iterator[Finding]:
    """Namespaces of earlier runs, or of others that run now."""
    query = {"labelSelector": connectivity_objects.LABEL}
    for each in items(api, "/api/v1/namespaces", query):
        name = each["metadata"]["name"]
        is_going = each.get("status", {}).get("phase") == "Terminating"
        if name != own and not is_going:
            message = "left by an earlier run, unless one is running now"
            remedy = f"kubectl delete namespace {name}"
            yield Finding(Severity.WARNING, "left-over", message, remedy, (f"namespace/{name}",))


def _chosen(api: Api, request: Request) -> tuple[list[Candidate], list[Finding]]:
    """Nodes to test, and findings about those that cannot be."""
    pods: list[PodState] = []
    for namespace in request.agents:
        pods += agent_pods(api, f"/api/v1/namespaces/{namespace}/pods")
    known = {each.name: each for each in connectivity.candidates(items(api, "/api/v1/nodes"), pods)}
    if unknown := [name for name in request.nodes if name not in known]:
        raise ConfigError(
            f"--node {unknown[0]}: no Node of this name on which netmgr's agents serve pods; "
            f"there are {', '.join(sorted(known)[:10]) or 'none'}"
        )
    wanted = [known[name] for name in dict.fromkeys(request.nodes)] or list(known.values())
    return connectivity.usable(
        wanted, len(wanted) if request.nodes or request.is_all else connectivity.MOST_NODES
    )


def _require_rights(api: Api, request: Request) -> None:
    """Ask first, so that no namespace is made that could not be deleted."""
    wanted = [(request.name, right) for right in RIGHTS]
    wanted += [(namespace, ("get", "", "pods", "proxy")) for namespace in request.agents[:1]]
    missing = []
    for namespace, (verb, group, resource, part) in wanted:
        attributes = {
            "namespace": namespace,
            "verb": verb,
            "group": group,
            "resource": resource,
            "subresource": part,
        }
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
def _namespace(api: Api, request: Request, outcome: Outcome) -> Iterator[None]:
    """The test's namespace, deleted with all that is in it."""
    path = f"/api/v1/namespaces/{request.name}"
    body = connectivity_objects.namespace(
        request.name, has_host_port=bool(request.options.host_port)
    )
    try:
        api.create("/api/v1/namespaces", body)
        yield
    finally:
        outcome.is_kept = request.is_kept
        if not request.is_kept:
            _delete(api, path, request.name)


def _delete(api: Api, path: str, name: str) -> None:
    try:
        api.delete(path)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise ApiError(
                f"{error.message}; the test's namespace is still there: "
                f"kubectl delete namespace {name}",
                error.status,
            ) from None


class _Run:
    """One run in a namespace that is there."""

    def __init__(self, api: Api, request: Request, report: Report) -> None:
        self._api, self._request, self._report = api, request, report
        self._path = f"/api/v1/namespaces/{request.name}"
        self._addresses: dict[str, tuple[str, ...]] = {}

    def test(self, chosen: Sequence[Candidate]) -> list[NodeResult]:
        """Start servers, have clients probe them, and compare the counts."""
        asked = self._request.options
        self._api.create(f"{self._path}/serviceaccounts", connectivity_objects.account())
        made = self._api.create(f"{self._path}/services", connectivity_objects.service())
        service = tuple(made["spec"].get("clusterIPs") or ())
        tested = [NodeResult(each.name) for each in chosen]
        numbers = range(len(chosen))
        lifetime = 2 * self._request.seconds + 2 * CLIENT_SECONDS + 2 * COUNT_SECONDS
        self._make(
            connectivity_objects.server(number, each.name, _image(each), lifetime, asked.host_port)
            for number, each in enumerate(chosen)
        )
        found = self._await(SERVER, numbers, "Running", self._request.seconds)
        ring = self._servers(found, tested)
        clients = []
        for number, own in ring.items():
            tested[number].planned = connectivity.plan(own, list(ring.values()), service, asked)
            task = Task(
                probes=tuple(each.probe for each in tested[number].planned),
                internet=asked.internet,
                unreachable=asked.unreachable,
            )
            candidate = chosen[number]
            clients.append(connectivity_objects.client(number, own.node, _image(candidate), task))
        self._make(clients)
        seconds = self._request.seconds + CLIENT_SECONDS
        found = self._await(CLIENT, list(ring), "Succeeded", seconds)
        for number in ring:
            self._read(number, found[pod_name(CLIENT, number)], tested[number])
        self._compare([(chosen[number], tested[number], number) for number in ring])
        for each in tested:
            connectivity.conclude(each, service, asked)
        return tested

    def _make(self, pods: Iterator[Object] | Sequence[Object]) -> None:
        wanted = list(pods)
        THREADS.map(AT_ONCE, lambda each: self._api.create(f"{self._path}/pods", each), wanted)

    def _await(
        self, role: str, numbers: Sequence[int], phase: str, seconds: float
    ) -> dict[str, PodNow]:
        """The pods of a role: once each is in the phase, or failed, or the time is over."""
        names = {pod_name(role, number) for number in numbers}
        deadline = time.monotonic() + seconds
        while True:
            found = self._pods(role)
            done = [
                name
                for name, pod in found.items()
                if pod.phase == "Failed" or (pod.phase == phase and self._addresses[name])
            ]
            self._report(f"{role}s", len(done), len(names))
            if names <= set(done) or time.monotonic() > deadline:
                gone = PodNow("", (), (), "somebody else deleted it")
                return {name: found.get(name, gone) for name in names}
            time.sleep(POLL_SECONDS)

    def _pods(self, role: str) -> dict[str, PodNow]:
        """The pods of a role by name."""
        try:
            listed = list(items(self._api, f"{self._path}/pods", {"labelSelector": f"role={role}"}))
        except ApiAway:
            return {}  # asked again until the time is over
        found = {each["metadata"]["name"]: connectivity_objects.pod_now(each) for each in listed}
        for name, pod in found.items():
            # Of a pod that has ended, they may be gone.
            self._addresses[name] = pod.addresses or self._addresses.get(name, ())
        return found

    def _servers(self, found: Mapping[str, PodNow], tested: list[NodeResult]) -> dict[int, Server]:
        """Those that run, by their Node's number."""
        ring = {}
        for number, each in enumerate(tested):
            name = pod_name(SERVER, number)
            pod = found[name]
            if pod.phase == "Running" and pod.addresses:
                ring[number] = Server(each.node, pod.addresses, pod.host_addresses)
            else:
                each.trouble = self._trouble(name, pod, self._request.seconds)
        return ring

    def _trouble(self, name: str, pod: PodNow, seconds: float) -> str:
        reason = pod.reason or self._last_warning(name) or f"its phase is {pod.phase or 'unknown'}"
        return f"the pod {name.partition('-')[0]} does not run after {seconds:.0f} s: {reason}"

    def _last_warning(self, name: str) -> str:
        """What the last Event says that warns of a pod, such as an error of the CNI plugin."""
        query = {"fieldSelector": f"type=Warning,involvedObject.name={name}"}
        try:
            found = list(items(self._api, f"{self._path}/events", query))
        except ApiError:
            return ""
        words = [f"{each.get('reason', '')}: {each.get('message', '')}" for each in found]
        return connectivity_objects.shortened(words[-1]) if words else ""

    def _read(self, number: int, pod: PodNow, tested: NodeResult) -> None:
        """What a client printed."""
        name = pod_name(CLIENT, number)
        tested.addresses = self._addresses.get(name, ())
        if pod.phase != "Succeeded":
            tested.trouble = self._trouble(name, pod, self._request.seconds + CLIENT_SECONDS)
            return
        try:
            text = self._api.bounded(
                f"{self._path}/pods/{name}/log",
                LOG_SECONDS,
                LONGEST_ANSWER,
                {"limitBytes": LONGEST_ANSWER},
            )
            tested.answer = Answer.model_validate_json(text.strip().rpartition(b"\n")[2])
        except ApiError as error:
            tested.trouble = f"the log of its client cannot be read: {short(error)}"
        except ValueError:
            tested.trouble = "its client printed something else than an answer"

    def _compare(self, wanted: Sequence[tuple[Candidate, NodeResult, int]]) -> None:
        """Read the exporters until all counts are as they should be, or time is over."""
        deadline = time.monotonic() + COUNT_SECONDS
        left = [each for each in wanted if each[1].answer is not None]
        total, is_first = len(left), True
        while left:
            THREADS.map(AT_ONCE, lambda each: self._count(*each), left)
            # One look is not enough: what an agent has not read yet looks like nothing.
            if not is_first:
                left = [each for each in left if not connectivity.is_as_expected(each[1])]
            is_first = False
            self._report("counts", total - len(left), total)
            if not left or time.monotonic() > deadline:
                return
            time.sleep(POLL_SECONDS)

    def _count(self, candidate: Candidate, tested: NodeResult, number: int) -> None:
        try:
            page = _page(self._api, candidate)
        except ApiError as error:
            tested.uncounted = f"its exporter does not answer: {short(error)}"
            return
        server, client = (
            counted(page, self._request.name, pod_name(role, number)) for role in (SERVER, CLIENT)
        )
        tested.server_counted, tested.counted = server, client
        tested.uncounted = "" if server and client else "its exporter does not name the test's pods"


def _image(candidate: Candidate) -> str:
    return candidate.agent.image if candidate.agent else ""


def _page(api: Api, candidate: Candidate) -> str:
    agent = candidate.agent
    if agent is None or not agent.pod.exporter[1]:
        raise ApiError("its agent's pod has no exporter")
    path = f"/api/v1/namespaces/{agent.namespace}/pods/{agent.pod.name}:{agent.pod.exporter[1]}"
    return api.bounded(f"{path}/proxy/metrics", PAGE_SECONDS, LONGEST_PAGE).decode(errors="replace")


def counted(page: str, namespace: str, pod: str) -> Counted | None:
    """A pod's bytes on an exporter's page; None where it is not there."""
    found = []
    for way in ("out", "in"):
        labels = rf'namespace="{namespace}",pod="{pod}",traffic="internet-{way}"'
        line = (
            rf"^netmgr_pod_traffic_bytes_total\{{{labels}\}} (\d{{1,16}}(\.\d{{1,16}})?(e\+\d\d)?)$"
        )
        match = re.search(line, page, re.MULTILINE)
        if match is None:
            return None
        found.append(int(float(match[1])))
    return Counted(*found)
