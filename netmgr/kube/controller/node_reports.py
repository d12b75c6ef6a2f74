"""What nodes report to the controller: spent quotas, and problems of their networks.

Agents have no account at the API server, so the leader asks the exporter of every node, in turn. An
answer is untrusted: whoever runs a pod in a node's own network can take the exporter's port there
while it is away. All it can do is have Events written about pods, and its own Node called
unhealthy.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from itertools import islice
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, OnErrorOmit

from netmgr.api.client import MOST_SPENT
from netmgr.api.snapshot import Fault
from netmgr.kube.client.agent_pods import LONGEST_MESSAGE, AgentPod
from netmgr.kube.controller.reconciling import Leadership

TURN_SECONDS = 10.0
"""How often each node is asked, in clusters of up to 1,000; larger ones take as long as they do."""

ASKED_PER_SECOND = 100
ANSWER_SECONDS = 3.0
"""From connecting to the answer's end, whatever comes meanwhile."""

SILENT_SECONDS = 600.0

LONGEST_ANSWER = 1 << 20
"""Twice what `MOST_SPENT` quotas of the longest names take."""

log = logging.getLogger(__name__)

# They become names and paths of Events: a quota whose names are none of Kubernetes is left out.
_Label = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
_Name = Annotated[str, Field(pattern=r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?$")]
_Number = Annotated[int, Field(ge=0, le=10**18)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)


class Spent(_Part):
    """A quota as an exporter names it; `api.snapshot.SpentQuota` says what the fields mean."""

    namespace: _Label
    pod: _Name
    uid: Annotated[str, Field(pattern=r"^[0-9a-f-]{0,64}$")]
    traffic: Literal["internet-in", "internet-out"]
    period: Literal["day", "month"]
    budget: _Number
    slow: _Number
    until: Annotated[int, Field(ge=0, le=10**11)]


class ReportedProblem(_Part):
    # A later release may have other ones.
    reason: Annotated[str, Field(pattern=r"^[A-Z][A-Za-z]{0,63}$")]
    # Agents do not bound it: libnftables, for one, quotes a whole line.
    message: Annotated[str, AfterValidator(lambda message: message[:LONGEST_MESSAGE])]


class NodeReport(_Part):
    """An exporter's whole answer."""

    model_config = ConfigDict(title="Report")  # its name in messages

    # Pods that Kubernetes does not know have quotas, too, and no Event can be about them.
    spent: tuple[OnErrorOmit[Spent], ...] = ()
    # Twice as many as this release knows: a node may be of a later one.
    problems: Annotated[tuple[ReportedProblem, ...], Field(max_length=2 * len(Fault))] = ()


class NodeReports:
    """The last report of each node."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self.by_node: Mapping[str, NodeReport] = {}
        """By the Node's name; those that did not answer are left out."""
        self._heard: Mapping[str, float] = {}
        # A thread of its own: nodes that are down take time, which no round has.
        threading.Thread(target=self._ask, name="reports", daemon=True).start()

    def silent(self) -> frozenset[str]:
        """Nodes of which this leader has heard nothing for `SILENT_SECONDS`."""
        long_ago = time.monotonic() - SILENT_SECONDS
        return frozenset(node for node, at in self._heard.items() if at < long_ago)

    def _ask(self) -> None:
        lost = self._leadership.lost
        while not lost.is_set():
            pods = self._leadership.agents.listed()
            if pods is None:
                lost.wait(1)
                continue
            asked = [pod for pod in pods if pod.exporter[1]]
            self.by_node = self._ask_all(asked)
            self._hear(pods)
            lost.wait(max(1.0, TURN_SECONDS - len(asked) / ASKED_PER_SECOND))

    def _hear(self, pods: Iterable[AgentPod]) -> None:
        """Note when each Node was last heard from; a new one counts as heard from now."""
        # While a preflight fails, its kubelet speaks for the exporter, which is not started yet.
        heard = {*self.by_node, *(pod.node for pod in pods if pod.failed_preflight)}
        now = time.monotonic()
        names = [view.name for view in self._leadership.nodes.views()]
        self._heard = {name: now if name in heard else self._heard.get(name, now) for name in names}

    def _ask_all(self, pods: Sequence[AgentPod]) -> dict[str, NodeReport]:
        reports: dict[str, NodeReport] = {}
        failed: dict[str, Exception] = {}
        # A batch a second, so that the leader has few connections at a time.
        for begin in range(0, len(pods), ASKED_PER_SECOND):
            some = pods[begin : begin + ASKED_PER_SECOND]
            for pod, answer in zip(some, asyncio.run(_answers(some)), strict=True):
                if isinstance(answer, Exception):
                    failed[pod.node] = answer
                else:
                    reports[pod.node] = answer
            self._leadership.lost.wait(1)
        for node, error in islice(failed.items(), 1):
            log.info("reports-unread nodes=%d first=%s error=%s", len(failed), node, repr(error))
        return reports


async def _answers(pods: Iterable[AgentPod]) -> list[NodeReport | Exception]:
    """What these pods' exporters say, or why they do not."""
    return await asyncio.gather(*(_try_to_ask(pod) for pod in pods))


async def _try_to_ask(pod: AgentPod) -> NodeReport | Exception:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return parse(await _get(*pod.exporter))
    # A time-out is an OSError.
    except (OSError, ValueError) as error:
        return error


async def _get(address: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(address, port)
    try:
        # By HTTP/1.0 an answer ends with the connection, and has no chunks.
        writer.write(b"GET /report HTTP/1.0\r\n\r\n")
        answer = b""
        while len(answer) < LONGEST_ANSWER and (piece := await reader.read(1 << 16)):
            answer += piece
    finally:
        writer.close()
    return answer


def parse(answer: bytes) -> NodeReport:
    """The report in an exporter's whole HTTP answer.

    Raises:
        ValueError: it is none, or has a problem that makes no sense.
    """
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if status != [str(HTTPStatus.OK.value).encode()]:
        raise ValueError(f"answered {answer[:60]!r}; with TLS or a secret, it cannot be asked")
    return parse_body(body)


def parse_body(body: bytes) -> NodeReport:
    """The report in the body of an exporter's answer; errors as of `parse`."""
    report = NodeReport.model_validate_json(body)
    return report.model_copy(update={"spent": report.spent[:MOST_SPENT]})
