"""The pod's end of a link at its end: the sandbox may outlive it, and whoever attaches it next finds nothing of it.

Deleting the pair costs a grace period of the kernel's, and so does moving an end. Taking it down, away
from its name and its addresses, costs a fifth of a millisecond; the reaper deletes it later.
"""

from __future__ import annotations

import os

from netmgr.dataplane import links, netlink, rtnetlink
from netmgr.dataplane.links import Link
from netmgr.dataplane.netlink import Netlink
from netmgr.dataplane.netns import entered
from netmgr.errors import KernelError

FORMER_NAME = "nm-del%d"
"""Name of a pod's end that waits to be deleted; the kernel makes a number of the last part."""


def vacate(host: Netlink, link: Link, path: str) -> None:
    """Free the name, the addresses and the routes of the pod's end of a link, if its sandbox is at this path.

    `host` is a socket in the namespace that `link` is in.

    Raises:
        KernelError: it is there, and the kernel refused.
    """
    try:
        netns = netlink.open_namespace(path)
    except KernelError:
        return  # the sandbox is gone, and with it the link
    try:
        # Another sandbox may have come to be at the path: the number says whether it is the one.
        if host.ask(links.show_namespace_id(netns), links.namespace_id_of) == link.peer_netns:
            with entered(netns):
                inside = Netlink()
            with inside:
                _vacate(inside, link.peer)
    finally:
        os.close(netns)


def _vacate(inside: Netlink, index: int) -> None:
    inside.transact([links.lower_index(index), links.rename(index, FORMER_NAME)])
    held = inside.dump(links.dump_addresses_of(index), rtnetlink.address_of)
    inside.transact([links.delete_address(address, index) for address, owner in held if owner == index])
