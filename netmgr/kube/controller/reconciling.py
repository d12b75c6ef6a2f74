"""What the controller's reconcilers share: one leadership, and an interface."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from netmgr.errors import ApiError, ApiUnavailable
from netmgr.kube.client.agent_pods import AgentPod
from netmgr.kube.client.api import Api, Object, is_outdated
from netmgr.kube.client.concurrency import THREADS, Concurrency
from netmgr.kube.client.object_cache import ObjectCache
from netmgr.kube.controller.nodes import NodeView, as_time

Item = TypeVar("Item")

WRITERS = 4
"""Objects written at a time: 7,500 take half a minute, and a server has 200 writes in flight."""


@dataclass(frozen=True, slots=True)
class Leadership:
    """One process's time as the leader: what is followed, and whether it still leads."""

    api: Api
    identity: str
    """Author of Events: the controller's process."""
    nodes: ObjectCache[NodeView]
    agents: ObjectCache[AgentPod]
    agents_path: str
    """The collection of the agents' pods at the API server."""
    lost: threading.Event
    """Set when this process no longer leads."""
    beat: Callable[[], None]
    """Says that a long round makes progress."""
    concurrency: Concurrency = THREADS

    @property
    def generation(self) -> tuple[int, int]:
        """Grows with every change of a Node or an agent's pod that matters."""
        return self.nodes.generation, self.agents.generation


class ClusterReconciler(Protocol):
    """Writes one kind of thing to the API server, as the Nodes and agents' pods require it.

    Made anew for every leadership, so that it remembers nothing of what another leader has changed.
    """

    def reconcile(self) -> bool:
        """Write what differs; False when another round should follow soon.

        It reads what is followed and requests nothing that has not changed: rounds are two seconds
        apart, or less after a change.

        Raises:
            ApiError: the server is away, or refused; another round follows after a growing wait.
        """
        ...


def patch(
    cache: ObjectCache[Any], send: Callable[[str, Object], Object], path: str, body: Object
) -> bool:
    """Patch an object of a copy; False when another program changed it meanwhile."""
    try:
        # Applied at once: the watch delivers it later, and until then the next round would find the
        # object as it was and write it again.
        cache.update(send(path, body))
    except ApiError as error:
        if not is_outdated(error):
            raise
        return False
    return True


class Condition(NamedTuple):
    status: str
    reason: str
    message: str


def write_condition(
    leadership: Leadership, view: NodeView, kind: str, condition: Condition, since: str = ""
) -> bool:
    """Write a condition of a Node; False when another Node has its name.

    `since` is when it got this status, by default now.
    """
    now = as_time(leadership.concurrency.now())
    times = {"lastHeartbeatTime": now, "lastTransitionTime": since or now}
    content = {"type": kind, **condition._asdict(), **times}
    body: Object = {"metadata": {"uid": view.uid}, "status": {"conditions": [content]}}
    path = f"/api/v1/nodes/{view.name}/status"
    # Conditions are merged by their type, which a JSON merge patch cannot do.
    return patch(leadership.nodes, leadership.api.patch_by_key, path, body)


def write_each(
    leadership: Leadership, items: Sequence[Item], write: Callable[[Item], bool]
) -> bool:
    """As `try_each`, but raise the first error of a single object in the end."""
    is_settled, refused = try_each(leadership, items, write)
    if refused is not None:
        raise refused
    return is_settled


def try_each(
    leadership: Leadership, items: Sequence[Item], write: Callable[[Item], bool]
) -> tuple[bool, ApiError | None]:
    """Write many objects; an error of a single one delays no other.

    Returns:
        Whether every `write` returned True, and the first error of a single object.

    Raises:
        ApiUnavailable: the server is away, for all of them.
    """
    refused: list[ApiError] = []

    def write_one(item: Item) -> bool:
        # Only to spare the server: what must not happen twice is guarded by a resourceVersion.
        if leadership.lost.is_set():
            return True
        leadership.beat()
        try:
            return write(item)
        # The server is away for all other objects, too.
        except ApiUnavailable:
            raise
        except ApiError as error:
            refused.append(error)
            return False

    if not items:
        return True, None
    is_settled = all(leadership.concurrency.map(WRITERS, write_one, items))
    return is_settled, refused[0] if refused else None
