"""Notices who reads or sends at pods' links and uplinks beside the node's own network stack.

By `link-netnsid` a pod with NET_ADMIN and without a user namespace may put a link of its own (a
macvlan, ipvlan, VLAN or tunnel) on top of any link of its node. That one has no rules and no
counters. It is in the pod's sandbox, where the node's own list of links does not have it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from netmgr.dataplane import desired
from netmgr.dataplane.sandbox import channel_in, opened
from netmgr.errors import KernelError
from netmgr.kernel.links import HERE, Link, read_links
from netmgr.kernel.netlink import Reader

# What shares a link's packets. A VLAN in the node's own namespace is how many machines use one.
_UPPER_KINDS = ("macvlan", "macvtap", "ipvlan", "ipvtap")

# Links of a switch are promiscuous by themselves, as those with a master are.
_SWITCHED = "openvswitch"


class Sandbox(NamedTuple):
    """What one look at a pod's sandbox found."""

    host: Link
    inside: list[Link]


def read_taps(uplinks: Collection[str]) -> list[str]:
    """Describes each tap of the uplinks and of pods' links."""
    sandboxes: list[Sandbox] = []
    with Reader() as channel:
        own = read_links(channel)
        pods = {link.peer_netns: link for link in own if desired.identity_of(link)}
        for number, namespace in opened(channel, pods.keys() - {HERE}):
            # It may go at any time.
            with suppress(KernelError), channel_in(namespace) as inside:
                sandboxes.append(Sandbox(pods[number], read_links(inside)))
    return list(taps(own, sandboxes, uplinks))


def taps(
    own: Collection[Link], sandboxes: Collection[Sandbox], uplinks: Collection[str]
) -> Iterator[str]:
    """Describes each tap, by the node's own links and those of its pods' sandboxes."""
    watched = {
        link.number: link.name for link in own if link.name in uplinks or desired.is_host_end(link)
    }
    for link in own:
        is_switched = link.master or link.kind == _SWITCHED
        if link.number in watched and link.promiscuity and not is_switched:
            yield f"{link.name} is promiscuous"
        if link.kind in _UPPER_KINDS and link.peer_netns == HERE and link.peer in watched:
            yield f"{link.kind} {link.name} is on {watched[link.peer]}"
    for sandbox in sandboxes:
        yield from _from_inside(sandbox, watched)


def _from_inside(sandbox: Sandbox, watched: Mapping[int, str]) -> Iterator[str]:
    """The links in a sandbox whose other side is in the node's namespace, but for pairs."""
    identity = desired.identity_of(sandbox.host)
    number = sandbox.host.peer
    nodes = {link.peer_netns for link in sandbox.inside if link.number == number}
    for link in sandbox.inside:
        # A tunnel names no link, and leaves by whichever has the route.
        is_watched = link.peer in watched or not link.peer
        if link.peer_netns in nodes and link.kind != sandbox.host.kind and is_watched:
            # Not by its name, which the pod chooses.
            where = watched.get(link.peer, "the node's routes")
            yield f"{link.kind} in pod {identity and identity.pod} is on {where}"
