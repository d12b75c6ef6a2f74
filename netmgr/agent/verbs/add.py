"""ADD: give a sandbox its interface. May come twice, and may come after its own DEL."""

from __future__ import annotations

from pathlib import Path

from cni.spec import Request, Wiring, add_result, pod_ref
from netmgr.agent.node import LOCK_SECONDS, Node
from netmgr.config import POD_GATEWAYS
from netmgr.dataplane import desired
from netmgr.errors import InvalidEnvironment, UnknownContainer
from netmgr.model import Attachment


def add(node: Node, request: Request, started_at: float) -> dict[str, object]:
    """Attach the sandbox, or answer with the attachment it has already.

    `started_at` is when the launcher began, in seconds since boot.

    Raises:
        UnknownContainer: the sandbox was deleted while this ADD was on its way.
        InvalidEnvironment: the sandbox is the node's own network namespace.
        CapacityError, KernelError, StateError, TryAgainLater: see their classes; nothing is left behind.
    """
    _refuse_own_namespace(request)
    with node.locks.holding(request.key, LOCK_SECONDS):
        buried = node.leases.buried(request.key)
        if buried is not None and started_at <= buried:
            raise UnknownContainer(f"container {request.container_id} was deleted while its ADD was on its way")
        attachment = _standing(node, request)
        if attachment is None:
            attachment = node.attach(request.key, pod_ref(request), request.netns, started_at)
        else:
            node.leases.renew(attachment.key, started_at)
    return _result(node, request, attachment)


def _standing(node: Node, request: Request) -> Attachment | None:
    """The attachment an earlier ADD of the same sandbox made, if it is whole."""
    attachment = node.leases.get(request.key)
    if attachment is None:
        return None
    if attachment.netns in ("", request.netns) and not node.dataplane.check(attachment, request.netns):
        return attachment
    # The container came back with another sandbox, or half of one: what is left is of no use to it.
    node.detach(attachment)
    return None


def _refuse_own_namespace(request: Request) -> None:
    if request.netns_override:
        return
    try:
        same = Path(request.netns).samefile("/proc/thread-self/ns/net")
    except OSError:
        return  # attaching says what is wrong with it
    if same:
        raise InvalidEnvironment("CNI_NETNS is the node's own network namespace, not a sandbox")


def _result(node: Node, request: Request, attachment: Attachment) -> dict[str, object]:
    wiring = Wiring(
        host_link=attachment.host_link,
        host_mac=desired.HOST_MAC.hex(":"),
        pod_link=attachment.key.ifname,
        pod_mac=desired.pod_mac(attachment.key).hex(":"),
        netns=request.netns,
        addresses=attachment.addresses,
        gateways=POD_GATEWAYS,
        mtu=node.dataplane.mtu,
    )
    previous = request.config.get("prevResult")
    return add_result(request.version, wiring, request.dns, previous if isinstance(previous, dict) else None)
