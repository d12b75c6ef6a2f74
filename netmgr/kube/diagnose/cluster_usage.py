"""What a cluster's nodes have in their histories, and whose history is not in the answer.

A node's history is on its disk alone: one that does not answer now may do so later, and one that is
gone took its history along. Nodes that are gone are known while their ranges are in cooldown.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Annotated, Self, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from netmgr.api.snapshot import UnreadNode, UsageRow, UsageView
from netmgr.errors import ApiError, StateError
from netmgr.kube.client.api import Api
from netmgr.kube.controller import claim_store
from netmgr.kube.diagnose import cluster
from netmgr.kube.diagnose.cluster_status import NodeState, PodState, node_state
from netmgr.ledger.history import SECONDS, By, Period, entire, view

ANSWER_SECONDS = 20.0
LONGEST_ANSWER = 8 << 20
"""Ten thousand rows have 3 MB."""

# Without Kubernetes a container's id is its pod's name, of which capitals may be part.
_Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{0,253}$")]
_Number = Annotated[int, Field(ge=0, le=10**18)]


class _ReportedRow(BaseModel):
    model_config = ConfigDict(strict=True)

    hour: _Number
    namespace: _Name
    pod: _Name
    traffic: _Name
    bytes: _Number
    packets: _Number
    wire: _Number = 0
    measured: _Number = 0
    missing: _Number | None = None

    @model_validator(mode="after")
    def _measured_of_its_bytes(self) -> Self:
        if self.measured > self.bytes:
            raise ValueError("more bytes have wire bytes than there are")
        return self


class ReportedUsage(BaseModel):
    """An exporter's answer, of which whoever controls its node decides."""

    model_config = ConfigDict(strict=True)

    rows: Annotated[list[_ReportedRow], Field(max_length=10_000)]
    left_out: _Number


def read(
    api: Api,
    namespaces: Collection[str],
    period: Period,
    by: list[By],
    seconds: float,
    advance: cluster.Advance,
) -> UsageView:
    """Ask every node; `seconds` is how long exporters may take in all.

    Raises:
        ApiError: Nodes or the agents' pods cannot be listed.
    """
    nodes = [node_state(node) for node in cluster.items(api, "/api/v1/nodes")]
    nodes = [node for node in nodes if node.component]
    pods = chain.from_iterable(_agents(api, namespace) for namespace in namespaces)

    def usage_of(agent: PodState) -> UsageView:
        return entire(partial(_ask, api, agent, by), period, by)

    answers, silent = cluster.ask_exporters(nodes, list(pods), usage_of, seconds, advance)
    unread = [_unread(node, silent) for node in nodes if node.view.name not in answers]
    unread += chain.from_iterable(_gone(api, namespace) for namespace in namespaces)
    unread = [node for node in unread if _existed(node, period)]
    return {
        **view(period, by, ()),
        "rows": list(_rows(answers, unread, period if By.HOUR in by else None)),
        "left_out": sum(answer["left_out"] for answer in answers.values()),
        "nodes": len(answers),
        "unread": unread,
    }


def _rows(
    answers: Mapping[str, UsageView], unread: Collection[UnreadNode], hours: Period | None
) -> Iterator[UsageRow]:
    """Rows with how many nodes are not in them; sums over hours, without `hours`, lack all."""
    by_hour = {
        hour: sum(_existed(node, Period(hour, hour + 1)) for node in unread)
        for hour in (range(hours.first, hours.end) if hours else ())
    }
    for node, answer in sorted(answers.items()):
        for row in answer["rows"]:
            number = by_hour.get(row["hour"], len(unread))
            yield {**row, "node": node, "unread_nodes": number}


def _ask(api: Api, agent: PodState, by: list[By], period: Period) -> UsageView:
    begin, end = (str(hour * SECONDS) for hour in (period.first, period.end))
    query = {"since": begin, "until": end, "by": ",".join(by)}
    body = api.bounded(f"{agent.exporter}/usage", ANSWER_SECONDS, LONGEST_ANSWER, query)
    return cast(UsageView, ReportedUsage.model_validate_json(body).model_dump())


def _agents(api: Api, namespace: str) -> Iterator[PodState]:
    path = f"/api/v1/namespaces/{namespace}/pods"
    return cluster.agent_pods(cluster.items(api, path, cluster.LABEL))


def _unread(node: NodeState, silent: Mapping[str, str]) -> UnreadNode:
    reason = silent.get(node.view.name, "its agent or its kubelet is not ready")
    created = datetime.fromisoformat(node.view.created).timestamp()
    return {"node": node.view.name, "reason": reason, "since": created, "until": math.inf}


def _gone(api: Api, namespace: str) -> Iterator[UnreadNode]:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    try:
        for shard in cluster.items(api, path, {"labelSelector": claim_store.LABEL}):
            pool = shard["metadata"].get("annotations", {}).get(claim_store.POOL, "")
            for claim in claim_store.read(pool, shard.get("data") or {}):
                if (released := claim.released) is not None:
                    reason = "it is gone, and its history with it"
                    yield {"node": claim.node, "reason": reason, "since": 0, "until": released}
    except (ApiError, StateError) as error:
        reason = f"which Nodes are gone cannot be read: {error.message}"
        yield {"node": "", "reason": reason, "since": 0, "until": math.inf}


def _existed(node: UnreadNode, period: Period) -> bool:
    return node["since"] < period.end * SECONDS and node["until"] > period.first * SECONDS
