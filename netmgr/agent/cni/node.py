"""ADD, DEL and CHECK of a node (CNI specification 1.1.0), each under its attachment's lock.

The order of steps is what makes every crash harmless:

- attach: hold the address, make the link, begin to count, bring the link up. A crash leaves a
  held address with no link or half of one, which the next start collects; nothing was counted
  that is not in the ledger.
- detach: unwire, read for the last time, stop counting, release the address. A crash leaves
  an attachment whose link is gone; the runtime, unanswered, or the launcher's spool repeats
  the DEL.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from errno import ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR
from functools import partial
from pathlib import Path

from cni.request import Request
from cni.results import Json, Wiring, add_result
from netmgr import errors
from netmgr.agent.accounting.accounting import NodeAccounting
from netmgr.agent.accounting.connections import ConnectionLimits
from netmgr.agent.accounting.limits import Limits
from netmgr.agent.cni.expected import differences
from netmgr.agent.core.components import Agent, Component
from netmgr.agent.network.pool import NodeAddresses
from netmgr.dataplane import desired
from netmgr.descriptors import closing
from netmgr.documents.node import POD_GATEWAYS
from netmgr.kernel import netns
from netmgr.kernel.capabilities import Capability
from netmgr.kernel.contents import contents_of, own_contents
from netmgr.model import Attachment, AttachmentKey
from netmgr.prefixes import Family

LOCK_SECONDS = 20.0
"""How long a request waits for another one of the same attachment."""

FOLLOW_SECONDS = 1.0
"""How long a change of a pod's hardware address waits for a request of the same attachment."""

_FOLLOW_POLL_SECONDS = 0.01

# A burst ends sooner when four requests work at a time than when a hundred fight over the
# interpreter and the kernel's routing lock.
TURNS = 4
# Even a caller that waits for no lock waits this long for a turn, which lasts milliseconds.
_LEAST_TURN_SECONDS = 1.0

# Of a container id: NAME_MAX, since runtimes and libcni name files by it.
MOST_ID_BYTES = 255

log = logging.getLogger(__name__)


class AttachmentLocks:
    """Locks by attachment key, made when needed and dropped with the last who waits.

    Verbs of one attachment wait for each other and for no others. Whoever holds its lock then waits
    for one of a few turns.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._turns = threading.BoundedSemaphore(TURNS)
        self._locks: dict[AttachmentKey, tuple[threading.Lock, int]] = {}

    @contextmanager
    def holding(self, key: AttachmentKey, seconds: float) -> Iterator[None]:
        """Hold the lock of `key`, and a turn, for the block; TryAgainLater after these seconds."""
        with ExitStack() as stack:
            with self._guard:
                # Counted before it is waited for: whoever leaves last drops the lock, and only then
                # may a new one be made for this key.
                lock, waiting = self._locks.get(key, (threading.Lock(), 0))
                self._locks[key] = lock, waiting + 1
                stack.callback(self._leave, key)
            deadline = time.monotonic() + seconds
            # Outside `_guard`, which all requests share.
            if not lock.acquire(timeout=seconds):
                raise errors.TryAgainLater(
                    f"another request for {key.container_id} {key.ifname} is still under way"
                )
            stack.callback(lock.release)
            turn_seconds = max(deadline - time.monotonic(), _LEAST_TURN_SECONDS)
            if not self._turns.acquire(timeout=turn_seconds):
                raise errors.TryAgainLater(
                    f"the {TURNS} requests under way have not ended within {turn_seconds:.0f} s"
                )
            stack.callback(self._turns.release)
            yield

    def _leave(self, key: AttachmentKey) -> None:
        with self._guard:
            # Container ids do not come again: kept locks would fill the memory.
            lock, waiting = self._locks.pop(key)
            if waiting > 1:
                self._locks[key] = lock, waiting - 1


class Node(Component):
    """The parts of one node whose pods this agent wires."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        pool = agent.get(NodeAddresses)
        self.leases, self.dataplane = pool.leases, pool.dataplane
        self.accounts = agent.get(NodeAccounting).accounts
        self.locks = AttachmentLocks()
        self._limits = agent.find(Limits)
        self._connections = agent.find(ConnectionLimits)

    def capabilities(self) -> Iterable[Capability]:
        # setns(2), also by /proc/PID/ns/net of a process of another user.
        return (Capability.SYS_ADMIN, Capability.SYS_PTRACE)

    def add(self, request: Request, started_at: float) -> Json:
        """ADD: attach the sandbox, or answer with the attachment it has already.

        May come twice, and may come after its own DEL.

        `started_at` is when the launcher began, in seconds since boot.

        Raises:
            UnknownContainer: there is no sandbox, or it was deleted while this ADD was on its way.
            InvalidEnvironment: CNI_NETNS is the node's own network namespace, or none at all; or
                the container id is too long.
            AddressUnavailable: the address that the runtime asks for cannot be given.
            CapacityError, KernelError, StateError, TryAgainLater: as their classes say.
        """
        if len(request.container_id) > MOST_ID_BYTES:
            raise errors.InvalidEnvironment(
                f"CNI_CONTAINERID: {request.container_id[:40]!r}… has {len(request.container_id)} "
                f"bytes, more than the {MOST_ID_BYTES} that a runtime could name a file by"
            )
        self._check_runtime_config(request)
        with self.locks.holding(request.key, LOCK_SECONDS):
            deleted_at = self.leases.tombstone(request.key)
            if deleted_at is not None and started_at <= deleted_at:
                raise errors.UnknownContainer(
                    f"container {request.container_id} was deleted while its ADD was on its way"
                )
            # Before an address is taken: a sandbox that is gone must not cost one a cooldown.
            self._require_sandbox(request)
            attachment = self._existing(request)
            if attachment is None:
                attachment = self.attach(request, started_at)
                mac = request.runtime.requested.mac or desired.pod_mac(attachment.key)
                host_mtu = pod_mtu = self.dataplane.mtu
            else:
                # So that a DEL of the earlier ADD, which may be in the spool, does not end this
                # one.
                self.leases.renew(attachment.key, started_at, request.netns)
                # A later plugin of the chain may have changed them, and the uplink has another MTU.
                host, pod = self.dataplane.ends(attachment)
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
        previous = request.previous.document if request.previous else None
        return add_result(request.version, wiring, request.dns, previous)

    def _check_runtime_config(self, request: Request) -> None:
        """Refuse limits that cannot be kept, and log what this node does not honour."""
        honours_limits = self._limits is not None and self._limits.honours_annotations
        if honours_limits and request.runtime.rates_fault:
            raise errors.InvalidNetworkConfig(request.runtime.rates_fault)
        if ignored := request.runtime.ignored_by(honours_limits=honours_limits):
            keys = ",".join(map(ascii, ignored))
            log.warning("runtime-config-ignored container=%s keys=%s", request.container_id, keys)

    def _require_sandbox(self, request: Request) -> None:
        """Refuse what no ADD can attach, before anything is given to it."""
        try:
            descriptor = netns.open_namespace(request.netns)
        except errors.KernelError as error:
            if error.errno in (ENOENT, ENOTDIR):
                # Code 3 promises the runtime that nothing is left to clean up.
                if attachment := self.leases.get(request.key):
                    self.detach(attachment)
                raise errors.UnknownContainer(
                    f"CNI_NETNS: there is no {request.netns}, so no container"
                ) from None
            # 0: what is there is no network namespace.
            if error.errno in (0, ELOOP, ENAMETOOLONG):
                raise errors.InvalidEnvironment(f"CNI_NETNS: {error.message}") from None
            raise
        with closing(descriptor):
            # By device and inode: many paths lead to one namespace.
            is_own = os.path.samestat(os.fstat(descriptor), Path("/proc/thread-self/ns/net").stat())
        if is_own and not request.netns_override:
            raise errors.InvalidEnvironment(
                "CNI_NETNS is the node's own network namespace, not a sandbox"
            )

    def _existing(self, request: Request) -> Attachment | None:
        """The attachment an earlier ADD of the same sandbox made, if it is whole."""
        attachment = self.leases.get(request.key)
        if attachment is None:
            return None
        # A MAC that the chain changed a moment ago: the kernel's message may still be on its way.
        with suppress(errors.KernelError):
            self.dataplane.neighbours.follow(attachment, request.netns)
        requested = request.runtime.requested
        if (
            not self.dataplane.check(attachment, request.netns)
            and set(requested.addresses) <= set(attachment.addresses)
            and requested.mac in (b"", self.dataplane.ends(attachment)[1].mac)
        ):
            return attachment
        # The container came back with another sandbox or request, or its attachment is incomplete:
        # the ADD makes a new one.
        self.detach(attachment)
        return None

    def attach(self, request: Request, started_at: float) -> Attachment:
        """Give a sandbox its addresses, counters and link; a failure leaves nothing behind."""
        key, requested = request.key, request.runtime.requested
        link = desired.host_link_name(key)
        wanted = Attachment(
            key, request.pod, requested.addresses, link, request.netns, started_at, requested.rates
        )
        attachment = self.leases.reserve(wanted)
        try:
            # The pod's first packet is counted, by a link that is there and still down.
            counting = partial(self.accounts.begin, attachment)
            self.dataplane.attach(attachment, requested.mac, counting)
            # The link has to be there first. The pod's program is not started before the answer.
            if self._connections:
                self._connections.begin(attachment)
            if self._limits:
                self._limits.begin(attachment)
        # A fault of ours, too, must leave neither a held address nor a link.
        except BaseException:
            try:
                self.detach(attachment)
            except errors.NetmgrError as error:
                # The answer to the runtime is why the ADD failed, not why it could not be undone.
                # What is left is an attachment without a link: the next reconcile collects it.
                log.error(  # noqa: TRY400  the message says all there is
                    "failed-add-not-undone container=%s ifname=%s error=%s",
                    key.container_id,
                    key.ifname,
                    error,
                )
            raise
        return attachment

    def detach(self, attachment: Attachment, netns: str = "") -> None:
        """Undo `attach`, as far as it got. `netns` is where the sandbox is, if it moved."""
        self.dataplane.detach(attachment.host_link, netns or attachment.netns, attachment.key)
        # After the link is gone, so that the last reading misses nothing. The address goes last:
        # until it is released, a DEL that is repeated finds the attachment.
        self.accounts.end(attachment)
        self.leases.release(attachment)

    def delete(self, request: Request, started_at: float) -> None:
        """DEL: detach the sandbox. Succeeds when there is nothing left to detach.

        `started_at` is when the launcher began, in seconds since boot.
        """
        with self.locks.holding(request.key, LOCK_SECONDS):
            # An ADD that began before this DEL may still be on its way, whatever is found here: it
            # is refused when it arrives.
            self.leases.add_tombstone(request.key, started_at)
            attachment = self.leases.get(request.key)
            if attachment is None:
                # A link may be there without an attachment, and this DEL may be the last one for
                # it.
                link = desired.host_link_name(request.key)
                self.dataplane.detach(link, request.netns, request.key)
            elif started_at < attachment.started_at:
                # A spooled DEL may come when the same sandbox is attached again.
                log.info("late-del-ignored container=%s", request.container_id)
            else:
                self.detach(attachment, request.netns)

    def check(self, request: Request) -> None:
        """CHECK: compare memory, previous result, wiring and accounting."""
        self._await_followed(request.key)
        with self.locks.holding(request.key, LOCK_SECONDS):
            attachment = self.leases.get(request.key)
            if attachment is None:
                raise errors.CheckFailed(
                    f"container {request.container_id} has no attachment at {request.ifname}"
                )
            faults = self.accounts.check(attachment)
            # The sandbox may go at any moment.
            try:
                faults += self.dataplane.check(attachment, request.netns, _moved_defaults(request))
                if request.previous:
                    inside, outside = contents_of(request.netns), own_contents()
                    faults += differences(request.previous, request, attachment, inside, outside)
            except errors.KernelError as error:
                faults.append(error.message)
        if faults:
            # Several comparisons may find the same fault.
            raise errors.CheckFailed("; ".join(dict.fromkeys(faults)))

    def _await_followed(self, key: AttachmentKey) -> None:
        """Wait a moment until entries follow a MAC that the chain has just changed.

        That takes the attachment's lock, which the caller must not hold.
        """
        deadline = time.monotonic() + FOLLOW_SECONDS
        while (attachment := self.leases.get(key)) and self.dataplane.lags_behind(attachment):
            if time.monotonic() > deadline:
                return
            time.sleep(_FOLLOW_POLL_SECONDS)


def _moved_defaults(request: Request) -> frozenset[Family]:
    """Families whose default route another plugin took from this interface, by `prevResult`."""
    # Multus does so for a pod that wants its default route on another interface.
    listed = request.previous.routes if request.previous else ()
    kept = {route.destination.family for route in listed if route.destination.length == 0}
    return frozenset(Family) - kept
