"""How one attachment is to be wired: names, hardware addresses, and the operations that make it so.

A routed pair, as AWS's VPC CNI and Calico wire pods: the pod holds its addresses at full prefix
length and sends everything to a link-local gateway that is a permanent neighbour; the host holds a
route to each address and a permanent neighbour for it. So no address is ever resolved on the link,
and no answer of the pod's changes where its packets go. Everything follows from container id and
interface name, so that every step can be repeated.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from netmgr.documents.node import POD_GATEWAYS
from netmgr.kernel import links, routes
from netmgr.kernel.links import Link, VethEnd
from netmgr.kernel.neighbours import add_neighbour
from netmgr.kernel.netlink import Operation
from netmgr.kernel.routes import SourceRule, add_route
from netmgr.model import (
    LINK_GROUP,
    LINK_PREFIX,
    ROUTE_PROTOCOL,
    Attachment,
    AttachmentKey,
    PodRate,
    PodRef,
)
from netmgr.prefixes import Family, Prefix

# Of every host end: locally administered, and set so that udev does not invent another.
HOST_MAC = bytes.fromhex("026e6d000001")

# Of the host's routes to pods: the least there is, since 0 means 1024 for IPv6. With 1024, a route
# from a router advertisement could win.
HOST_METRIC = {Family.V4: 0, Family.V6: 1}

PRIMARY_INTERFACE = "eth0"
# The kernel makes a namespace's loopback before any other link (LOOPBACK_IFINDEX).
LOOPBACK_INDEX = 1
# What iproute2 marks routes with, unless told otherwise.
RTPROT_BOOT = 3
DEFAULT_ROUTES = {Family.V4: Prefix.parse("0.0.0.0/0"), Family.V6: Prefix.parse("::/0")}

_ALIAS_MARK = "netmgr"
_IDENTITY_PARTS = 6
_ALIAS_BYTES = 255  # IFALIASZ is 256 and holds the closing NUL
_ALTERNATIVE_NAME_BYTES = 127  # ALTIFNAMSIZ is 128
_HOST_LINK_NAME = re.compile(LINK_PREFIX + "[0-9a-f]{12}")
_RATE_NAME = re.compile(_HOST_LINK_NAME.pattern + r"\.rate\.([a-z-]+)\.([0-9]+)")


class Identity(NamedTuple):
    """What an alias says of the attachment its link belongs to."""

    key: AttachmentKey
    pod: PodRef


def host_link_name(key: AttachmentKey) -> str:
    # 14 of the 15 characters that a name may have: the prefix, and 48 bits of the digest.
    return LINK_PREFIX + _digest(key).hex()[:12]


def pod_mac(key: AttachmentKey) -> bytes:
    """Default MAC of the pod's end."""
    # Locally administered unicast. The rest is not the bytes of the host end's name or of the
    # metric: a clash of one is none of the others.
    return b"\x02" + _digest(key)[6:11]


def _digest(key: AttachmentKey) -> bytes:
    # Neither id nor name has a NUL, so that no two keys have one text.
    return hashlib.sha256(f"{key.container_id}\0{key.ifname}".encode()).digest()


def route_metric(key: AttachmentKey) -> int:
    """Metric of an interface's routes inside the sandbox: the kernel's default for eth0.

    Further interfaces get higher metrics of their own, and a routing table of the same number
    (`source_rules`).
    """
    # With equal metrics, the routes of one interface would replace the other's. Of tables, 253 to
    # 255 are the kernel's own.
    return 0 if key.ifname == PRIMARY_INTERFACE else 1 << 16 | int.from_bytes(_digest(key)[11:13])


def identity_text(key: AttachmentKey, pod: PodRef) -> str:
    """What a host end says of its attachment: enough to recognise it with no memory of it."""
    return " ".join(
        (_ALIAS_MARK, key.container_id, key.ifname, pod.namespace, pod.uid or "-", pod.name)
    )


def identity_of(link: Link) -> Identity | None:
    """Who a link belongs to, if it is one of ours, even if it was renamed."""
    # The alias alone proves nothing, since anybody may copy one: name or group must agree with it.
    if not link.alias.startswith(_ALIAS_MARK):
        return None
    parts = (link.alias + _from_names(link)).split(" ", _IDENTITY_PARTS - 1)
    if len(parts) != _IDENTITY_PARTS:
        return None
    mark, container_id, ifname, namespace, uid, name = parts
    key = AttachmentKey(container_id, ifname)
    is_renamed = link.group == LINK_GROUP and not _HOST_LINK_NAME.fullmatch(link.name)
    if mark != _ALIAS_MARK or not (is_renamed or link.name == host_link_name(key)):
        return None
    return Identity(key, PodRef(namespace, name, "" if uid == "-" else uid))


def own_name(link: Link) -> str:
    """The name that a host end of ours was made with; of any other link the one it has."""
    if _HOST_LINK_NAME.fullmatch(link.name):
        return link.name
    identity = identity_of(link)
    return host_link_name(identity.key) if identity else link.name


def is_host_end(link: Link) -> bool:
    """Whether a link is one of ours, whoever it belongs to."""
    # An ADD that was killed leaves a link without an alias, and another program may have written
    # its own alias; then name and group identify the link.
    is_marked = link.group == LINK_GROUP and bool(_HOST_LINK_NAME.fullmatch(link.name))
    return is_marked or identity_of(link) is not None


def may_be_host_end(link: Link) -> bool:
    """Whether the link that an attachment names is its host end, whatever others wrote on it."""
    # Nobody comes upon 48 bits of a digest by chance.
    is_named = link.kind == "veth" and bool(_HOST_LINK_NAME.fullmatch(link.name))
    return is_named or is_host_end(link)


def _alternative_names(host_link: str, text: str) -> list[str]:
    """What an alias has no room for, as alternative names: `<link>.<number>.<part of the text>`."""
    # They are unique in a namespace, so each begins with the link's own.
    room = _ALTERNATIVE_NAME_BYTES - len(f"{host_link}.00.")
    parts = [text[start : start + room] for start in range(0, len(text), room)]
    # iproute2 neither shows nor removes names with white space. No part of an identity has a slash.
    return [
        f"{host_link}.{number:02}.{part.replace(' ', '/')}" for number, part in enumerate(parts)
    ]


def _from_names(link: Link) -> str:
    # By the form, since the link may have been renamed.
    names = [name.partition(".") for name in link.alternative_names]
    parts = sorted(
        part
        for start, _, part in names
        if _HOST_LINK_NAME.fullmatch(start) and not part.startswith("rate.")
    )
    return "".join(part[len("00.") :].replace("/", " ") for part in parts)


def rates_of(link: Link) -> tuple[PodRate, ...]:
    """The limits that the pod of a link brought along, by the alternative names of the link."""
    matches = map(_RATE_NAME.fullmatch, link.alternative_names)
    return tuple((match[1], int(match[2])) for match in matches if match)


def creation(attachment: Attachment, mtu: int, netns: int, mac: bytes) -> Operation:
    """Make the pair, both ends down, the pod's with this MAC."""
    host = VethEnd(attachment.host_link, HOST_MAC, mtu)
    pod = VethEnd(attachment.key.ifname, mac, mtu)
    return links.create_veth(host, pod, netns, LINK_GROUP)


def naming(attachment: Attachment) -> list[Operation]:
    """Write the host end's owner on it, and bring it up. Its settings must be in place by then."""
    # A pod's name may have 253 bytes in Kubernetes, the whole alias 255. A digest would need a
    # file to resolve it, and files get lost; so the rest is in alternative names.
    text = identity_text(attachment.key, attachment.pod)
    alias, more = text[:_ALIAS_BYTES], text[_ALIAS_BYTES:]
    link = attachment.host_link
    names = _alternative_names(link, more)
    # No document has them, so that without its state an agent would leave the pod unlimited.
    names += [f"{link}.rate.{traffic}.{rate}" for traffic, rate in attachment.rates]
    adding = [links.add_alternative_names(link, names)] if names else []
    return [*adding, links.mark(link, alias, LINK_GROUP), links.raise_link(link)]


def host_side(attachment: Attachment, index: int, mac: bytes) -> list[Operation]:
    """Neighbours and routes on the host, for its end of this index and a pod's end of this MAC."""
    operations = []
    for address in attachment.addresses:
        metric = HOST_METRIC[address.family]
        route = add_route(address.prefix, index, protocol=ROUTE_PROTOCOL, metric=metric)
        # The entry first: packets use the route at once.
        operations += [add_neighbour(address, mac, index), route]
    return operations


def pod_side(attachment: Attachment, index: int) -> list[Operation]:
    """Addresses, gateway and default routes inside the sandbox, for the pod's end of this index."""
    # The loopback of a new namespace is down. The pod's end comes up before its routes, which the
    # kernel refuses on a link that is down (ENETDOWN).
    operations = [links.raise_index(LOOPBACK_INDEX), links.raise_index(index)]
    operations += [links.add_address(address, index) for address in attachment.addresses]
    metric = route_metric(attachment.key)
    for family in attachment.families:
        gateway, default = POD_GATEWAYS[family], DEFAULT_ROUTES[family]
        operations += [
            add_neighbour(gateway, HOST_MAC, index),
            # Before the default route, whose gateway must be reachable when it is added
            # (fib_check_nh).
            add_route(gateway.prefix, index, protocol=RTPROT_BOOT, metric=metric),
            add_route(default, index, protocol=RTPROT_BOOT, gateway=gateway, metric=metric),
        ]
    return operations + source_routing_of(attachment, index)


def source_rules(attachment: Attachment) -> list[SourceRule]:
    """Rules that route by the source address; only for a sandbox's further interfaces."""
    table = route_metric(attachment.key)
    # Answers would leave by the first interface's default route, reach the node on another link
    # than they belong to, and be dropped there as forged.
    return [SourceRule(address.prefix, table) for address in attachment.addresses] if table else []


def source_routing_of(attachment: Attachment, index: int) -> list[Operation]:
    """Table and rules of a sandbox's further interface, for the pod's end of this index."""
    rules = source_rules(attachment)
    gateways = [POD_GATEWAYS[family] for family in sorted({rule.source.family for rule in rules})]
    table = route_metric(attachment.key)
    defaults = [
        routes.add_table_default(gateway, index, table=table, protocol=RTPROT_BOOT)
        for gateway in gateways
    ]
    return defaults + [routes.add_rule(rule) for rule in rules]
