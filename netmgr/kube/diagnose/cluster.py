"""Reads what `cluster_status` describes: lists of the API server, and the exporters' reports.

Exporters are asked through the API server (the pods' `proxy`), with the rights of the person who
asks. Whoever controls a node decides what its exporter answers: answers are bounded in length and
time, and parsed as the controller does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from netmgr.errors import ApiError, ApiUnavailable
from netmgr.kube.client.agent_pods import agent_pod
from netmgr.kube.client.api import Api, Object
from netmgr.kube.client.concurrency import THREADS
from netmgr.kube.client.reflector import pages
from netmgr.kube.controller.events import COMPONENT, DEFAULT_NAMESPACE, NODE_COMPONENT
from netmgr.kube.controller.node_reports import (
    ANSWER_SECONDS,
    LONGEST_ANSWER,
    NodeReport,
    parse_body,
)
from netmgr.kube.diagnose import cluster_status

ASKERS = 8
"""Exporters asked at a time: few enough for an API server that others need, too."""

LONGEST_REASON = 200
"""Characters of why an exporter gave no report."""

LABEL = {"labelSelector": "app.kubernetes.io/name=netmgr"}

Answer = TypeVar("Answer")
Advance = Callable[[int], object]
"""Called after each exporter, with how many there are; from several threads."""


def read(
    api: Api, namespaces: tuple[str, ...], lease_name: str, seconds: float, advance: Advance
) -> cluster_status.ClusterState:
    """Read a cluster; `seconds` is how long exporters may take in all.

    Raises:
        ApiError: Nodes, the agents' pods, DaemonSets or Deployments cannot be listed. What else
            cannot be read is in `ClusterState.unread`.
    """
    cluster = cluster_status.ClusterState(namespaces)
    cluster.nodes = [cluster_status.node_state(node) for node in items(api, "/api/v1/nodes")]
    cluster.present = {node.view.uid for node in cluster.nodes}
    for namespace in namespaces:
        apps = f"/apis/apps/v1/namespaces/{namespace}"
        _read_own(api, namespace, apps, cluster)
        with _tolerated(cluster, "controllerrevisions"):
            _read_revisions(api, f"{apps}/controllerrevisions", cluster)
        with _tolerated(cluster, "leases"):
            leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
            if (lease := api.find(f"{leases}/{lease_name}")) is not None:
                cluster.leader = cluster_status.leader(lease)
    # Events about Nodes are in `default`, since Nodes have no namespace.
    for namespace in (DEFAULT_NAMESPACE, *namespaces):
        with _tolerated(cluster, "events"):
            cluster.events += _events(api, namespace)
    _ask(api, cluster, seconds, advance)
    return cluster


def _read_own(api: Api, namespace: str, apps: str, cluster: cluster_status.ClusterState) -> None:
    pods = list(items(api, f"/api/v1/namespaces/{namespace}/pods", LABEL))
    cluster.pods += agent_pods(pods)
    creation_times = [cluster.installed_at] if cluster.installed_at else []
    cluster.present |= {pod["metadata"]["uid"] for pod in pods}
    for kind in ("daemonset", "deployment"):
        for workload in items(api, f"{apps}/{kind}s", LABEL):
            cluster.workloads.append(cluster_status.workload(kind, workload, cluster.nodes))
            cluster.present.add(workload["metadata"]["uid"])
            creation_times.append(workload["metadata"]["creationTimestamp"])
    cluster.installed_at = min(creation_times, default="")


@contextmanager
def _tolerated(cluster: cluster_status.ClusterState, resource: str) -> Iterator[None]:
    try:
        yield
    # Without a right less is examined, which a finding says. A server that is away ends the look.
    except ApiUnavailable:
        raise
    except ApiError as error:
        cluster.unread[resource] = error.message


def items(api: Api, path: str, query: dict[str, str] | None = None) -> Iterator[Object]:
    for page in pages(api, path, query or {}):
        yield from page["items"]


def agent_pods(pods: Iterable[Object]) -> Iterator[cluster_status.PodState]:
    for pod_object in pods:
        pod = agent_pod(pod_object)
        component = pod_object["metadata"]["labels"].get(cluster_status.COMPONENT)
        if pod is not None and component in (cluster_status.AGENT, cluster_status.NAT_HOST):
            yield cluster_status.pod_state(pod_object, pod)


def _read_revisions(api: Api, path: str, cluster: cluster_status.ClusterState) -> None:
    revisions = sorted(items(api, path, LABEL), key=lambda revision: int(revision["revision"]))
    # In ascending order, so that the newest of each DaemonSet stays.
    for revision in revisions:
        metadata = revision["metadata"]
        for owner in metadata.get("ownerReferences", ()):
            key = metadata["namespace"], owner["name"]
            cluster.revisions[key] = metadata.get("labels", {}).get(cluster_status.REVISION, "")


def _events(api: Api, namespace: str) -> Iterator[Object]:
    """Warnings about Nodes that netmgr wrote, and all in namespaces of its own."""
    path = f"/api/v1/namespaces/{namespace}/events"
    for event in items(api, path, {"fieldSelector": "type=Warning"}):
        ours = event.get("reportingComponent") in (COMPONENT, NODE_COMPONENT)
        if ours or namespace != DEFAULT_NAMESPACE:
            yield event


def _ask(api: Api, cluster: cluster_status.ClusterState, seconds: float, advance: Advance) -> None:
    def report(agent: cluster_status.PodState) -> NodeReport:
        return parse_body(api.bounded(f"{agent.exporter}/report", ANSWER_SECONDS, LONGEST_ANSWER))

    cluster.reports, cluster.silent = ask_exporters(
        cluster.nodes, cluster.pods, report, seconds, advance
    )


def ask_exporters(
    nodes: Iterable[cluster_status.NodeState],
    pods: Iterable[cluster_status.PodState],
    read_answer: Callable[[cluster_status.PodState], Answer],
    seconds: float,
    advance: Advance,
) -> tuple[dict[str, Answer], dict[str, str]]:
    """What the exporters of agents that are ready answer, and why others do not, by Node."""
    # Each of the others would only use up its time limit.
    kubelets = {node.view.name for node in nodes if node.is_ready}
    asked = [
        agent
        for agent in pods
        if agent.pod.is_ready and agent.pod.node in kubelets and agent.pod.exporter[1]
    ]
    answers: dict[str, Answer] = {}
    silent: dict[str, str] = {}
    deadline = time.monotonic() + seconds

    def ask(agent: cluster_status.PodState) -> None:
        node = agent.pod.node
        try:
            if time.monotonic() > deadline:
                silent[node] = f"not asked, since all took longer than {seconds:.0f} s"
            else:
                answers[node] = read_answer(agent)
        except ApiError as error:
            silent[node] = short(error)
        except ValueError as error:
            # In further lines pydantic repeats what the exporter sent.
            silent[node] = str(error).partition("\n")[0]
        advance(len(asked))

    THREADS.map(ASKERS, ask, asked)
    return answers, silent


def short(error: ApiError) -> str:
    """Without paths and names, so that many Nodes share one message, and bounded in length."""
    message = error.message.rpartition(": ")[2][:LONGEST_REASON]
    return f"{error.status}: {message}" if error.status else message
