"""A controller of which a part hangs is unhealthy, whatever the rest of it does."""

from __future__ import annotations

import logging
import socket
import struct
from contextlib import nullcontext
from http.client import HTTPConnection

import pytest
from kubernetes.client import ApiClient
from prometheus_client import CollectorRegistry

from exporter.controller_catalog import CONTROLLER
from netmgr.errors import SetupError
from netmgr.kube.client.api import Api
from netmgr.kube.controller.health import SILENCE, ControllerHealth, Telemetry, serve
from tests.waiting import PATIENCE

RESET, KEPT = struct.pack("@ii", 1, 0), struct.pack("@ii", 0, 0)
"""What SO_LINGER has a socket do when it is closed."""


def health(address: str, port: int) -> tuple[int, str]:
    connection = HTTPConnection(address, port, timeout=PATIENCE)
    connection.request("GET", "/healthz")
    try:
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_health_names_a_part_that_gives_no_sign() -> None:
    now = 0.0
    parts = ControllerHealth(lambda: now)
    where = "127.0.0.1", serve(CollectorRegistry(), "127.0.0.1:0", parts.fault)
    assert health(*where) == (200, "ok\n")
    parts.beat("rounds")
    now = SILENCE - 1
    parts.beat("election")
    assert health(*where) == (200, "ok\n")
    now = SILENCE + 1
    assert health(*where) == (503, f"no sign of rounds for {now:.0f} s\n")
    parts.idle("rounds")
    assert health(*where) == (200, "ok\n")


@pytest.mark.parametrize(
    ("listen", "reached"),
    [(":0", ("127.0.0.1", "::1")), ("127.0.0.1:0", ("127.0.0.1",)), ("[::1]:0", ("::1",))],
)
def test_health_is_served_over_every_family(listen: str, reached: tuple[str, ...]) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this kernel has no IPv6")
    port = serve(CollectorRegistry(), listen, str)
    for address in ("127.0.0.1", "::1"):
        refused = nullcontext() if address in reached else pytest.raises(ConnectionRefusedError)
        with refused:
            assert health(address, port) == (200, "ok\n")


def test_what_clients_do_leaves_no_line(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    port = serve(CollectorRegistry(), "127.0.0.1:0", str)
    for said, end in ((b"", RESET), (b"GET /m", RESET), (b"GET /" + b"x" * (1 << 17), KEPT)):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, end)
            client.sendall(said)
            if end == KEPT:
                assert client.recv(100).split()[1] == b"431"
    assert health("127.0.0.1", port) == (200, "ok\n")
    assert not [each for each in caplog.records if each.levelno > logging.DEBUG]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("listen", [":x", ":70000", "192.0.2.1:0"])
def test_an_address_that_cannot_be_listened_at_is_an_error(listen: str) -> None:
    with pytest.raises(SetupError, match="give --listen"):
        serve(CollectorRegistry(), listen, str)


def test_every_family_of_the_controllers_page_is_in_the_catalogue() -> None:
    families = list(Telemetry(Api(ApiClient())).registry.collect())
    exposed = {
        f"{family.name}_total" if family.type == "counter" else family.name for family in families
    }
    assert exposed == {metric.name for metric in CONTROLLER}
