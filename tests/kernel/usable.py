"""Waits for addresses that were just added: the kernel makes IPv6's usable from a work queue."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from functools import partial

from netmgr.prefixes import Address
from tests.waiting import eventually


def wait_until_usable(addresses: Iterable[Address]) -> None:
    for address in addresses:
        eventually(partial(_is_usable, address), f"{address} cannot be bound", every=0.01)


def _is_usable(address: Address) -> bool:
    with socket.socket(address.family.af, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True
