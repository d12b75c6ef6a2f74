"""Deleting a pair of links without waiting for the kernel's grace period."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from netmgr.dataplane import deletion
from netmgr.dataplane.deletion import MOST_AT_ONCE, Deletion
from netmgr.errors import KernelError
from netmgr.kernel import links, netlink, netns
from netmgr.kernel.links import VethEnd
from netmgr.kernel.netlink import Netlink
from tests.lab import named_netns
from tests.waiting import PATIENCE

pytestmark = pytest.mark.root

OUTSIDE, INSIDE = "outside", "inside"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[int]:
    """A namespace with a pair of links, whose second end is in it as well."""
    path = tmp_path / "home"
    named_netns.create(path)
    descriptor = netns.open_namespace(str(path))
    ends = (
        VethEnd(name, bytes([2, 0, 0, 0, 0, n]), 1500) for n, name in enumerate((OUTSIDE, INSIDE))
    )
    with netns.entered(descriptor):
        with Netlink() as channel:
            channel.transact([links.create_veth(*ends, descriptor)])
        yield descriptor
    os.close(descriptor)
    named_netns.delete(path)


@pytest.mark.usefixtures("home")
def test_both_ends_are_gone_and_a_second_deletion_finds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deletion, "PATIENCE_SECONDS", PATIENCE)
    with Netlink() as host:
        deleting = Deletion(host)
        index = netlink.index_of(OUTSIDE)
        assert deleting.delete(index)
        assert (netlink.index_of(OUTSIDE), netlink.index_of(INSIDE)) == (0, 0)
        assert not deleting.delete(index)
        deleting.close()


@pytest.mark.usefixtures("home")
def test_deletions_that_hang_in_the_kernel_hold_up_no_other_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deletion, "PATIENCE_SECONDS", 0.1)
    with Netlink() as host:
        deleting, end = Deletion(host), threading.Event()
        for _ in range(MOST_AT_ONCE):
            deleting._threads.submit(end.wait)
        index = netlink.index_of(OUTSIDE)
        with pytest.raises(KernelError, match="too long"):
            deleting.delete(index)
        end.set()
        deleting.close()
        assert netlink.index_of(OUTSIDE) == 0, "it is deleted all the same"
