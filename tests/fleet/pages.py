"""A process that serves the pages of many nodes: `python -m tests.fleet.pages PORT NODES`.

Each page is one that the exporter's collector made. Its counters grow at their own rates from one
scrape to the next, which is quicker than a new page: a node has seconds for it, and this process
has all nodes.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random

from prometheus_client import CollectorRegistry, generate_latest

from exporter.collector import Collector
from netmgr.api.snapshot import Snapshot
from tests.fakes.agent_socket import snapshot

PODS, NAMESPACES = 30, 20
BYTES_PER_SECOND = 20_000.0
"""What a series of traffic grows by, on average."""

_TRAFFIC = re.compile(rb"^(netmgr_\S+_traffic_bytes_total\{.*\}) (\S+)$", re.MULTILINE)


def node(number: int) -> Snapshot:
    """A node that has run pods without trouble, and has neither limits nor Services nor spokes."""
    made = snapshot(PODS, NAMESPACES)
    for pod in made["pods"]:
        pod["pod"] = f"node-{number}-{pod['pod']}"
    for key in ("limits", "quotas", "connection_limits", "remote_pods", "isolation", "protected"):
        made[key] = []
    del made["nat"]
    made["cni_requests"] = [one for one in made["cni_requests"] if one["code"] == "0"]
    made["cni_latency"] = [one for one in made["cni_latency"] if one["command"] in {"ADD", "DEL"}]
    return made


class Page:
    """The text of a node's page, and how its counters grow."""

    def __init__(self, number: int) -> None:
        registry = CollectorRegistry()
        registry.register(Collector(lambda: node(number)))
        self._text = generate_latest(registry)
        self._seed = number
        self._began = time.monotonic()

    def now(self) -> bytes:
        """As it is by now."""
        seconds = time.monotonic() - self._began
        # The same rates at each scrape.
        random = Random(self._seed)  # noqa: S311  no secret

        def grown(sample: re.Match[bytes]) -> bytes:
            rate = random.expovariate(1 / BYTES_PER_SECOND)
            return b"%b %d" % (sample[1], float(sample[2]) + rate * seconds)

        return _TRAFFIC.sub(grown, self._text)


class _Handler(BaseHTTPRequestHandler):
    pages: Sequence[Page] = ()
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = self.pages[int(self.path.rpartition("/")[2])].now()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    """Serve, and say `ready`."""
    port, nodes = map(int, sys.argv[1:])
    _Handler.pages = [*map(Page, range(nodes))]
    server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
