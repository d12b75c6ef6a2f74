"""One link's routes are read without everybody else's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from netmgr import programs
from netmgr.kernel import netns
from netmgr.kernel.netlink import Netlink, index_of
from netmgr.kernel.routes import read_routes
from tests.lab import wiring

pytestmark = pytest.mark.root

COMMANDS = """\
link add one type veth peer name other
link set one up
link set other up
route add 10.0.0.1/32 dev one
route add 10.0.0.2/32 dev other
route add fd00::1/128 dev one
route add fd00::2/128 dev other
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path) -> Iterator[None]:
    """A namespace with two links and their routes."""
    path = tmp_path / "home"
    netns.create(path)
    try:
        with wiring.inside(path):
            done = programs.run(["ip", "-batch", "-"], stdin=COMMANDS.encode())
            assert done.returncode == 0, done.stderr.decode()
            yield
    finally:
        netns.delete(path)


def test_only_the_routes_of_that_link_are_read() -> None:
    with Netlink() as channel:
        found = read_routes(channel, oif=index_of("one"))
        shown = {str(route.destination) for route in found}
        assert {one for one in shown if not one.startswith("fe80")} == {
            "10.0.0.1/32",
            "fd00::1/128",
        }
        assert len(read_routes(channel)) > len(found)


def test_a_link_that_is_gone_has_no_routes() -> None:
    with Netlink() as channel:
        assert read_routes(channel, oif=index_of("one") + index_of("other") + 100) == []
