"""The neighbour entries at both ends of a pod's link.

Nothing is resolved on a pod's link: both ends have permanent entries. When the pod's end gets
another hardware address (the plugin `tuning` does that, and so may whoever administers the pod),
the kernel drops the sandbox's entries, even permanent ones (neigh_changeaddr), and the host's still
have the former address. The kernel reports each entry it drops, and one socket can hear that of
every namespace that has a link into its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from errno import EINVAL, ENODEV

from netmgr.dataplane import desired, sandbox
from netmgr.dataplane.desired import HOST_MAC
from netmgr.documents.node import POD_GATEWAYS
from netmgr.errors import KernelError
from netmgr.kernel import links
from netmgr.kernel.links import Link, read_links
from netmgr.kernel.neighbours import (
    LinkEnd,
    Neighbour,
    NeighbourLosses,
    add_neighbour,
    read_permanent,
)
from netmgr.kernel.netlink import Netlink, Operation
from netmgr.logs import caused_by
from netmgr.model import Attachment
from netmgr.suspects import Suspects

_ABSENCE = (ENODEV, EINVAL)
"""The kernel knows no such device, or no namespace of this number."""

log = logging.getLogger(__name__)


def listen_for_losses() -> NeighbourLosses:
    """Listen for sandboxes that lose the entry of their gateway.

    Raises:
        KernelError: CAP_NET_BROADCAST is missing, or the process may open no more files.
    """
    return NeighbourLosses(POD_GATEWAYS.values())


class Neighbours:
    """The entries at both ends of every pod's link.

    Args:
        host: a socket in the namespace of the host's ends; stays the caller's.
    """

    def __init__(self, host: Netlink) -> None:
        self._host = host

    def follow(self, attachment: Attachment, netns_path: str) -> None:
        """Make the entries at both ends match the MAC that the pod's end has now.

        Raises:
            KernelError: the kernel refused.
        """
        link = self._asked(links.show_link(attachment.host_link))
        end = self._pod_end(link) if link else None
        if link is None or end is None or not end.up:
            return
        # The sandbox's entries first: while the host's are wrong, `outdated` still finds the
        # attachment, should this end half-way.
        lost: list[Neighbour] = []
        with sandbox.reached(self._host, link, netns_path) as inside:
            if inside:
                wanted = [
                    Neighbour(POD_GATEWAYS[each], HOST_MAC, end.number)
                    for each in attachment.families
                ]
                lost = _restore(inside, end.number, wanted)
        wanted = [Neighbour(each, end.mac, link.number) for each in attachment.addresses]
        wrong = _restore(self._host, link.number, wanted)
        if lost or wrong:
            key, mac = attachment.key, end.mac.hex(":")
            log.info(
                "pod-neighbours-renewed container=%s ifname=%s pod=%s mac=%s",
                key.container_id,
                key.ifname,
                attachment.pod,
                mac,
                extra=caused_by(attachment.pod),
            )

    def outdated(self, attachments: Callable[[], Iterable[Attachment]]) -> Suspects[Attachment]:
        """Attachments whose entries on the host are missing or not of the pod's MAC."""
        # Before the list: the link of an attachment that is made meanwhile is not in `ends` then.
        present, ends = read_permanent(self._host), self._ends_in_use()
        found = []
        for attachment in attachments():
            if attachment.host_link in ends:
                index, mac = ends[attachment.host_link]
                wanted = {Neighbour(address, mac, index) for address in attachment.addresses}
                if not wanted <= present:
                    found.append(attachment)
        return Suspects(tuple(found))

    def _ends_in_use(self) -> dict[str, tuple[int, bytes]]:
        """Index of each host end, by name, and the MAC of the pod's end, if that is up."""
        own = [link for link in read_links(self._host) if desired.identity_of(link)]
        requests = [links.show_link_in(link.peer_netns, link.peer) for link in own]
        ends = self._host.query_each(requests, links.link_of, _ABSENCE)
        found = {}
        for link, end in zip(own, ends, strict=True):
            # An end that is down belongs to a pod that is being attached, or waits to be deleted.
            if end is not None and end.up:
                found[link.name] = link.number, end.mac
        return found

    def host_links_of(self, ends: Collection[LinkEnd]) -> set[str]:
        """Names of the host ends of these links in sandboxes, but for those about to be deleted."""
        found = set()
        for end in ends:
            inside = self._asked(links.show_link_in(*end))
            if inside is None or not inside.up:
                continue
            outside = self._asked(links.show_link_in(links.HERE, inside.peer))
            # The peer of a foreign link may be in a third namespace, under a number of a link here.
            leads_there = outside and (outside.peer_netns, outside.peer) == end
            if outside and leads_there and desired.identity_of(outside):
                found.add(outside.name)
        return found

    def pod_end(self, link: Link) -> Link:
        """The pod's end of a link, as it is now.

        Raises:
            KernelError: it is gone.
        """
        end = self._pod_end(link)
        if end is None:
            raise KernelError(f"find the pod's end of {link.name}", ENODEV)
        return end

    def _pod_end(self, link: Link) -> Link | None:
        # By the kernel's number of the sandbox, since its path may belong to another one by now.
        return self._asked(links.show_link_in(link.peer_netns, link.peer))

    def _asked(self, request: Operation) -> Link | None:
        try:
            return self._host.query(request, links.link_of)
        except KernelError as error:
            if error.errno not in _ABSENCE:
                raise
            return None


def _restore(channel: Netlink, index: int, wanted: list[Neighbour]) -> list[Neighbour]:
    """Make those entries of a link that are missing or of another MAC; which they were."""
    present = read_permanent(channel, index)
    missing = [entry for entry in wanted if entry not in present]
    channel.transact([add_neighbour(*entry) for entry in missing])
    return missing
