"""Waits for addresses that were just added: the kernel makes IPv6's usable from a work queue."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable

from netmgr.prefixes import Address
from tests.waiting import PATIENCE


def wait_until_usable(addresses: Iterable[Address]) -> None:
    deadline = time.monotonic() + PATIENCE
    for address in addresses:
        while not _is_usable(address):
            assert time.monotonic() < deadline, f"{address} cannot be bound"
            time.sleep(0.01)


def _is_usable(address: Address) -> bool:
    with socket.socket(address.family.af, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True
