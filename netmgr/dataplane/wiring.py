"""Carries out what `desired` asks for, and compares it with what the kernel has."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from errno import EEXIST, ENODEV

from netmgr.dataplane import checking, desired, drift, sandbox, settings
from netmgr.dataplane.deletion import Deletion
from netmgr.dataplane.desired import Identity
from netmgr.dataplane.drift import Drift, Foreign, Host
from netmgr.dataplane.neighbours import Neighbours
from netmgr.descriptors import closing
from netmgr.errors import ConfigError, KernelError
from netmgr.kernel import links, netlink, netns, routes
from netmgr.kernel.links import Link, Links, read_addresses
from netmgr.kernel.netlink import Netlink
from netmgr.kernel.routes import ANY_KIND, Route, read_routes
from netmgr.model import ROUTE_PROTOCOL, Attachment, AttachmentKey
from netmgr.prefixes import Address, Family
from netmgr.suspects import Suspects, unlocked

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
        self._links = Links(self._netlink)
        self._deletion = Deletion(self._netlink)
        self.neighbours = Neighbours(self._netlink)
        self._uplink = uplink
        self._mtu = mtu
        self._compared: tuple[Host, list[Attachment], Drift] | None = None
        self.mtu = DEFAULT_MTU
        self.refresh_mtu()

    def close(self) -> None:
        """Finish what is being deleted, unless that hangs, and close the netlink socket."""
        self._deletion.close()
        self._netlink.close()

    def refresh_mtu(self) -> None:
        """Follow the uplink's MTU; pods attached from now on get it."""
        if self._mtu is not None:
            self.mtu = self._mtu
        elif uplink := self._find_uplink():
            self.mtu = uplink.mtu
        elif self._uplink is not None:
            raise ConfigError(
                f"node.uplink: this node has no interface {self._uplink}; "
                "name one it has, or set mtu"
            )

    def _find_uplink(self) -> Link | None:
        if self._uplink is not None:
            return checking.answered(self._netlink, links.show_link(self._uplink))
        for route in read_routes(self._netlink):
            # A node may be without a default route, or have one over several links (with no link
            # of its own), for a moment or for good: then what was measured last still holds.
            if route.destination.length == 0:
                return checking.answered(self._netlink, links.show_link_in(links.HERE, route.oif))
        return None

    def attach(
        self,
        attachment: Attachment,
        mac: bytes = b"",
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        """Wire an attachment into the sandbox at its namespace path. On failure nothing is left.

        `prepare` is called when both ends are there, and before any packet can pass.

        Raises:
            KernelError: the namespace is gone, or the kernel refused an operation.
        """
        mac = mac or desired.pod_mac(attachment.key)
        with closing(netns.open_namespace(attachment.netns)) as sandbox_ns:
            self._create(attachment, sandbox_ns, mac)
            try:
                prepare()
                # Both ends are down until now. Once the host's end is up it would take a router
                # advertisement or an ARP request of the pod's, so its settings come first.
                preparing = settings.prepare(attachment.host_link, attachment.families)
                # The last of these brings the host's end up.
                self._netlink.transact([preparing, *desired.naming(attachment)])
                self._configure(attachment, sandbox_ns, mac)
            # A failed ADD leaves nothing behind, also one that ends by a signal's exception.
            except BaseException:
                self._remove(attachment.host_link, attachment.netns)
                raise

    def _create(self, attachment: Attachment, sandbox_ns: int, mac: bytes) -> None:
        operation = desired.creation(attachment, self.mtu, sandbox_ns, mac)
        failure = self._netlink.attempt([operation]).get(operation)
        if failure is None:
            return
        if failure.errno != EEXIST:
            raise failure
        # The name follows from container and interface, so a predecessor of both has it until it is
        # reaped. A foreign link keeps it.
        present = checking.answered(self._netlink, links.show_link(attachment.host_link))
        if present is not None and not desired.may_be_host_end(present):
            raise failure
        self._remove(attachment.host_link, attachment.netns)
        self._netlink.transact([operation])

    def _remove(self, host_link: str, netns_path: str) -> None:
        """Delete a host end. If the kernel refuses, the next start does it."""
        try:
            self.detach(host_link, netns_path)
        except KernelError as error:
            log.error("link-not-removed link=%s error=%s", host_link, error)  # noqa: TRY400  expected, no fault

    def _configure(self, attachment: Attachment, sandbox_ns: int, mac: bytes) -> None:
        ifname = attachment.key.ifname
        # A socket stays in the namespace it was opened in, so the thread leaves again at once.
        with netns.entered(sandbox_ns):
            if Family.V6 in attachment.families:
                # Docker's sandboxes have it off. `ptp` does the same.
                settings.enable_ipv6(("lo", ifname))
            inside, pod_index = Netlink(), netlink.index_of(ifname)
        with inside:
            # The sandbox first: a link with its route on the host is a pod that runs, which is
            # what an agent that finds it after a crash relies on.
            inside.transact(desired.pod_side(attachment, pod_index))
            host_index = netlink.index_of(attachment.host_link)
            operations = desired.host_side(attachment, host_index, mac)
            # The kernel makes carrier and local routes usable from work queues. Without waiting
            # for both, one pod in ten lost its first packet under load.
            self._netlink.transact([*operations, links.settle_link(host_index)])
            sandbox.wait_for_addresses(inside, attachment.addresses)

    def detach(
        self, host_link: str, netns_path: str = "", key: AttachmentKey | None = None
    ) -> bool:
        """Delete an attachment's link, both its ends; False if there is none.

        When this returns, its traffic has ended. Rules that only a further interface has are
        removed from its sandbox, which is at `netns_path` or wherever it is found. Without its
        `key` the link's alias says which they are.
        """
        link = checking.host_end(self._netlink, host_link)
        if link is None:
            return False
        identity = desired.identity_of(link)
        key = key or (identity.key if identity else None)
        if key and (table := desired.route_metric(key)):
            try:
                sandbox.remove_rules(self._netlink, link, netns_path, table)
            except KernelError as error:
                # Not a reason to leave the link: a rule without its table lets packets go on.
                log.warning("sandbox-rules-not-removed link=%s error=%s", link.name, error)
        return self._deletion.delete(link.number)

    def attached(self) -> dict[Identity, tuple[Link, tuple[Address, ...]]]:
        """Every host end of ours that is in use, with the addresses our routes send into it."""
        link_of = {
            route.destination.network: route.oif
            for route in read_routes(self._netlink, protocol=ROUTE_PROTOCOL)
            if route.destination.is_address
        }
        host_ends = {}
        for link in self._links.read():
            identity = desired.identity_of(link)
            if identity is not None:
                held = sorted(address for address, oif in link_of.items() if oif == link.number)
                host_ends[identity] = link._replace(name=desired.own_name(link)), tuple(held)
        return host_ends

    def attached_links(self) -> set[str]:
        """Names of the host ends of ours that are in use, as they were made."""
        return {desired.own_name(link) for link in self._links.read() if desired.is_host_end(link)}

    def is_attached(self, name: str) -> bool:
        """Whether a host end of ours that is in use was made with this name."""
        return checking.host_end(self._netlink, name) is not None

    def vanished(self, attachments: Callable[[], Iterable[Attachment]]) -> Suspects[Attachment]:
        """Attachments whose host end is gone."""
        # One that is being attached has none yet, so that these are suspects and no more.
        host_ends = filter(desired.may_be_host_end, self._links.read())
        present = set(map(desired.own_name, host_ends))
        return Suspects(
            tuple(attachment for attachment in attachments() if attachment.host_link not in present)
        )

    def detach_orphans(self, attachments: Callable[[], Iterable[Attachment]]) -> list[str]:
        """Delete host ends of ours that belong to no attachment, while no request is served.

        Returns their names. KernelError: one could not be deleted; all the others were.
        """

        def is_orphan(name: str) -> bool:
            return all(attachment.host_link != name for attachment in attachments())

        present = Suspects(tuple(sorted(self.attached_links())))
        return present.resolve(
            unlocked, is_orphan, lambda name: [name] if self.detach(name) else None
        )

    def drift(self, attachments: Callable[[], Iterable[Attachment]]) -> Drift:
        """Compare the kernel with what it should hold."""
        # Read before `attachments` is called: what a new one adds meanwhile then has its owner in
        # the list.
        addresses = read_addresses(self._netlink)
        present = _by_name(self._links.read())
        host = Host(present, read_routes(self._netlink, kind=ANY_KIND), addresses)
        listed = list(attachments())
        # Most looks find what the last one found, which takes far less time to compare.
        compared = self._compared
        if compared is None or compared[:2] != (host, listed):
            compared = self._compared = host, listed, host.drift(listed)
        return compared[2]

    def is_foreign(self, suspect: Foreign, holder: Attachment | None) -> bool:
        """Whether what `drift` suspects is foreign by a look at this one alone.

        `holder` has the address that a route leads to, and cannot be attached or detached now.
        """
        index = suspect.oif if isinstance(suspect, Route) else suspect[1]
        # Of several next hops (index 0), or of one that is gone, there is no link.
        asked = checking.answered(self._netlink, links.show_link_in(links.HERE, index))
        own = checking.host_end(self._netlink, holder.host_link) if holder else None
        present = _by_name(link for link in (asked, own) if link)
        held = [holder] if holder else []
        if isinstance(suspect, Route):
            return bool(Host(present, [suspect], ()).drift(held).routes)
        return bool(Host(present, (), [suspect]).drift(held).addresses)

    def remove_foreign(self, foreign: Foreign) -> list[str]:
        """Remove something foreign, if it is still there; a line about it."""
        if isinstance(foreign, Route):
            removal = routes.delete_route(foreign)
        else:
            removal = links.delete_address(*foreign)
        return [] if self._netlink.attempt([removal]) else [drift.described(foreign)]

    def rewire(self, attachment: Attachment) -> list[str]:
        """Repair the host's side of an attachment, if it needs that; a line for each fault.

        Raises:
            KernelError: it could not be repaired.
            SetupError: a setting of the link cannot be written.
        """
        host = checking.look_at(self._netlink, attachment)
        # Looked at again, since the caller did not hold the attachment's lock when it found the
        # drift: an ADD or a DEL may have come between.
        faults, link = host.faults(attachment), host.links.get(attachment.host_link)
        if link is None or not faults:
            return []
        operations = [
            # Without the alternative names, which the kernel refuses if one is there already
            # (EEXIST).
            *desired.naming(attachment)[-2:],
            *desired.host_side(attachment, link.number, self.neighbours.pod_end(link).mac),
        ]
        if link.name != attachment.host_link:
            # What follows goes by the name, which another link may have.
            self._netlink.transact(links.rename_index(link.number, attachment.host_link))
        try:
            if settings.lacking(link, attachment.families):
                # First, since a link whose ARP is switched forgets its neighbours
                # (arp_netdev_event).
                preparing = settings.prepare(attachment.host_link, attachment.families)
                self._netlink.transact([preparing])
        finally:
            # What one family lacks keeps nothing from the other.
            self._netlink.transact(operations)
        return faults

    def check(
        self, attachment: Attachment, netns_path: str, moved: Collection[Family] = ()
    ) -> list[str]:
        """What of an attachment's wiring is not as `attach` left it in this sandbox.

        Another plugin has `moved` the default routes of these families to another interface.
        """
        return checking.faults(self._netlink, attachment, netns_path, moved, self._uplink)

    def lags_behind(self, attachment: Attachment) -> bool:
        """Whether the host's neighbour entries are of another MAC than the pod has now."""
        link = checking.host_end(self._netlink, attachment.host_link)
        return bool(checking.neighbour_faults(self._netlink, attachment, link))

    def ends(self, attachment: Attachment) -> tuple[Link, Link]:
        """The host's end and the pod's, as they are now; KernelError if they are gone."""
        link = checking.host_end(self._netlink, attachment.host_link)
        if link is None:
            raise KernelError(f"find {attachment.host_link}", ENODEV)
        return link, self.neighbours.pod_end(link)


def _by_name(present: Iterable[Link]) -> dict[str, Link]:
    """Links by their names, and host ends by those that they were made with, whoever has them."""
    named = {link.name: link for link in present}
    renamed = [link for link in named.values() if desired.own_name(link) != link.name]
    return named | {desired.own_name(link): link for link in renamed}
