"""A real Prometheus scrapes the exporter through TLS, with a token and with a password."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from netmgr import programs
from netmgr.api.snapshot import Snapshot
from tests.fakes.agent_socket import snapshot
from tests.fakes.exporter_port import certificate, get, serving
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.programs, pytest.mark.slow]

JOB = """\
  - job_name: {job}
    scheme: https
    tls_config: {{ca_file: localhost.crt, server_name: localhost}}
    {credentials}
    label_value_length_limit: 253
    sample_limit: 600
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""
WAYS = {
    "bearer_token_file": ("c2VjcmV0", "authorization: {credentials_file: secret}"),
    "basic_auth_file": (
        "prometheus:c2VjcmV0",
        "basic_auth: {username: prometheus, password_file: secret}",
    ),
}
"""Option of ours: what its file holds, and what Prometheus is told."""


@contextmanager
def prometheus(configuration: Path) -> Iterator[int]:
    """A Prometheus by this configuration; the port of its API."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = configuration.parent
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                programs.locate("prometheus", "prometheus"),
                f"--config.file={configuration}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
    try:
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE)


def by_job(port: int, query: str) -> dict[str, float]:
    """Prometheus' answer to a query; nothing while it is still starting."""
    try:
        _, body = get(port, f"/api/v1/query?query={quote(query)}")
        return {
            sample["metric"]["job"]: float(sample["value"][1])
            for sample in json.loads(body)["data"]["result"]
        }
    except (ConnectionError, http.client.HTTPException, ValueError, KeyError):
        return {}


def crowded() -> Snapshot:
    document = snapshot(60, 3)
    for total in document["pods"][:2]:
        total["pod"] = "p" * 9000
    return document


def test_prometheus_gets_every_total_through_tls_and_keeps_its_own_limits(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    (tmp_path / "secret").write_text("c2VjcmV0")
    configuration = tmp_path / "prometheus.yml"
    text = "global: {scrape_interval: 5s, scrape_timeout: 5s}\nscrape_configs:\n"
    with ExitStack() as running:
        for option, (secrets, credentials) in WAYS.items():
            (tmp_path / option).write_text(secrets)
            files = {option: tmp_path / option, "tls_cert": cert, "tls_key": key}
            port = running.enter_context(serving(crowded, max_series=600, **files))
            text += JOB.format(job=option, port=port, credentials=credentials)
        configuration.write_text(text)
        api = running.enter_context(prometheus(configuration))
        # Each anew: a scrape that a busy machine is too slow for leaves nothing to any query.
        for query, expected in (
            ("netmgr_up", 1),
            ("netmgr_exporter_dropped_series{pods='live'} > bool 0", 1),
            ("596 < bool (scrape_samples_scraped <= 600)", 1),
            ("count(netmgr_namespace_traffic_bytes_total)by(job)", 6),
        ):
            eventually(
                lambda query=query, expected=expected: (
                    by_job(api, query) == dict.fromkeys(WAYS, expected)
                ),
                lambda query=query: f"{query}: {(tmp_path / 'log').read_text()}",
            )
