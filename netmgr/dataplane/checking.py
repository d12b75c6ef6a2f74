"""Compares the wiring of one attachment with what `attach` made, by sockets that only read."""

from __future__ import annotations

from collections.abc import Collection
from errno import EINVAL, ENODEV

from netmgr.dataplane import desired, sandbox, settings
from netmgr.dataplane.drift import Host
from netmgr.descriptors import closing
from netmgr.errors import Ignoring, KernelError
from netmgr.kernel import links, netns
from netmgr.kernel.links import Link, read_links
from netmgr.kernel.neighbours import Neighbour, missing_of
from netmgr.kernel.netlink import Operation, Reader, index_of
from netmgr.kernel.routes import read_routes
from netmgr.model import ROUTE_PROTOCOL, Attachment
from netmgr.prefixes import Family

# The kernel knows no such device, or no namespace of this number.
ABSENCE = (ENODEV, EINVAL)


def faults(
    host: Reader,
    attachment: Attachment,
    netns_path: str,
    moved: Collection[Family] = (),
    uplink: str | None = None,
) -> list[str]:
    """What is not as `attach` left it, in this sandbox and on the host.

    Another plugin has `moved` the default routes of these families to another interface.
    """
    try:
        sandbox_ns = netns.open_namespace(netns_path)
    except KernelError as error:
        return [error.message]
    with closing(sandbox_ns):
        # The thread leaves at once: the socket stays in the namespace that it was opened in.
        with netns.entered(sandbox_ns):
            inside, index = Reader(), index_of(attachment.key.ifname)
        number = host.query(links.show_namespace_id(sandbox_ns), links.namespace_id_of)
    with inside:
        off = settings.switched_off(attachment.families, uplink)
        differences = [f"{settings.name_of(switch)} is not 1" for switch in off]
        present, ifname = look_at(host, attachment), attachment.key.ifname
        link = present.links.get(attachment.host_link)
        differences += [*present.faults(attachment), *neighbour_faults(host, attachment, link)]
        if not index:
            return [*differences, f"interface {ifname} is missing in the sandbox"]
        # By the kernel's numbers, since many paths lead to one sandbox, and one to another's.
        if link and (link.peer_netns, link.peer) != (number, index):
            differences.append(f"interface {ifname} in the sandbox is not the peer of {link.name}")
        return differences + sandbox.faults(inside, attachment, index, moved)


def look_at(host: Reader, attachment: Attachment) -> Host:
    """One attachment's link and its routes alone."""
    # Reading everything for each of many would take the square of the number of pods.
    link = host_end(host, attachment.host_link)
    if link is None:
        return Host({}, (), ())
    own = read_routes(host, protocol=ROUTE_PROTOCOL, oif=link.number)
    return Host({attachment.host_link: link}, own, ())


def neighbour_faults(host: Reader, attachment: Attachment, link: Link | None) -> list[str]:
    """Entries on the host's end that are not there, or not of the MAC that the pod's end has."""
    # An end that is down is being attached or deleted, or is a fault of its own.
    end = link and pod_end(host, link)
    if not link or not end or not end.up:
        return []
    wanted = [Neighbour(address, end.mac, link.number) for address in attachment.addresses]
    return [
        f"host neighbour {entry.address} is missing, or has another MAC than the pod"
        for entry in missing_of(wanted, host)
    ]


def host_end(host: Reader, name: str) -> Link | None:
    """The host end of ours that was made with this name, whatever somebody calls it now."""
    link = answered(host, links.show_link(name))
    if link and desired.is_host_end(link):
        return link
    # Every link is listed only here, where somebody renamed or deleted it, or wrote on it.
    candidates = (candidate for candidate in read_links(host) if candidate.name != name)
    renamed = next(
        (candidate for candidate in candidates if desired.own_name(candidate) == name), None
    )
    # A link that names its attachment comes before one that has no more than the name.
    return renamed or (link if link and desired.may_be_host_end(link) else None)


def pod_end(host: Reader, link: Link) -> Link | None:
    """The pod's end of a link, as it is now."""
    # By the kernel's number of the sandbox, since its path may belong to another one by now.
    return answered(host, links.show_link_in(link.peer_netns, link.peer))


def answered(host: Reader, request: Operation) -> Link | None:
    with Ignoring(*ABSENCE):
        return host.query(request, links.link_of)
    return None
