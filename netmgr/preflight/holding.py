"""Holds addresses on this machine for as long as a block runs, and no longer.

They are on the host's end of a veth pair whose other end is in a network namespace without a name,
which only this process keeps. So the kernel removes all of it with the process, however that ends.
The addresses are local: no packet for them is forwarded, and no rule for pods applies.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from errno import EEXIST

from netmgr.dataplane.sandbox import wait_for_addresses
from netmgr.descriptors import closing
from netmgr.errors import SetupError
from netmgr.kernel import links, netns
from netmgr.kernel.links import VethEnd
from netmgr.kernel.netlink import Netlink
from netmgr.model import PROBE_LINK
from netmgr.prefixes import Address

_MTU = 1500
# How long the kernel may take to remove the link of a process that was killed.
_SECONDS = 5.0
_LOOK_SECONDS = 0.005


@contextmanager
def held(addresses: Collection[Address]) -> Iterator[None]:
    """Make these addresses this machine's for the block.

    Raises SetupError if another process holds addresses, or privileges are missing.
    """
    if not addresses:
        yield
        return
    with closing(netns.unnamed()) as far_end, Netlink() as channel:
        _create(channel, far_end)
        number = socket.if_nametoindex(PROBE_LINK)
        try:
            channel.transact([links.raise_index(number)])
            channel.transact([links.add_address(address, number) for address in addresses])
            wait_for_addresses(channel, addresses)
            yield
        finally:
            # Now, and not some time after the process: an agent that starts next would take an
            # address of its ranges on a link for a mistake.
            channel.attempt([links.delete_link(number)])


def _create(channel: Netlink, far_end: int) -> None:
    # 2: locally administered, and no group's (IEEE 802).
    near, far = (VethEnd(name, bytes([2, *os.urandom(5)]), _MTU) for name in (PROBE_LINK, "far"))
    operation = links.create_veth(near, far, far_end)
    deadline = time.monotonic() + _SECONDS
    while failure := channel.attempt([operation]).get(operation):
        if failure.errno != EEXIST:
            raise failure
        if time.monotonic() > deadline:
            raise SetupError(
                f"there is a link {PROBE_LINK} already, which no preflight has any more; remove it "
                f"with: ip link delete {PROBE_LINK}"
            )
        time.sleep(_LOOK_SECONDS)
