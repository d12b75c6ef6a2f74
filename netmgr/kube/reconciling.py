"""What the controller's reconcilers share: one leadership, and the form that each of them has."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from netmgr.kube.agent_pods import AgentPods
from netmgr.kube.api import Api
from netmgr.kube.nodes import ClusterNodes

WRITERS = 4
"""Objects written at a time: 7,500 take half a minute, and a server has 200 writes in flight."""


@dataclass(frozen=True, slots=True)
class Leadership:
    """One process's time as the leader: what is followed, and whether it still leads."""

    api: Api
    identity: str
    """Author of Events: the controller's process."""
    nodes: ClusterNodes
    agents: AgentPods
    lost: threading.Event
    """Set when this process no longer leads. Looked at before writes, to spare the server; what
    must not happen twice is guarded by a resourceVersion."""
    beat: Callable[[], None]
    """Says that a long round makes progress."""


class Reconciler(Protocol):
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
