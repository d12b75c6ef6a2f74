"""CHECK: is the attachment still as ADD left it?"""

from __future__ import annotations

from cni.spec import Request
from netmgr.agent.node import LOCK_SECONDS, Node
from netmgr.agent.verbs.expected import differences
from netmgr.errors import CheckFailed, KernelError


def check(node: Node, request: Request) -> None:
    """Compare memory, previous result, wiring and accounting.

    Raises:
        CheckFailed: something differs; every difference is named.
    """
    with node.locks.holding(request.key, LOCK_SECONDS):
        attachment = node.leases.get(request.key)
        if attachment is None:
            raise CheckFailed(f"container {request.container_id} has no attachment at {request.ifname}")
        faults = [*node.check(attachment, request.netns), *node.accounts.check(attachment)]
        try:
            faults += differences(request.previous, request, attachment) if request.previous else []
        except KernelError as error:
            faults.append(error.message)
    if faults:
        raise CheckFailed("; ".join(dict.fromkeys(faults)))
