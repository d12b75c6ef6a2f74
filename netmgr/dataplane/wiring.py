"""Carries out what `desired` asks for, and compares it with what the kernel has.

Deleting a link costs one of the kernel's grace periods (about 20 ms), alone or in a group. So
`detach` takes the link down and marks it, and `reap` deletes all marked links at once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable
from errno import EEXIST, ENODEV

from netmgr.dataplane import desired, drift, sandbox, settings
from netmgr.dataplane.desired import REAP_GROUP, Identity
from netmgr.dataplane.drift import Drift, Foreign, Host
from netmgr.dataplane.neighbours import Neighbours
from netmgr.errors import ConfigError, KernelError
from netmgr.kernel import links, netlink, netns, routes
from netmgr.kernel.links import Link, read_addresses, read_links
from netmgr.kernel.netlink import Netlink, Operation
from netmgr.kernel.routes import Route, read_routes
from netmgr.model import ROUTE_PROTOCOL, Attachment
from netmgr.prefixes import Address, Family

DEFAULT_MTU = 1500

log = logging.getLogger(__name__)


class Dataplane:
    """The node's side of every pod's link.

    Args:
        uplink: interface whose MTU pods get; None for the one with the default route.
        mtu: bytes, instead of any interface's.
    """

    def __init__(self, *, uplink: str | None = None, mtu: int | None = None) -> None:
        self._netlink = Netlink()
        self.neighbours = Neighbours(self._netlink)
        self._uplink = uplink
        self._mtu = mtu
        self.mtu = DEFAULT_MTU
        self.refresh_mtu()

    def close(self) -> None:
        """Close the netlink socket."""
        self._netlink.close()

    def refresh_mtu(self) -> None:
        """Follow the uplink's MTU; pods attached from now on get it."""
        self.mtu = self._measure_mtu()

    def _measure_mtu(self) -> int:
        if self._mtu is not None:
            return self._mtu
        present = read_links(self._netlink)
        if self._uplink is not None:
            for link in present:
                if link.name == self._uplink:
                    return link.mtu
            raise ConfigError(
                f"node.uplink: this node has no interface {self._uplink}; "
                "name one it has, or set mtu"
            )
        defaults = [
            route.oif for route in read_routes(self._netlink) if route.destination.length == 0
        ]
        # A node may be without a default route, or have one over several links (with no link of
        # its own), for a moment or for good: then what was measured last still holds.
        uplink = defaults[0] if defaults else None
        return next((link.mtu for link in present if link.number == uplink), self.mtu)

    def attach(self, attachment: Attachment, mac: bytes = b"") -> None:
        """Wire an attachment into the sandbox at its namespace path. On failure nothing is left.

        The pod's end gets this MAC, if one is given.

        Raises:
            KernelError: the namespace is gone, or the kernel refused an operation.
        """
        mac = mac or desired.pod_mac(attachment.key)
        sandbox_ns = netns.open_namespace(attachment.netns)
        try:
            self._create(attachment, sandbox_ns, mac)
            try:
                # Both ends are down until now. Once the host's end is up it would take a router
                # advertisement or an ARP request of the pod's, so its settings come first.
                self._netlink.transact([settings.restrict(attachment.host_link)])
                # IPv6's are files, which came into being with the link.
                settings.write_files(attachment.host_link)
                # The last of these brings the host's end up.
                self._netlink.transact(desired.naming(attachment))
                self._configure(attachment, sandbox_ns, mac)
            # A failed ADD leaves nothing behind, also one that ends by a signal's exception.
            except BaseException:
                self._remove(attachment.host_link, attachment.netns)
                raise
        finally:
            os.close(sandbox_ns)

    def _create(self, attachment: Attachment, sandbox_ns: int, mac: bytes) -> None:
        operation = desired.creation(attachment, self.mtu, sandbox_ns, mac)
        failure = self._netlink.attempt([operation]).get(operation)
        if failure is None:
            return
        # The name follows from container and interface, so a predecessor of both has it until it is
        # reaped.
        if failure.errno != EEXIST or not self._has_cleared(attachment):
            raise failure
        self._netlink.transact([operation])

    def _has_cleared(self, attachment: Attachment) -> bool:
        """Whether the host end's name is free now. A foreign link keeps it."""
        present = self._link(attachment.host_link)
        if present is not None and not desired.is_host_end(present):
            return False
        self._remove(attachment.host_link, attachment.netns)
        return True

    def _remove(self, host_link: str, netns_path: str) -> None:
        """Delete a host end now. If the kernel refuses, the reaper or the next start does it."""
        try:
            self.detach(host_link, netns_path)
            self.reap()
        except KernelError as error:
            log.error("link-not-removed link=%s error=%s", host_link, error)  # noqa: TRY400  expected, no fault

    def _configure(self, attachment: Attachment, sandbox_ns: int, mac: bytes) -> None:
        inside, pod_index = netlink.open_in(sandbox_ns, attachment.key.ifname)
        with inside:
            # The sandbox first: a link with its route on the host is a pod that runs, which is
            # what an agent that finds it after a crash relies on.
            inside.transact(desired.pod_side(attachment, pod_index))
            host_index = netlink.index_of(attachment.host_link)
            operations = desired.host_side(attachment, host_index, mac)
            # The kernel makes carrier and local routes usable from work queues. Without waiting
            # for both, one pod in ten lost its first packet under load.
            self._netlink.transact([*operations, links.settle_link(host_index)])
            sandbox.wait_for_addresses(inside, attachment)

    def detach(self, host_link: str, netns_path: str = "") -> bool:
        """Take a host end down, which ends its traffic; False if there is no such link of ours.

        Where its sandbox is at `netns_path`, the pod's end loses its name and addresses as well.
        """
        link = self._link(host_link)
        if link is None or not desired.is_host_end(link):
            return False
        # Down and marked in one message: a crash leaves no link that is down and looks in use.
        operation = links.lower_link(host_link, REAP_GROUP)
        failure = self._netlink.attempt([operation]).get(operation)
        if failure is not None and failure.errno == ENODEV:
            return False
        if failure is not None:
            raise failure
        if netns_path:
            self._vacate(link, netns_path)
        return True

    def _vacate(self, link: Link, netns_path: str) -> None:
        try:
            identity = desired.identity_of(link)
            table = desired.route_metric(identity.key) if identity else 0
            sandbox.vacate(self._netlink, link, netns_path, table)
        except KernelError as error:
            # ENODEV: the sandbox went, and the pod's end with it.
            if error.errno != ENODEV:
                # A sandbox may be reused, and CNI wants the interface gone when DEL returns, so
                # the pair is deleted now, for all its 20 ms.
                log.warning("pod-end-not-vacated action=delete link=%s error=%s", link.name, error)
                self.reap()

    def reap(self) -> int:
        """Delete every detached host end; how many there were."""
        marked = [link for link in read_links(self._netlink) if link.group == REAP_GROUP]
        own = [link for link in marked if desired.is_host_end(link)]
        # A group can be set by anybody, and deleting by group asks for no name.
        if own and len(own) == len(marked):
            # One message and one grace period for all, unless a link that is not ours is in it.
            operations = [links.delete_group(REAP_GROUP)]
        else:
            operations = [links.delete_link(link.number) for link in own]
        for failure in self._netlink.attempt(operations).values():
            # The sandbox may have gone in the meantime and taken its end, and ours, with it.
            if failure.errno != ENODEV:
                raise failure
        return len(own)

    def attached(self) -> dict[Identity, tuple[Link, tuple[Address, ...]]]:
        """Every host end of ours that is in use, with the addresses our routes send into it."""
        link_of = {
            route.destination.network: route.oif
            for route in read_routes(self._netlink, protocol=ROUTE_PROTOCOL)
            if route.destination.length == route.destination.family.width
        }
        found = {}
        for link in self._links_in_use():
            identity = desired.identity_of(link)
            if identity is not None:
                held = sorted(address for address, oif in link_of.items() if oif == link.number)
                found[identity] = link, tuple(held)
        return found

    def attached_links(self) -> set[str]:
        """Names of the host ends of ours that are in use."""
        return {link.name for link in self._links_in_use() if desired.is_host_end(link)}

    def detach_orphans(self, wanted: Iterable[str]) -> list[str]:
        """Take down host ends of ours that belong to no attachment in `wanted`; their names."""
        orphans = sorted(self.attached_links() - set(wanted))
        return [name for name in orphans if self.detach(name)]

    def drift(self, attachments: Callable[[], Iterable[Attachment]]) -> Drift:
        """Compare the kernel with what it should hold.

        The kernel is read before `attachments` is called: what a new attachment adds meanwhile
        then has its owner in the list, and is never taken for foreign.
        """
        host = self._look()
        return host.drift(list(attachments()))

    def remove_foreign(self, found: Iterable[Foreign]) -> list[str]:
        """Remove what `drift` found to be foreign; a line for each."""
        removals = {}
        for one in found:
            removals[_removal(one)] = drift.described(one)
        failures = self._netlink.attempt(list(removals))
        return [line for operation, line in removals.items() if operation not in failures]

    def rewire(self, attachment: Attachment) -> list[str]:
        """Repair the host's side of an attachment, if it needs that; a line for each fault.

        Raises:
            KernelError: it could not be repaired.
            SetupError: a setting of the link cannot be written.
        """
        host = self._look()
        # Looked at again, since the caller did not hold the attachment's lock when it found the
        # drift: an ADD or a DEL may have come between.
        faults, link = host.faults(attachment), host.links.get(attachment.host_link)
        if link is None or not faults:
            return []
        operations = [
            # Without the alternative names, which the kernel refuses if one is there already
            # (EEXIST).
            desired.naming(attachment)[-1],
            *desired.host_side(attachment, link.number, self.neighbours.pod_mac(link)),
        ]
        if settings.lacking(link):
            settings.write_files(link.name)
            # First, since a link whose ARP is switched forgets its neighbours (arp_netdev_event).
            operations.insert(0, settings.restrict(link.name))
        self._netlink.transact(operations)
        return faults

    def check(
        self, attachment: Attachment, netns_path: str, moved: Collection[Family] = ()
    ) -> list[str]:
        """What of an attachment's wiring is not as `attach` left it in this sandbox.

        Another plugin has `moved` the default routes of these families to another interface.
        """
        try:
            sandbox_ns = netns.open_namespace(netns_path)
        except KernelError as error:
            return [error.message]
        try:
            inside, index = netlink.open_in(sandbox_ns, attachment.key.ifname)
        finally:
            os.close(sandbox_ns)
        with inside:
            faults = self._look().faults(attachment)
            if not index:
                missing = f"interface {attachment.key.ifname} is missing in the sandbox"
                return [*faults, missing]
            return faults + sandbox.faults(inside, attachment, index, moved)

    def pod_mac(self, attachment: Attachment) -> bytes:
        """The MAC that the pod's end has now.

        Raises:
            KernelError: it is gone.
        """
        link = self._link(attachment.host_link)
        if link is None:
            raise KernelError(f"find the pod's end of {attachment.host_link}", ENODEV)
        return self.neighbours.pod_mac(link)

    def _look(self) -> Host:
        addresses = read_addresses(self._netlink)
        present = {link.name: link for link in self._links_in_use()}
        return Host(present, read_routes(self._netlink), addresses)

    def _links_in_use(self) -> list[Link]:
        """All links, whoever made them, but for those that wait to be deleted."""
        return [link for link in read_links(self._netlink) if link.group != REAP_GROUP]

    def _link(self, name: str) -> Link | None:
        try:
            return self._netlink.query(links.show_link(name), links.link_of)
        except KernelError as error:
            if error.errno != ENODEV:
                raise
            return None


def _removal(foreign: Foreign) -> Operation:
    if isinstance(foreign, Route):
        return routes.delete_route(foreign)
    return links.delete_address(*foreign)
