"""GC: collect every attachment the runtime does not list as valid."""

from __future__ import annotations

from cni.spec import Request
from netmgr.agent.node import Node


def collect_garbage(node: Node, request: Request) -> None:
    """Detach what is not in `cni.dev/valid-attachments`; a request under way for one saves it.

    Without that list only what has lost its sandbox is detached.
    """
    if request.valid_attachments is None:
        node.collect_vanished()
        return
    for attachment in node.leases.all():
        if attachment.key not in request.valid_attachments:
            node.collect(attachment.key, "the runtime no longer lists it")
