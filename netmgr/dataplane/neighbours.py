"""The neighbour entries at both ends of a pod's link.

Nothing is resolved on a pod's link: both ends have permanent entries. When the pod's end gets
another hardware address (the plugin `tuning` does that, and so may whoever administers the pod),
the kernel drops the sandbox's entries, even permanent ones (neigh_changeaddr), and the host's still
have the former address. The kernel reports each entry it drops (`netmgr/kernel/losses.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from errno import ENODEV

from netmgr.dataplane import desired, sandbox
from netmgr.dataplane.checking import ABSENCE, answered, host_end, pod_end
from netmgr.dataplane.desired import HOST_MAC
from netmgr.documents.node import POD_GATEWAYS
from netmgr.errors import KernelError
from netmgr.kernel import links, neighbours
from netmgr.kernel.links import Link, read_links
from netmgr.kernel.losses import LinkEnd
from netmgr.kernel.netlink import Netlink
from netmgr.logs import caused_by
from netmgr.model import Attachment
from netmgr.prefixes import Address
from netmgr.suspects import Suspects

log = logging.getLogger(__name__)


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
            KernelError: the kernel refused something of one family; the other's was done.
        """
        link = host_end(self._host, attachment.host_link)
        end = pod_end(self._host, link) if link else None
        if link is None or end is None or not end.up:
            return
        is_renewed, failure = False, None
        with sandbox.reached(self._host, link, netns_path) as inside:
            for family in attachment.families:
                held = [address for address in attachment.addresses if address.family is family]
                try:
                    is_renewed |= self._renew(held, link, end, inside)
                except KernelError as error:
                    failure = error
        if is_renewed:
            log.info(
                "pod-neighbours-renewed container=%s ifname=%s pod=%s mac=%s",
                attachment.key.container_id,
                attachment.key.ifname,
                attachment.pod,
                end.mac.hex(":"),
                extra=caused_by(attachment.pod),
            )
        if failure:
            raise failure

    def _renew(self, held: list[Address], link: Link, end: Link, inside: Netlink | None) -> bool:
        """Renew the entries of one family's addresses at both ends; whether any was wrong."""
        family, lost, wrong = held[0].family, False, False
        # The sandbox's first: while the host's are wrong, `outdated` still finds the attachment,
        # should this end half-way.
        # Without IPv6 in its sandbox, which a chain may switch off, a pod keeps IPv4.
        if inside and links.has_family(end, family):
            gateway = [neighbours.Neighbour(POD_GATEWAYS[family], HOST_MAC, end.number)]
            lost = _restore(inside, gateway)
        if links.has_family(link, family):
            own = [neighbours.Neighbour(address, end.mac, link.number) for address in held]
            wrong = _restore(self._host, own)
        return lost or wrong

    def outdated(self, attachments: Callable[[], Iterable[Attachment]]) -> Suspects[Attachment]:
        """Attachments whose entries on the host are missing or not of the pod's MAC."""
        # Before the list: the link of an attachment that is made meanwhile is not in `ends` then.
        present, ends = neighbours.read_permanent(self._host), self._ends_in_use()
        outdated = []
        for attachment in attachments():
            if attachment.host_link in ends:
                index, mac = ends[attachment.host_link]
                wanted = {
                    neighbours.Neighbour(address, mac, index) for address in attachment.addresses
                }
                if not wanted <= present:
                    outdated.append(attachment)
        return Suspects(tuple(outdated))

    def _ends_in_use(self) -> dict[str, tuple[int, bytes]]:
        """Index of each host end, by name, and the MAC of the pod's end, if that is up."""
        own = [link for link in read_links(self._host) if desired.identity_of(link)]
        # In batches, since an idle agent asks this again and again.
        requests = [links.show_link_in(link.peer_netns, link.peer) for link in own]
        ends = self._host.query_each(requests, links.link_of, ABSENCE)
        ends_by_name = {}
        for link, end in zip(own, ends, strict=True):
            # An end that is down belongs to a pod that is being attached, or waits to be deleted.
            if end is not None and end.up:
                ends_by_name[desired.own_name(link)] = link.number, end.mac
        return ends_by_name

    def host_links_of(self, ends: Collection[LinkEnd]) -> tuple[set[str], set[LinkEnd]]:
        """Names of the host ends of these links in sandboxes, and those of the links that are down.

        Such a link is about to be deleted, or in the middle of a change.
        """
        host_links, down = set(), set()
        for end in ends:
            inside = answered(self._host, links.show_link_in(*end))
            if inside is None:
                continue
            if not inside.up:
                down.add(end)
                continue
            outside = answered(self._host, links.show_link_in(links.HERE, inside.peer))
            # The peer of a foreign link may be in a third namespace, under a number of a link here.
            leads_there = outside and (outside.peer_netns, outside.peer) == end
            if outside and leads_there and desired.identity_of(outside):
                host_links.add(desired.own_name(outside))
        return host_links, down

    def pod_end(self, link: Link) -> Link:
        """The pod's end of a link, as it is now; KernelError if it is gone."""
        end = pod_end(self._host, link)
        if end is None:
            raise KernelError(f"find the pod's end of {link.name}", ENODEV)
        return end


def _restore(channel: Netlink, wanted: list[neighbours.Neighbour]) -> bool:
    """Make those entries that are missing or of another MAC; whether there were any."""
    missing = neighbours.missing_of(wanted, channel)
    channel.transact([neighbours.add_neighbour(*entry) for entry in missing])
    return bool(missing)
