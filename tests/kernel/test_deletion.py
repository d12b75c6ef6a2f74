"""Deleting a pair of links without waiting for the kernel's grace period."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from netmgr.dataplane import deletion
from netmgr.dataplane.deletion import MOST_AT_ONCE, Deletion
from netmgr.errors import KernelError
from netmgr.kernel import links, netlink
from netmgr.kernel.links import VethEnd
from netmgr.kernel.netlink import Netlink
from tests.kernel.common import own_network
from tests.lab import wiring
from tests.waiting import PATIENCE

pytestmark = pytest.mark.root

OUTSIDE, INSIDE = "outside", "inside"


@pytest.fixture
def host() -> Iterator[Netlink]:
    """Of a namespace with a pair of links, whose second end is in it as well."""
    ends = (
        VethEnd(name, bytes([2, 0, 0, 0, 0, n]), 1500) for n, name in enumerate((OUTSIDE, INSIDE))
    )
    with (
        own_network("deletion") as path,
        path.open() as opened,
        wiring.inside(path),
        Netlink() as channel,
    ):
        channel.transact([links.create_veth(*ends, opened.fileno())])
        yield channel


def test_both_ends_are_gone_and_a_second_deletion_finds_nothing(
    host: Netlink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "PATIENCE_SECONDS", PATIENCE)
    deleting = Deletion(host)
    index = netlink.index_of(OUTSIDE)
    assert deleting.delete(index)
    assert (netlink.index_of(OUTSIDE), netlink.index_of(INSIDE)) == (0, 0)
    assert not deleting.delete(index)
    deleting.close()


def test_deletions_that_hang_in_the_kernel_hold_up_no_other_for_long(
    host: Netlink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "PATIENCE_SECONDS", 0.1)
    deleting, end = Deletion(host), threading.Event()
    for _ in range(MOST_AT_ONCE):
        deleting._threads.submit(end.wait)
    index = netlink.index_of(OUTSIDE)
    with pytest.raises(KernelError, match="too long"):
        deleting.delete(index)
    end.set()
    deleting.close()
    assert netlink.index_of(OUTSIDE) == 0, "it is deleted all the same"


def test_a_deletion_that_hangs_for_ever_keeps_nobody_from_closing(
    host: Netlink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "CLOSE_SECONDS", 0.1, raising=False)
    deleting, end = Deletion(host), threading.Event()
    deleting._threads.submit(end.wait)
    closing = threading.Thread(target=deleting.close)
    closing.start()
    try:
        closing.join(PATIENCE)
        assert not closing.is_alive()
    finally:
        end.set()
