"""Static routes that are installed, and one link's that are read without everybody else's."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from netmgr import programs
from netmgr.dataplane.node_routes import StaticRoutes
from netmgr.documents.sites import StaticRoute
from netmgr.kernel.netlink import Netlink, index_of
from netmgr.kernel.routes import read_routes
from tests.lab import named_netns, wiring

pytestmark = pytest.mark.root

NEAR = (("192.0.2.0/24", "10.1.0.4"), ("2001:db8:2::/48", "fd00:1::4"))
FAR = (("192.0.3.0/24", "10.9.0.4"), ("2001:db8:3::/48", "fd00:9::4"))


def ip(*commands: str) -> str:
    batch = "".join(f"{command}\n" for command in commands).encode()
    done = programs.run(["ip", "-batch", "-"], stdin=batch)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.fixture(autouse=True)
def machine(tmp_path: Path) -> Iterator[None]:
    """A namespace of its own with one link and a default route, which the test runs in."""
    path = tmp_path / "machine"
    named_netns.create(path)
    try:
        with wiring.inside(path):
            ip(
                "link add eth0 type veth peer name beside",
                "link set beside up",
                "address add 10.1.0.5/24 dev eth0",
                "address add fd00:1::5/64 dev eth0 nodad",
                "link set eth0 up",
                "route add default via 10.1.0.1",
                "route add default via fd00:1::1",
            )
            yield
    finally:
        named_netns.delete(path)


def test_a_gateway_on_no_link_is_told_once_and_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    wanted = [StaticRoute.model_validate({"to": to, "via": via}) for to, via in (*FAR, *NEAR)]
    with closing(StaticRoutes(wanted)) as routes:
        assert len(routes.reconcile()) == len(NEAR)
        assert routes.reconcile() == []
        listed = ip("route show") + programs.run(["ip", "-6", "route"]).stdout.decode()
        assert all(f"{to} via {via}" in listed for to, via in NEAR)
        assert not any(to in listed for to, _ in FAR)
        assert [f"{to} via {via}" in caplog.text for to, via in FAR] == [True, True]
        assert len(caplog.records) == len(FAR)
        ip("route add 10.9.0.0/24 dev eth0")
        assert routes.reconcile() == [f"route to {FAR[0][0]} via {FAR[0][1]} was missing"]


def test_only_the_routes_of_one_link_are_read() -> None:
    ip("route add 10.0.0.1/32 dev eth0", "route add fd00::1/128 dev eth0")
    ip("route add 10.0.0.2/32 dev beside", "route add fd00::2/128 dev beside")
    with Netlink() as channel:
        own = read_routes(channel, oif=index_of("beside"))
        shown = {str(route.destination) for route in own}
        assert {to for to in shown if not to.startswith("fe80")} == {"10.0.0.2/32", "fd00::2/128"}
        assert len(read_routes(channel)) > len(own)
        # A link that is gone has none.
        assert read_routes(channel, oif=index_of("beside") + 100) == []
