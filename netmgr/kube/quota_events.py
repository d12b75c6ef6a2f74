"""Events for quotas that are spent.

Agents have no account at the API server, so the leader asks the exporter of every node, in turn. An
answer is untrusted: whoever runs a pod in a node's own network can take the exporter's port there
while it is away. All that it can do is to say of a quota that it is spent.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import islice
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from netmgr.kube.agent_pods import AgentPod
from netmgr.kube.events import Events, Notice
from netmgr.kube.reconciling import Leadership

REASON = "QuotaSpent"
TURN_SECONDS = 60.0
"""How often each node is asked, in clusters of up to 6,000."""

ASKED_PER_SECOND = 100
ANSWER_SECONDS = 3.0
"""From connecting to the answer's end, whatever comes meanwhile."""

LONGEST_ANSWER = 256 * 1024
MOST_QUOTAS = 1000
"""Spent quotas of one node that are looked at, and Events that are kept up: the first by name."""

log = logging.getLogger(__name__)

_Label = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
_Name = Annotated[str, Field(pattern=r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?$")]
_Number = Annotated[int, Field(ge=0, le=10**18)]


class Spent(BaseModel):
    """A quota as an exporter names it; `api.snapshot.SpentQuota` says what the fields mean."""

    model_config = ConfigDict(frozen=True, strict=True)

    namespace: _Label
    pod: _Name
    uid: Annotated[str, Field(pattern=r"^[0-9a-f-]{0,64}$")]
    traffic: Literal["internet-in", "internet-out"]
    period: Literal["day", "month"]
    budget: _Number
    slow: _Number
    until: Annotated[int, Field(ge=0, le=10**11)]


_LIST = TypeAdapter(list[Spent])
_Answers = Mapping[str, Sequence[Spent]]
"""What each Node's exporter said last, by the Node's name."""


class QuotaEvents:
    """Writes an Event for each pod and namespace with a quota that is spent."""

    def __init__(self, leadership: Leadership) -> None:
        """Ask in a thread of its own: nodes that are down take time, which no round has."""
        self._leadership = leadership
        self._events = Events(leadership.api, leadership.identity)
        self._answers: _Answers = {}
        threading.Thread(target=self._ask, name="quotas", daemon=True).start()

    def reconcile(self) -> bool:
        """Write the Events; those that cannot be written are only logged."""
        self._events.report(notices(self._answers))
        return True

    def _ask(self) -> None:
        lost = self._leadership.lost
        while not lost.is_set():
            pods = self._leadership.agents.pods()
            if pods is None:
                lost.wait(1)
                continue
            asked = [pod for pod in pods if pod.exporter[1]]
            self._answers = self._ask_all(asked)
            lost.wait(max(1.0, TURN_SECONDS - len(asked) / ASKED_PER_SECOND))

    def _ask_all(self, pods: Sequence[AgentPod]) -> _Answers:
        found: dict[str, Sequence[Spent]] = {}
        failed: dict[str, Exception] = {}
        for begin in range(0, len(pods), ASKED_PER_SECOND):
            some = pods[begin : begin + ASKED_PER_SECOND]
            for pod, answer in zip(some, asyncio.run(_answers(some)), strict=True):
                if isinstance(answer, Exception):
                    failed[pod.node] = answer
                else:
                    found[pod.node] = answer
            self._leadership.lost.wait(1)
        for node, error in islice(failed.items(), 1):
            log.info("quotas-unread nodes=%d first=%s error=%s", len(failed), node, repr(error))
        return found


async def _answers(pods: Iterable[AgentPod]) -> list[Sequence[Spent] | Exception]:
    """What these pods' exporters say, or why they do not."""
    return await asyncio.gather(*(_try_to_ask(pod) for pod in pods))


async def _try_to_ask(pod: AgentPod) -> Sequence[Spent] | Exception:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return parse(await _get(*pod.exporter))
    except (OSError, ValueError) as error:
        return error


async def _get(address: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(address, port)
    try:
        writer.write(b"GET /quotas HTTP/1.0\r\n\r\n")
        answer = b""
        while len(answer) < LONGEST_ANSWER and (piece := await reader.read(1 << 16)):
            answer += piece
    finally:
        writer.close()
    return answer


def parse(answer: bytes) -> Sequence[Spent]:
    """The quotas in an exporter's whole HTTP answer.

    Raises:
        ValueError: it is none, or has a quota that makes no sense.
    """
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if status != [str(HTTPStatus.OK.value).encode()]:
        raise ValueError(f"answered {answer[:60]!r}; with TLS or a secret, it cannot be asked")
    return _LIST.validate_json(body)[:MOST_QUOTAS]


def notices(answers: _Answers) -> list[Notice]:
    """The Events that follow from what the Nodes' exporters said.

    A pod that moved, or a namespace that has pods on many nodes, has one Event for each quota.
    """
    nodes: dict[Spent, list[str]] = {}
    for node, spent in answers.items():
        for one in spent:
            nodes.setdefault(one, []).append(node)
    found = [_notice(one, sorted(where)) for one, where in nodes.items()]
    return sorted(found, key=lambda each: (each.namespace, each.name, each.key))[:MOST_QUOTAS]


def _notice(spent: Spent, nodes: Sequence[str]) -> Notice:
    others = f" and {len(nodes) - 1} other nodes" if len(nodes) > 1 else ""
    then = f"pass at {spent.slow} bits a second" if spent.slow else "are dropped"
    ends = datetime.fromtimestamp(spent.until, UTC).isoformat(timespec="minutes")
    # Not the nodes: a namespace's pods may spend their quota on one after the other.
    key = f"{spent.traffic} {spent.period} {spent.until} {spent.budget}"
    return Notice(
        kind="Pod" if spent.pod else "Namespace",
        name=spent.pod or spent.namespace,
        uid=spent.uid,
        reason=REASON,
        message=(
            f"{spent.budget} bytes of {spent.traffic} a {spent.period} are used on "
            f"{nodes[0]}{others}: further packets {then} until {ends}"
        ),
        namespace=spent.namespace,
        key=key,
    )
