"""GC: collect every attachment the runtime does not list as valid."""

from __future__ import annotations

from cni.spec import Request
from netmgr.agent.node import Node


def collect_garbage(node: Node, request: Request) -> None:
    """Detach what is not in `cni.dev/valid-attachments`; a request under way for one saves it."""
    for attachment in node.leases.all():
        if attachment.key not in request.valid_attachments:
            node.collect(attachment.key, "the runtime no longer lists it")
