"""The dashboard of hub and spokes has an answer for every query, from a NAT host that drops
and translates.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kernel.joined import MACHINE, Joined, cluster_ip, joined, nat_host, vip
from tests.kernel.scraped import CONFIGS, PORT, Prometheus, by, scraping
from tests.lab.exchange import open_socket
from tests.lab.unprivileged import NOBODY

pytestmark = [pytest.mark.root, pytest.mark.slow]

SERVICE_PORT = 80
DASHBOARD = CONFIGS / "grafana" / "netmgr-sites.json"
ISOLATION = "cluster_from_to:netmgr_isolation_dropped_packets:rate5m"


@pytest.fixture
def machine() -> Iterator[Joined]:
    """A NAT host whose one Service has a connection."""
    with joined(Backend.NFTABLES, f"test-{os.getpid()}-sites") as made:
        listener = open_socket(made.namespace("a"), Family.V4, socket.SOCK_STREAM)
        with (
            listener,
            open_socket(made.namespace("researcher"), Family.V4, socket.SOCK_STREAM) as near,
        ):
            listener.bind((str(cluster_ip(Family.V4)), SERVICE_PORT))
            listener.listen(16)
            settings = nat_host() | {"reader_group": NOBODY}
            made.start(settings)
            near.connect((str(vip(Family.V4)), SERVICE_PORT))
            made.restart(settings)
            made.agent.start_exporter()
            yield made


def busy(machine: Joined, prometheus: Prometheus) -> None:
    """Have a packet dropped each way, and some translated."""
    prometheus.wait_for_scrapes()
    for pair in (("a", "b"), ("b", "a")):
        assert machine.send(*pair, Family.V4) == ""
    for _ in range(3):
        with open_socket(machine.namespace("researcher"), Family.V4, socket.SOCK_STREAM) as near:
            near.connect((str(vip(Family.V4)), SERVICE_PORT))


def test_every_query_of_the_dashboard_has_a_result(
    machine: Joined, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with scraping(
        machine.namespace(MACHINE), [f"127.0.0.1:{PORT}"], tmp_path_factory.mktemp("prometheus")
    ) as prometheus:
        prometheus.wait_for("netmgr_up == 1", bool)
        busy(machine, prometheus)
        prometheus.answers(DASHBOARD)
        prometheus.wait_for(
            f"{ISOLATION} > 0",
            lambda result: set(by(result, "from", "to")) == {("a", "b"), ("b", "a")},
        )
        prometheus.wait_for(
            "netmgr_isolation_dropped_packets_total",
            lambda raw: [one["value"][1] for one in raw] == ["1", "1"],
        )
