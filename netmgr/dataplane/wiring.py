"""Carries out what `desired` asks for, and compares it with what the kernel has.

Deleting a link costs a grace period of the kernel's (about 20 ms), alone or in a group; so
unwiring takes the link down and marks it, and `reap` deletes all the marked ones at once.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from errno import EEXIST, ENODEV
from typing import TypeVar

from netmgr.config import POD_GATEWAYS
from netmgr.dataplane import desired, drift, hardening, links, netlink, rtnetlink, sandbox
from netmgr.dataplane.desired import DEFAULT_ROUTES, REAP_GROUP, Identity
from netmgr.dataplane.drift import Drift, Foreign, Host
from netmgr.dataplane.links import Link
from netmgr.dataplane.neighbours import Neighbours
from netmgr.dataplane.netlink import Netlink
from netmgr.dataplane.rtnetlink import Operation, Route
from netmgr.errors import ConfigError, KernelError
from netmgr.model import ROUTE_PROTOCOL, Attachment
from netmgr.prefixes import Address, Family

DEFAULT_MTU = 1500

SETTLE_SECONDS = 2.0
"""How long the kernel may take until a new address is usable; it takes less than a millisecond."""

Decoded = TypeVar("Decoded")

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

    def attach(self, attachment: Attachment, mac: bytes = b"") -> None:
        """Wire an attachment into the sandbox at its namespace path. Leaves nothing behind on failure.

        The pod's end gets this MAC, if one is given.

        Raises:
            KernelError: the namespace is gone, or the kernel refused an operation.
        """
        mac = mac or desired.pod_mac(attachment.key)
        netns = netlink.open_namespace(attachment.netns)
        try:
            self._create(attachment, netns, mac)
            try:
                self._netlink.transact([hardening.harden(attachment.host_link)])
                hardening.write_settings(attachment.host_link)
                self._netlink.transact(desired.naming(attachment))
                self._configure(attachment, netns, mac)
            except BaseException:
                self._remove(attachment.host_link, attachment.netns)
                raise
        finally:
            os.close(netns)

    def _create(self, attachment: Attachment, netns: int, mac: bytes) -> None:
        operation = desired.creation(attachment, self.mtu, netns, mac)
        failure = self._netlink.attempt([operation]).get(operation)
        if failure is None:
            return
        if failure.errno != EEXIST or not self._has_cleared(attachment):
            raise failure
        self._netlink.transact([operation])

    def _has_cleared(self, attachment: Attachment) -> bool:
        """Whether no foreign link has the host end's name any more, the predecessor's being removed.

        The predecessor of the same container and interface may still wait for the reaper, or have gone by now.
        """
        present = self._link(attachment.host_link)
        if present is not None and not desired.is_host_end(present):
            return False
        self._remove(attachment.host_link, attachment.netns)
        return True

    def _remove(self, host_link: str, netns_path: str) -> None:
        """Delete a host end now. What the kernel refuses is left to the reaper, or to the next start."""
        try:
            self.detach(host_link, netns_path)
            self.reap()
        except KernelError as error:
            log.error("link-not-removed link=%s error=%s", host_link, error)  # noqa: TRY400  the message says all there is

    def _configure(self, attachment: Attachment, netns: int, mac: bytes) -> None:
        inside, pod_index = netlink.open_in(netns, attachment.key.ifname)
        with inside:
            inside.transact(desired.pod_side(attachment, pod_index))
            host_index = netlink.index_of(attachment.host_link)
            operations = desired.host_side(attachment, host_index, mac)
            self._netlink.transact([*operations, rtnetlink.settle_link(host_index)])
            _wait_for_addresses(inside, attachment)

    def detach(self, host_link: str, netns_path: str = "") -> bool:
        """Take a host end down, so that nothing passes any more; False if there is no such link of ours.

        Where its sandbox is at `netns_path`, the pod's end has lost its name and its addresses as well.
        """
        link = self._link(host_link)
        if link is None or not desired.is_host_end(link):
            return False
        operation = rtnetlink.lower_link(host_link, REAP_GROUP)
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
            if error.errno != ENODEV:
                # Nothing of it may stay in the sandbox, so the pair goes at once.
                log.warning("pod-end-not-vacated action=delete link=%s error=%s", link.name, error)
                self.reap()

    def reap(self) -> int:
        """Delete every detached host end; how many there were."""
        marked = [link for link in self._links() if link.group == REAP_GROUP]
        own = [link for link in marked if desired.is_host_end(link)]
        if own and len(own) == len(marked):
            operations = [rtnetlink.delete_group(REAP_GROUP)]
        else:
            operations = [rtnetlink.delete_link(link.number) for link in own]
        for failure in self._netlink.attempt(operations).values():
            # The sandbox may have gone in the meantime and taken its end, and ours, with it.
            if failure.errno != ENODEV:
                raise failure
        return len(own)

    def attached(self) -> dict[Identity, tuple[Link, tuple[Address, ...]]]:
        """Every host end of ours that is in use, with the addresses our routes send into it."""
        routes = self._own_routes()
        return {
            identity: (link, tuple(sorted(a for a, oif in routes.items() if oif == link.number)))
            for link in self._links()
            if link.group != REAP_GROUP and (identity := desired.identity_of(link))
        }

    def attached_links(self) -> set[str]:
        """Names of the host ends of ours that are in use."""
        return {link.name for link in self._links() if link.group != REAP_GROUP and desired.is_host_end(link)}

    def detach_strays(self, wanted: Iterable[str]) -> list[str]:
        """Take down host ends of ours that belong to no attachment in `wanted`; their names."""
        keep = set(wanted)
        strays = [link for link in self._links() if desired.is_host_end(link) and link.name not in keep]
        return [link.name for link in strays if link.group != REAP_GROUP and self.detach(link.name)]

    def drift(self, attachments: Callable[[], Iterable[Attachment]]) -> Drift:
        """Compare the kernel with what it should hold.

        The kernel is read before `attachments` is called: what a new attachment adds meanwhile
        then has its owner in the list, and is never taken for foreign.
        """
        host = self._look()
        return host.drift(list(attachments()))

    def remove_foreign(self, found: Iterable[Foreign]) -> list[str]:
        """Remove what `drift` found to be foreign; a sentence each."""
        removals = {
            rtnetlink.delete_route(one) if isinstance(one, Route) else links.delete_address(*one): drift.described(one)
            for one in found
        }
        failures = self._netlink.attempt(list(removals))
        return [sentence for operation, sentence in removals.items() if operation not in failures]

    def rewire(self, attachment: Attachment) -> list[str]:
        """Repair the host's side of an attachment, if it needs that; a sentence for each fault.

        Raises:
            KernelError: it could not be repaired.
            SetupError: a setting of the link cannot be written.
        """
        host = self._look()
        faults, link = host.faults(attachment), host.links.get(attachment.host_link)
        if link is None or not faults:
            return []
        operations = [
            desired.naming(attachment)[-1],
            *desired.host_side(attachment, link.number, self.neighbours.pod_mac(link)),
        ]
        if host.lacking.get(link.number):
            hardening.write_settings(link.name)
            # A link that stops or begins to hear ARP forgets its neighbours, so they come behind it (arp_netdev_event).
            operations.insert(0, hardening.harden(link.name))
        self._netlink.transact(operations)
        return faults

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
        addresses = [
            held
            for family in Family
            for held in self._netlink.dump(rtnetlink.dump_addresses(family), rtnetlink.address_of)
        ]
        present = {link.name: link for link in self._links() if link.group != REAP_GROUP}
        lacking = dict(self._netlink.dump(rtnetlink.dump_links(), hardening.lacking))
        return Host(present, lacking, self._routes(), addresses)

    def check(self, attachment: Attachment, netns_path: str) -> list[str]:
        """What of an attachment's wiring is not as `attach` left it in this sandbox, a sentence each."""
        try:
            netns = netlink.open_namespace(netns_path)
        except KernelError as error:
            return [error.message]
        try:
            return [*self._look().faults(attachment), *self._check_pod(attachment, netns)]
        finally:
            os.close(netns)

    def _check_pod(self, attachment: Attachment, netns: int) -> list[str]:
        inside, index = netlink.open_in(netns, attachment.key.ifname)
        with inside:
            if not index:
                return [f"interface {attachment.key.ifname} is missing in the sandbox"]
            faults = []
            link = next(link for link in inside.dump(rtnetlink.dump_links(), links.link_of) if link.number == index)
            if not link.up:
                faults.append(f"interface {link.name} is down in the sandbox")
            for family in sorted({address.family for address in attachment.addresses}):
                faults += _check_family(inside, attachment, family, index)
                faults += sandbox.source_routing_faults(inside, attachment, family, index)
        return faults

    def refresh_mtu(self) -> None:
        """Follow the uplink's MTU; pods attached from now on get it."""
        self.mtu = self._measure_mtu()

    def _measure_mtu(self) -> int:
        if self._mtu is not None:
            return self._mtu
        links = self._links()
        if self._uplink is not None:
            named = next((link for link in links if link.name == self._uplink), None)
            if named is None:
                raise ConfigError(
                    f"node.uplink: this node has no interface {self._uplink}; name one it has, or set mtu"
                )
            return named.mtu
        default = next((route.oif for route in self._routes() if route.destination.length == 0), None)
        # Without a default route of its own link, for a moment or for good, what was measured last still holds.
        return next((link.mtu for link in links if link.number == default), self.mtu)

    def _links(self) -> list[Link]:
        return self._netlink.dump(rtnetlink.dump_links(), links.link_of)

    def _link(self, name: str) -> Link | None:
        try:
            return self._netlink.query(links.show_link(name), links.link_of)
        except KernelError as error:
            if error.errno != ENODEV:
                raise
            return None

    def _routes(self, protocol: int = 0) -> list[Route]:
        return [
            route
            for family in Family
            for route in self._netlink.dump(rtnetlink.dump_routes(family, protocol), rtnetlink.route_of)
        ]

    def _own_routes(self) -> dict[Address, int]:
        return {
            route.destination.network: route.oif
            for route in self._routes(ROUTE_PROTOCOL)
            if route.protocol == ROUTE_PROTOCOL and route.destination.length == route.destination.family.width
        }


def _wait_for_addresses(inside: Netlink, attachment: Attachment) -> None:
    """Wait until the sandbox takes packets for its v6 addresses: the kernel makes those routes from a work queue.

    Raises:
        KernelError: they are still missing after `SETTLE_SECONDS`.
    """
    wanted = {address for address in attachment.addresses if address.family is Family.V6}
    deadline = time.monotonic() + SETTLE_SECONDS
    while wanted - set(inside.dump(rtnetlink.dump_local_routes(), rtnetlink.local_address_of)):
        if time.monotonic() > deadline:
            raise KernelError("wait for the sandbox's addresses", details="the kernel does not make them local")
        time.sleep(0.0002)


def _check_family(inside: Netlink, attachment: Attachment, family: Family, index: int) -> list[str]:
    """Faults of one family inside the sandbox that `inside` stands in."""

    def listed(request: Operation, decode: Callable[[bytes], Decoded | None]) -> list[Decoded]:
        return inside.dump(request, decode)

    gateway = POD_GATEWAYS[family]
    held = {
        Address(prefix.family, prefix.value)
        for prefix, oif in listed(rtnetlink.dump_addresses(family), rtnetlink.address_of)
        if oif == index
    }
    faults = [
        f"address {address} is missing in the sandbox"
        for address in attachment.addresses
        if address.family is family and address not in held
    ]
    routes = {
        (route.destination, route.gateway)
        for route in listed(rtnetlink.dump_routes(family), rtnetlink.route_of)
        if route.oif == index
    }
    for destination, via in ((gateway.prefix, None), (DEFAULT_ROUTES[family], gateway)):
        if (destination, via) not in routes:
            faults.append(f"route to {destination} is missing in the sandbox")
    neighbours = {
        address: mac
        for address, mac, oif, state in listed(rtnetlink.dump_neighbours(family), rtnetlink.neighbour_of)
        if oif == index and state & rtnetlink.NUD_PERMANENT
    }
    if neighbours.get(gateway) != desired.HOST_MAC:
        faults.append(f"neighbour {gateway} is missing in the sandbox")
    return faults
