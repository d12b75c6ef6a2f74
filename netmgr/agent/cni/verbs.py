"""The CNI verbs (specification 1.1.0): ADD, DEL, CHECK and GC, each under its attachment's lock."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from errno import ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR
from pathlib import Path

from cni.request import Request, pod_ref
from cni.results import Wiring, add_result
from netmgr import errors
from netmgr.agent.cni.expected import differences
from netmgr.agent.cni.node import LOCK_SECONDS, Node
from netmgr.dataplane import desired
from netmgr.documents.node import POD_GATEWAYS
from netmgr.kernel import netns
from netmgr.kernel.contents import contents_of, own_contents
from netmgr.model import Attachment, Requested
from netmgr.prefixes import Family
from netmgr.suspects import Suspects

MOST_ID_BYTES = 255
"""Of a container id: NAME_MAX, since runtimes and libcni name files by it."""

log = logging.getLogger(__name__)


def add(node: Node, request: Request, started_at: float) -> dict[str, object]:
    """ADD: attach the sandbox, or answer with the attachment it has already.

    May come twice, and may come after its own DEL.

    `started_at` is when the launcher began, in seconds since boot.

    Raises:
        UnknownContainer: there is no sandbox, or it was deleted while this ADD was on its way.
        InvalidEnvironment: CNI_NETNS is the node's own network namespace, or none at all; or the
            container id is too long.
        AddressUnavailable: the address that the runtime asks for cannot be given.
        CapacityError, KernelError, StateError, TryAgainLater: as their classes say.
    """
    _refuse_long_id(request)
    _check_runtime_config(node, request)
    with node.locks.holding(request.key, LOCK_SECONDS):
        deleted_at = node.leases.tombstone(request.key)
        if deleted_at is not None and started_at <= deleted_at:
            raise errors.UnknownContainer(
                f"container {request.container_id} was deleted while its ADD was on its way"
            )
        # Before an address is taken: a sandbox that is gone must not cost one a cooldown.
        _require_sandbox(node, request)
        attachment = _existing(node, request)
        if attachment is None:
            attachment = node.attach(
                request.key, pod_ref(request), request.netns, started_at, request.requested
            )
            mac = request.requested.mac or desired.pod_mac(attachment.key)
            host_mtu = pod_mtu = node.dataplane.mtu
        else:
            # So that a DEL of the earlier ADD, which may be in the spool, does not end this one.
            node.leases.renew(attachment.key, started_at, request.netns)
            # A later plugin of the chain may have changed them, and the uplink has another MTU.
            host, pod = node.dataplane.ends(attachment)
            mac, host_mtu, pod_mtu = pod.mac, host.mtu, pod.mtu
    wiring = Wiring(
        host_link=attachment.host_link,
        host_mac=desired.HOST_MAC.hex(":"),
        host_mtu=host_mtu,
        pod_link=attachment.key.ifname,
        pod_mac=mac.hex(":"),
        pod_mtu=pod_mtu,
        netns=request.netns,
        addresses=attachment.addresses,
        gateways=POD_GATEWAYS,
    )
    previous = request.config.get("prevResult")
    return add_result(
        request.version, wiring, request.dns, previous if isinstance(previous, dict) else None
    )


def _existing(node: Node, request: Request) -> Attachment | None:
    """The attachment an earlier ADD of the same sandbox made, if it is whole."""
    attachment = node.leases.get(request.key)
    if attachment is None:
        return None
    # A MAC that the chain changed a moment ago: the kernel's message may still be on its way.
    with suppress(errors.KernelError):
        node.dataplane.neighbours.follow(attachment, request.netns)
    is_whole = not node.check(attachment, request.netns)
    if is_whole and _is_as_asked(node, request.requested, attachment):
        return attachment
    # The container came back with another sandbox or request, or its attachment is incomplete:
    # the ADD makes a new one.
    node.detach(attachment)
    return None


def _is_as_asked(node: Node, requested: Requested, attachment: Attachment) -> bool:
    has_addresses = set(requested.addresses) <= set(attachment.addresses)
    return has_addresses and requested.mac in (b"", node.dataplane.ends(attachment)[1].mac)


def _require_sandbox(node: Node, request: Request) -> None:
    """Refuse what no ADD can attach, before anything is given to it."""
    try:
        descriptor = netns.open_namespace(request.netns)
    except errors.KernelError as error:
        if error.errno in (ENOENT, ENOTDIR):
            # Code 3 promises the runtime that nothing is left to clean up.
            if attachment := node.leases.get(request.key):
                node.detach(attachment)
            raise errors.UnknownContainer(
                f"CNI_NETNS: there is no {request.netns}, so no container"
            ) from None
        if error.errno in (0, ELOOP, ENAMETOOLONG):
            raise errors.InvalidEnvironment(f"CNI_NETNS: {error.message}") from None
        raise
    try:
        # By device and inode: many paths lead to one namespace.
        is_own = os.path.samestat(os.fstat(descriptor), Path("/proc/thread-self/ns/net").stat())
    finally:
        os.close(descriptor)
    if is_own and not request.netns_override:
        raise errors.InvalidEnvironment(
            "CNI_NETNS is the node's own network namespace, not a sandbox"
        )


def _check_runtime_config(node: Node, request: Request) -> None:
    """Refuse limits that cannot be kept, and log what this node does not honour."""
    if request.runtime is None:
        return
    if node.honours_annotations and request.runtime.rates_fault:
        raise errors.InvalidNetworkConfig(request.runtime.rates_fault)
    if ignored := request.runtime.ignored_by(honours_limits=node.honours_annotations):
        keys = ",".join(map(ascii, ignored))
        log.warning("runtime-config-ignored container=%s keys=%s", request.container_id, keys)


def _refuse_long_id(request: Request) -> None:
    if len(request.container_id) > MOST_ID_BYTES:
        raise errors.InvalidEnvironment(
            f"CNI_CONTAINERID: {request.container_id[:40]!r}… has {len(request.container_id)} "
            f"bytes, more than the {MOST_ID_BYTES} that a runtime could name a file by"
        )


def delete(node: Node, request: Request, started_at: float) -> None:
    """DEL: detach the sandbox. Succeeds when there is nothing left to detach.

    An ADD that began before this DEL may still be on its way, whether the DEL found something or
    not: the DEL is remembered, so that such an ADD is refused when it arrives. An ADD that began
    after this DEL is not its business: a spooled one may come when the same sandbox is attached
    again. `started_at` is when the launcher began, in seconds since boot.
    """
    with node.locks.holding(request.key, LOCK_SECONDS):
        node.leases.add_tombstone(request.key, started_at)
        attachment = node.leases.get(request.key)
        if attachment is None:
            # A link may be there without an attachment, and this DEL may be the last one for it.
            link = desired.host_link_name(request.key)
            node.dataplane.detach(link, request.netns, request.key)
        elif started_at < attachment.started_at:
            log.info("late-del-ignored container=%s", request.container_id)
        else:
            node.detach(attachment, request.netns)


def check(node: Node, request: Request) -> None:
    """CHECK: compare memory, previous result, wiring and accounting.

    Raises:
        CheckFailed: something differs; every difference is named.
    """
    node.await_followed(request.key)
    with node.locks.holding(request.key, LOCK_SECONDS):
        attachment = node.leases.get(request.key)
        if attachment is None:
            raise errors.CheckFailed(
                f"container {request.container_id} has no attachment at {request.ifname}"
            )
        faults = node.accounts.check(attachment)
        # The sandbox may go at any moment.
        try:
            faults += node.check(attachment, request.netns, _moved_defaults(request))
            if request.previous:
                inside, outside = contents_of(request.netns), own_contents()
                faults += differences(request.previous, request, attachment, inside, outside)
        except errors.KernelError as error:
            faults.append(error.message)
    if faults:
        # Several comparisons may find the same fault.
        raise errors.CheckFailed("; ".join(dict.fromkeys(faults)))


def _moved_defaults(request: Request) -> frozenset[Family]:
    """Families whose default route another plugin took from this interface, by `prevResult`.

    Multus does so for a pod that wants its default route on another interface.
    """
    listed = request.previous.routes if request.previous else ()
    kept = {route.destination.family for route in listed if route.destination.length == 0}
    return frozenset(Family) - kept


def collect_garbage(node: Node, request: Request, started_at: float) -> None:
    """GC: detach what is not in `cni.dev/valid-attachments`, unless a request for it is under way.

    Without that list only what has lost its sandbox is detached. `started_at` is when the launcher
    began, in seconds since boot.

    Raises:
        NetmgrError: one could not be detached; all the others were.
    """
    valid = request.valid_attachments
    if valid is None:
        node.collect_vanished()
        return
    node.collect(
        Suspects(
            tuple(attachment for attachment in node.leases.all() if attachment.key not in valid)
        ),
        lambda _: "the runtime no longer lists it",
        # What an ADD made since then cannot be listed.
        lambda attachment: attachment.started_at < started_at,
    )
