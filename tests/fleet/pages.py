"""A process that serves the pages of many nodes: `python -m tests.fleet.pages PORT NODES`.

Each page is one that the exporter's collector made, on a simulated node. Its counters grow at their
own rates from one scrape to the next, which is quicker than a new page: a node has seconds for it,
and this process has all nodes.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

from netmgr.simulation.machine import Machine
from netmgr.simulation.scenario import Scenario
from tests.unit.fleets import scenario

WARM_SECONDS, LATER_SECONDS = 3600.0, 60.0
"""Of six hours: pods have started, a job's too, and nothing was replaced yet."""

_SAMPLE = re.compile(rb"^(\S+(?:\{.*\})?) (\S+)$")


class Page:
    """The text of a node's page, and how its counters grow."""

    def __init__(self, before: bytes, after: bytes) -> None:
        """Of two scrapes that are `LATER_SECONDS` apart."""
        self._lines = list(_lines(before, after))
        self._began = time.monotonic()

    def now(self) -> bytes:
        """As it is by now."""
        seconds = time.monotonic() - self._began
        return b"".join(
            b"%b %d\n" % (line, value + rate * seconds) if rate else line
            for line, value, rate in self._lines
        )


def _lines(before: bytes, after: bytes) -> Iterator[tuple[bytes, float, float]]:
    """Each line, or a sample's name and labels, its value and how much it grows a second."""
    former = dict(map(_parsed, before.splitlines()))
    for line in after.splitlines():
        name, value = _parsed(line)
        rate = (value - former.get(name, value)) / LATER_SECONDS
        yield (name, value, rate) if rate > 0 else (line + b"\n", 0.0, 0.0)


def _parsed(line: bytes) -> tuple[bytes, float]:
    found = None if line.startswith(b"#") else _SAMPLE.match(line)
    return (found[1], float(found[2])) if found else (line, 0.0)


def make(nodes: int) -> list[Page]:
    """The pages of a simulated fleet with all its pods."""
    with TemporaryDirectory() as folder:
        found = scenario(Path(folder), nodes, hours=6)
        machines = _filled(found)
        before = [machine.page() for machine in machines]
        found.time.run(found.time.monotonic() + LATER_SECONDS)
        pages = [Page(*pair) for pair in zip(before, _scraped(machines), strict=True)]
        found.time.close()
        return pages


def _filled(found: Scenario) -> Sequence[Machine]:
    """All machines, once they have run pods for a while."""
    found.begin()
    found.time.run(WARM_SECONDS)
    return list(found.cluster.machines.values())


def _scraped(machines: Sequence[Machine]) -> Iterator[bytes]:
    for machine in machines:
        machine.read()
        yield machine.page()


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
    _Handler.pages = make(nodes)
    server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
