"""Tables of /proc with names that hold any byte which the kernel does not escape."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from netmgr.kernel import netns
from netmgr.kernel.links import read_carried
from netmgr.observer import host_network
from tests.kernel.common import own_network
from tests.kernel.namespaces import inside
from tests.lab import named_netns, wiring

pytestmark = pytest.mark.root

# Whatever str.splitlines takes for the end of a line, and what is no text.
ODD_NAMES = ["\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\udcff"]


@pytest.mark.parametrize("odd", ODD_NAMES, ids=ascii)
def test_a_mount_of_any_name_leaves_the_list_of_mounts_readable(tmp_path: Path, odd: str) -> None:
    hierarchies = host_network._hierarchies_of_v1()
    path = tmp_path / f"a{odd}b"
    named_netns.create(path)
    try:
        assert os.fspath(path) in netns.places()
        assert host_network._hierarchies_of_v1() == hierarchies
    finally:
        named_netns.delete(path)


@pytest.mark.parametrize("name", ["a\x1cb", "\x1ea", "a\u2028b", "\x85c"], ids=ascii)
def test_a_link_of_any_name_is_read_by_that_name(name: str) -> None:
    with own_network("proc") as path, wiring.inside(path):
        inside(path, "ip", "link", "add", name, "type", "veth", "peer", "peer")
        assert set(read_carried()) == {"lo", "peer", name}
