"""A controller of which a part hangs is no longer well, whatever the rest of it does."""

from __future__ import annotations

from http.client import HTTPConnection

from prometheus_client import CollectorRegistry

from netmgr.kube.pulse import SILENCE, Pulse
from netmgr.kube.telemetry import serve


def test_health_tells_of_a_part_that_gives_no_sign() -> None:
    now = 0.0
    pulse = Pulse(lambda: now)
    port = serve(CollectorRegistry(), "127.0.0.1:0", pulse.ailment)

    def health() -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/healthz")
        try:
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    assert health() == (200, "ok\n")
    pulse.beat("rounds")
    now = SILENCE - 1
    pulse.beat("election")
    assert health() == (200, "ok\n")
    now = SILENCE + 1
    assert health() == (503, f"no sign of rounds for {now:.0f} s\n")
    pulse.rest("rounds")
    assert health() == (200, "ok\n")
