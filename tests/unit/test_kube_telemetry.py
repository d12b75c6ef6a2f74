"""The controller's own port: a kubelet asks at whichever address the pod has."""

from __future__ import annotations

import socket
from http.client import HTTPConnection

import pytest
from prometheus_client import CollectorRegistry

from netmgr.errors import SetupError
from netmgr.kube.telemetry import serve


def health(address: str, port: int) -> bytes:
    connection = HTTPConnection(address, port, timeout=10)
    connection.request("GET", "/healthz")
    try:
        return connection.getresponse().read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("listen", "reached"),
    [(":0", ("127.0.0.1", "::1")), ("127.0.0.1:0", ("127.0.0.1",)), ("[::1]:0", ("::1",))],
)
def test_health_is_told_over_every_family_that_is_listened_on(listen: str, reached: tuple[str, ...]) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this kernel has no IPv6")
    port = serve(CollectorRegistry(), listen, str)
    found = {}
    for address in ("127.0.0.1", "::1"):
        try:
            found[address] = health(address, port)
        except ConnectionRefusedError:
            continue
    assert found == dict.fromkeys(reached, b"ok\n")


@pytest.mark.parametrize("listen", [":x", ":70000", "192.0.2.1:0"])
def test_what_cannot_be_listened_at_is_told(listen: str) -> None:
    with pytest.raises(SetupError, match="give --listen"):
        serve(CollectorRegistry(), listen, str)
