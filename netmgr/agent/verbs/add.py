"""ADD: give a sandbox its interface. May come twice, and may come after its own DEL."""

from __future__ import annotations

import logging
import os
from errno import ENOENT, ENOTDIR
from pathlib import Path

from cni.spec import Request, Wiring, add_result, pod_ref
from netmgr.agent.node import LOCK_SECONDS, Node
from netmgr.config import POD_GATEWAYS
from netmgr.dataplane import desired, netlink
from netmgr.errors import InvalidEnvironment, KernelError, UnknownContainer
from netmgr.model import Attachment, Requested

MOST_ID_BYTES = 255
"""Of a container id: NAME_MAX, since runtimes and libcni name files by it."""

log = logging.getLogger(__name__)


def add(node: Node, request: Request, started_at: float) -> dict[str, object]:
    """Attach the sandbox, or answer with the attachment it has already.

    `started_at` is when the launcher began, in seconds since boot.

    Raises:
        UnknownContainer: there is no sandbox, or it was deleted while this ADD was on its way.
        InvalidEnvironment: CNI_NETNS is the node's own network namespace, or none at all; the container id is too long.
        AddressUnavailable: the address that the runtime asks for cannot be given.
        CapacityError, KernelError, StateError, TryAgainLater: see their classes; nothing is left behind.
    """
    _refuse_long_id(request)
    _tell_what_is_ignored(request)
    with node.locks.holding(request.key, LOCK_SECONDS):
        buried = node.leases.buried(request.key)
        if buried is not None and started_at <= buried:
            raise UnknownContainer(f"container {request.container_id} was deleted while its ADD was on its way")
        _require_sandbox(node, request)
        attachment = _standing(node, request)
        if attachment is None:
            attachment = node.attach(request.key, pod_ref(request), request.netns, started_at, request.requested)
            mac = request.requested.mac or desired.pod_mac(attachment.key)
        else:
            node.leases.renew(attachment.key, started_at)
            # A later plugin of the chain may have changed it.
            mac = node.dataplane.pod_mac(attachment)
    return _result(node, request, attachment, mac)


def _standing(node: Node, request: Request) -> Attachment | None:
    """The attachment an earlier ADD of the same sandbox made, if it is whole."""
    attachment = node.leases.get(request.key)
    if attachment is None:
        return None
    is_there = attachment.netns in ("", request.netns) and not node.check(attachment, request.netns)
    if is_there and _is_as_asked(node, request.requested, attachment):
        return attachment
    # The container came back with another sandbox or wish, or half of one: what is left is of no use to it.
    node.detach(attachment)
    return None


def _is_as_asked(node: Node, requested: Requested, attachment: Attachment) -> bool:
    has_addresses = set(requested.addresses) <= set(attachment.addresses)
    return has_addresses and (not requested.mac or node.dataplane.pod_mac(attachment) == requested.mac)


def _require_sandbox(node: Node, request: Request) -> None:
    """Refuse what no ADD can attach, before anything is given to it."""
    try:
        descriptor = netlink.open_namespace(request.netns)
    except KernelError as error:
        if error.errno in (ENOENT, ENOTDIR):
            # Code 3 promises the runtime that nothing is left to clean up.
            if attachment := node.leases.get(request.key):
                node.detach(attachment)
            raise UnknownContainer(f"CNI_NETNS: there is no {request.netns}, so no container") from None
        if not error.errno:
            raise InvalidEnvironment(f"CNI_NETNS: {error.message}") from None
        raise
    try:
        is_own = os.path.samestat(os.fstat(descriptor), Path("/proc/thread-self/ns/net").stat())
    finally:
        os.close(descriptor)
    if is_own and not request.netns_override:
        raise InvalidEnvironment("CNI_NETNS is the node's own network namespace, not a sandbox")


def _tell_what_is_ignored(request: Request) -> None:
    if request.runtime and request.runtime.ignored:
        keys = ",".join(map(ascii, request.runtime.ignored))
        log.warning("runtime-config-ignored container=%s keys=%s", request.container_id, keys)


def _refuse_long_id(request: Request) -> None:
    if len(request.container_id) > MOST_ID_BYTES:
        raise InvalidEnvironment(
            f"CNI_CONTAINERID: {request.container_id[:40]!r}… has {len(request.container_id)} bytes, more than "
            f"the {MOST_ID_BYTES} that a runtime could name a file by"
        )


def _result(node: Node, request: Request, attachment: Attachment, mac: bytes) -> dict[str, object]:
    wiring = Wiring(
        host_link=attachment.host_link,
        host_mac=desired.HOST_MAC.hex(":"),
        pod_link=attachment.key.ifname,
        pod_mac=mac.hex(":"),
        netns=request.netns,
        addresses=attachment.addresses,
        gateways=POD_GATEWAYS,
        mtu=node.dataplane.mtu,
    )
    previous = request.config.get("prevResult")
    return add_result(request.version, wiring, request.dns, previous if isinstance(previous, dict) else None)
