"""Routes whose gateway no link of the machine has are the network's own business, and the others
are installed.
"""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from netmgr.dataplane.node_routes import StaticRoutes
from netmgr.documents.sites import StaticRoute
from netmgr.kernel import netns

pytestmark = pytest.mark.root

NEAR = (("192.0.2.0/24", "10.1.0.4"), ("2001:db8:2::/48", "fd00:1::4"))
FAR = (("192.0.3.0/24", "10.9.0.4"), ("2001:db8:3::/48", "fd00:9::4"))


def ip(*arguments: str) -> str:
    return subprocess.run(
        ["ip", *arguments], check=True, capture_output=True, text=True, timeout=10
    ).stdout


@pytest.fixture(autouse=True)
def machine() -> Iterator[None]:
    """A namespace of its own with one link and a default route, which the test runs in."""
    path = Path("/run/netns") / f"test-{os.getpid()}-routes"
    netns.create(path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with netns.entered(descriptor):
            ip("link", "add", "eth0", "type", "veth", "peer", "name", "beside")
            ip("link", "set", "beside", "up")
            ip("address", "add", "10.1.0.5/24", "dev", "eth0")
            ip("address", "add", "fd00:1::5/64", "dev", "eth0", "nodad")
            ip("link", "set", "eth0", "up")
            ip("route", "add", "default", "via", "10.1.0.1")
            ip("-6", "route", "add", "default", "via", "fd00:1::1")
            yield
    finally:
        os.close(descriptor)
        netns.delete(path)


def test_a_gateway_on_no_link_is_told_once_and_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    wanted = [StaticRoute.model_validate({"to": to, "via": via}) for to, via in (*FAR, *NEAR)]
    with closing(StaticRoutes(wanted)) as routes:
        assert len(routes.reconcile()) == len(NEAR)
        assert routes.reconcile() == []
        listed = ip("route") + ip("-6", "route")
        assert all(f"{to} via {via}" in listed for to, via in NEAR)
        assert not any(to in listed for to, _ in FAR)
        assert [f"{to} via {via}" in caplog.text for to, via in FAR] == [True, True]
        assert len(caplog.records) == len(FAR)
        ip("route", "add", "10.9.0.0/24", "dev", "eth0")
        assert routes.reconcile() == [f"route to {FAR[0][0]} via {FAR[0][1]} was missing"]
