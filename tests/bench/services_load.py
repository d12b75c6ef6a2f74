"""`python -m tests.bench.services_load BACKEND DIRECTORY`: open the Services there, and tell what each step took.

Meant to be run by `services`, in a process and a network namespace of its own: what it weighs
is then what an agent weighs that opens Services and does nothing else.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from netmgr.prefixes import Prefix
from netmgr.services.choose import open_backend
from netmgr.services.engine import Services
from netmgr.services.model import Frontend
from tests.bench.services_shapes import ENDPOINTS, RANGE, SPOKE, slice_file

CHANGES = 9


def main() -> None:
    """Print a JSON object of seconds and megabytes."""
    backend, directory = sys.argv[1], Path(sys.argv[2])
    services = _open(backend, directory)
    before = kernel_megabytes()
    found = {"load": _timed(services.start)}
    found["kernel"] = kernel_megabytes() - before
    found["idle sync"] = median(_timed(services.sync) for _ in range(3))
    # Each number of endpoints is met once before: the first of its kind also makes a chain.
    changes = [_change(services, directory, number) for number in range(CHANGES + 1)]
    found["change"] = median(changes[1:])
    found |= _resident()
    services.close()
    successor = _open(backend, directory)
    found["take over"] = _timed(successor.start)
    held = _held(backend)
    successor.remove()
    successor.close()
    found["program"] = _program(backend, held)
    sys.stdout.write(json.dumps(found))


def kernel_megabytes() -> float:
    """Memory that rules live in: unreclaimable slab, vmalloc and per-CPU counters (/proc/meminfo)."""
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    lines = dict(line.split(":") for line in text.splitlines())
    return sum(int(lines[name].split()[0]) for name in ("SUnreclaim", "VmallocUsed", "Percpu")) / 1024


def _open(backend: str, directory: Path) -> Services:
    return Services.open(backend, [RANGE], directory, [Prefix.parse(SPOKE)])


def _change(services: Services, directory: Path, number: int) -> float:
    """One endpoint of one Service goes; what it takes from the file's being there to the kernel's having it."""
    (directory / f"slice-{number}.json").write_text(slice_file(number, ENDPOINTS - 1), encoding="ascii")
    return _timed(services.refresh)


def _held(backend: str) -> dict:
    reader = open_backend(backend, [RANGE.seen])
    try:
        return reader.held()
    finally:
        reader.close()


def _program(backend: str, wanted: dict[object, Frontend]) -> float:
    """What programming alone takes, all documents read."""
    writer = open_backend(backend, [RANGE.seen])
    took = _timed(lambda: writer.put_right(wanted))
    assert writer.held() == wanted
    writer.remove()
    writer.close()
    return took


def _resident() -> dict[str, float]:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    return {"memory": int(lines["VmRSS"].split()[0]) / 1024, "peak": int(lines["VmHWM"].split()[0]) / 1024}


def _timed(step: Callable[[], object]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
