"""How one attachment is to be wired: names, hardware addresses, and the operations that make it so.

A routed pair, as AWS's VPC CNI and Calico wire pods: the pod holds its addresses at full
prefix length and sends everything to a link-local gateway that is a permanent neighbour;
the host holds a route to each address and a permanent neighbour for it. So no address
resolution ever happens on the link, and nothing the pod answers can change where its
packets go. Everything is derived from container id and interface name, so that every step
can be repeated.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from netmgr.config import POD_GATEWAYS
from netmgr.dataplane import links, rtnetlink, source_routing
from netmgr.dataplane.links import Link
from netmgr.dataplane.rtnetlink import Operation, VethEnd
from netmgr.dataplane.source_routing import SourceRule
from netmgr.model import LINK_GROUP, LINK_PREFIX, ROUTE_PROTOCOL, Attachment, AttachmentKey, PodRef
from netmgr.prefixes import Family, Prefix

HOST_MAC = bytes.fromhex("026e6d000001")
"""Every host end has it: locally administered, and set so that udev does not invent another."""

REAP_GROUP = 0x6E6D
"""Link group of host ends that are unwired and wait to be deleted together."""

HOST_METRIC = {Family.V4: 0, Family.V6: 1}
"""Metrics of the host's routes to pods, the least there is: for IPv6 the kernel takes 0 for 1024."""

PRIMARY_INTERFACE = "eth0"
LOOPBACK_INDEX = 1
RTPROT_BOOT = 3
DEFAULT_ROUTES = {Family.V4: Prefix.parse("0.0.0.0/0"), Family.V6: Prefix.parse("::/0")}

_ALIAS_MARK = "netmgr"
_ALIAS_BYTES = 255  # IFALIASZ is 256 and holds the closing NUL
_ALTERNATIVE_NAME_BYTES = 127  # ALTIFNAMSIZ is 128
_HOST_LINK_NAME = re.compile(LINK_PREFIX + "[0-9a-f]{12}")
_OWN_GROUPS = frozenset((LINK_GROUP, REAP_GROUP))


class Identity(NamedTuple):
    """What an alias says of the attachment its link belongs to."""

    key: AttachmentKey
    pod: PodRef


def host_link_name(key: AttachmentKey) -> str:
    """Name of the host end: the prefix and 48 bits of a digest, which fits the kernel's 15 characters."""
    return LINK_PREFIX + _digest(key).hex()[:12]


def pod_mac(key: AttachmentKey) -> bytes:
    """MAC of the pod's end when nobody asks for another: locally administered unicast, the rest from the digest."""
    return b"\x02" + _digest(key)[6:11]


def _digest(key: AttachmentKey) -> bytes:
    return hashlib.sha256(f"{key.container_id}\0{key.ifname}".encode()).digest()


def route_metric(key: AttachmentKey) -> int:
    """Metric of an interface's routes inside the sandbox: the kernel's default for the one runtimes call eth0.

    A sandbox's further interfaces get less preferred ones of their own, or their routes would replace the first's.
    It is the number of their table as well, see `source_rules`.
    """
    return 0 if key.ifname == PRIMARY_INTERFACE else 1 << 16 | int.from_bytes(_digest(key)[11:13], "big")


def identity_text(key: AttachmentKey, pod: PodRef) -> str:
    """What a host end says of its attachment: enough to recognise it with no memory of it."""
    return " ".join((_ALIAS_MARK, key.container_id, key.ifname, pod.namespace, pod.uid or "-", pod.name))


def identity_of(link: Link) -> Identity | None:
    """Who a link belongs to, if it is one of ours."""
    parts = (link.alias + _from_names(link)).split(" ", 5)
    if not link.name.startswith(LINK_PREFIX) or len(parts) != len(("mark", "id", "if", "ns", "uid", "name")):
        return None
    mark, container_id, ifname, namespace, uid, name = parts
    key = AttachmentKey(container_id, ifname)
    if mark != _ALIAS_MARK or link.name != host_link_name(key):
        return None
    return Identity(key, PodRef(namespace, name, "" if uid == "-" else uid))


def is_host_end(link: Link) -> bool:
    """Whether a link is one of ours, whoever it belongs to.

    One has no alias yet when its ADD was killed, or another when somebody else wrote one; name and group say it too.
    """
    is_marked = link.group in _OWN_GROUPS and bool(_HOST_LINK_NAME.fullmatch(link.name))
    return is_marked or identity_of(link) is not None


def _alternative_names(host_link: str, text: str) -> list[str]:
    """What an alias has no room for, as alternative names: `<link>.<number>.<part of the text>`.

    Alternative names are unique in a namespace, so each begins with the link's own.
    """
    room = _ALTERNATIVE_NAME_BYTES - len(f"{host_link}.00.")
    parts = [text[start : start + room] for start in range(0, len(text), room)]
    # No name may hold white space (iproute2 refuses to show or remove it); no part of an identity holds a slash.
    return [f"{host_link}.{number:02}.{part.replace(' ', '/')}" for number, part in enumerate(parts)]


def _from_names(link: Link) -> str:
    start = f"{link.name}."
    parts = sorted(name.removeprefix(start) for name in link.alternative_names if name.startswith(start))
    return "".join(part[len("00.") :].replace("/", " ") for part in parts)


def creation(attachment: Attachment, mtu: int, netns: int, mac: bytes) -> Operation:
    """Make the pair, both ends down, the pod's with this MAC."""
    host = VethEnd(attachment.host_link, HOST_MAC, mtu)
    pod = VethEnd(attachment.key.ifname, mac, mtu)
    return rtnetlink.create_veth(host, pod, netns, LINK_GROUP)


def naming(attachment: Attachment) -> list[Operation]:
    """Say on the host end whose it is, and bring it up; its settings stand by then.

    Names of Kubernetes may take more than an alias holds.
    """
    text = identity_text(attachment.key, attachment.pod)
    alias, more = text[:_ALIAS_BYTES], text[_ALIAS_BYTES:]
    names = _alternative_names(attachment.host_link, more)
    adding = [links.add_alternative_names(attachment.host_link, names)] if names else []
    return [*adding, rtnetlink.raise_link(attachment.host_link, alias)]


def host_side(attachment: Attachment, index: int, mac: bytes) -> list[Operation]:
    """Neighbours and routes on the host, for the host end of this index and a pod's end of this MAC."""
    operations = []
    for address in attachment.addresses:
        operations.append(rtnetlink.add_neighbour(address, mac, index))
        operations.append(
            rtnetlink.add_route(address.prefix, index, protocol=ROUTE_PROTOCOL, metric=HOST_METRIC[address.family])
        )
    return operations


def pod_side(attachment: Attachment, index: int) -> list[Operation]:
    """Addresses, gateway and default routes inside the sandbox, for the pod's end of this index."""
    operations = [rtnetlink.raise_index(LOOPBACK_INDEX), rtnetlink.raise_index(index)]
    operations += [rtnetlink.add_address(address, index) for address in attachment.addresses]
    metric = route_metric(attachment.key)
    for family in sorted({address.family for address in attachment.addresses}):
        gateway, default = POD_GATEWAYS[family], DEFAULT_ROUTES[family]
        operations += [
            rtnetlink.add_neighbour(gateway, HOST_MAC, index),
            rtnetlink.add_route(gateway.prefix, index, protocol=RTPROT_BOOT, metric=metric),
            rtnetlink.add_route(default, index, protocol=RTPROT_BOOT, gateway=gateway, metric=metric),
        ]
    return operations + source_routing_of(attachment, index)


def source_rules(attachment: Attachment) -> list[SourceRule]:
    """The rules by which a sandbox's further interface is left by what has its addresses; none for the first."""
    table = route_metric(attachment.key)
    return [SourceRule(address, table) for address in attachment.addresses] if table else []


def source_routing_of(attachment: Attachment, index: int) -> list[Operation]:
    """Table and rules of a sandbox's further interface, for the pod's end of this index."""
    rules = source_rules(attachment)
    gateways = [POD_GATEWAYS[family] for family in sorted({rule.source.family for rule in rules})]
    table = route_metric(attachment.key)
    routes = [source_routing.add_default_route(each, index, table=table, protocol=RTPROT_BOOT) for each in gateways]
    return routes + [source_routing.add_rule(rule) for rule in rules]
