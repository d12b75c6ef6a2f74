"""DEL: take a sandbox's interface away. Succeeds when there is nothing left to take."""

from __future__ import annotations

import logging

from cni.spec import Request
from netmgr.agent.node import LOCK_SECONDS, Node
from netmgr.dataplane import desired

log = logging.getLogger(__name__)


def delete(node: Node, request: Request, started_at: float) -> None:
    """Detach the sandbox.

    An ADD that began before this DEL may still be on its way, whether the DEL found something or
    not: the DEL is remembered, so that such an ADD is refused when it arrives. An ADD that began
    after this DEL is not its business: a spooled one may come when the same sandbox is attached
    again. `started_at` is when the launcher began, in seconds since boot.
    """
    with node.locks.holding(request.key, LOCK_SECONDS):
        node.leases.bury(request.key, started_at)
        attachment = node.leases.get(request.key)
        if attachment is None:
            if node.dataplane.detach(desired.host_link_name(request.key), request.netns):
                node.reaper.wake()
        elif started_at < attachment.started_at:
            log.info("late-del-ignored container=%s", request.container_id)
        else:
            node.detach(attachment, request.netns)
