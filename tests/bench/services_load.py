"""`python -m tests.bench.services_load DIRECTORY`: open the Services there, and tell what each step
took.

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
from netmgr.services.engine import Services
from netmgr.services.nftables import NftablesServices
from tests.bench.services_shapes import ENDPOINTS, RANGE, SPOKE, slice_file

CHANGES, ROUNDS = 9, 3
MEGABYTE = 1 << 20
SETTLING_SECONDS = 0.3
"""Freeing waits for those who might still look."""


def main() -> None:
    """Write a JSON object of seconds and megabytes."""
    directory = Path(sys.argv[1])
    services = _open(directory)
    found = {"load": _timed(services.start)}
    found["idle sync"] = median(_timed(services.sync) for _ in range(3))
    # The first one makes a chain for its number of endpoints.
    changes = [_change(services, directory, number) for number in range(CHANGES + 1)]
    found["change"] = median(changes[1:])
    found |= _resident()
    services.close()
    successor = _open(directory)
    found["take over"] = _timed(successor.start)
    successor.close()
    found["program"], found["kernel"] = _program()
    sys.stdout.write(json.dumps(found))


def kernel_megabytes() -> float:
    """What the kernel keeps for the processes of this control group: rules, sets and their elements
    among it.

    The kernel accounts for it by whoever asked for it, so that nothing else the machine does is in
    it; only the bucket arrays of sets, a tenth of them, are nobody's. Without control groups
    it is the whole machine's unreclaimable slab, vmalloc and per-CPU memory.
    """
    time.sleep(SETTLING_SECONDS)
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            usage = Path(f"/sys/fs/cgroup/memory{path}/memory.kmem.usage_in_bytes")
            if usage.exists():
                return int(usage.read_text(encoding="ascii")) / MEGABYTE
        statistics = Path(f"/sys/fs/cgroup{path}/memory.stat")
        if not controllers and statistics.exists():
            return _numbers(statistics, " ")["kernel"] / MEGABYTE
    lines = _numbers(Path("/proc/meminfo"), ":")
    return sum(lines[name] for name in ("SUnreclaim", "VmallocUsed", "Percpu")) / 1024


def _numbers(path: Path, separator: str) -> dict[str, int]:
    """The numbers of a file of names and numbers, in the file's own unit."""
    lines = path.read_text(encoding="ascii").splitlines()
    return {
        name: int(rest.split()[0])
        for name, _, rest in (line.partition(separator) for line in lines)
    }


def _open(directory: Path) -> Services:
    return Services.open([RANGE], directory, [Prefix.parse(SPOKE)])


def _change(services: Services, directory: Path, number: int) -> float:
    """One endpoint of one Service goes; what it takes from the file's being there to the kernel's
    having it.
    """
    (directory / f"slice-{number}.json").write_text(
        slice_file(number, ENDPOINTS - 1), encoding="ascii"
    )
    return _timed(services.refresh)


def _program() -> tuple[float, float]:
    """What programming alone takes, all documents read, and how much the kernel keeps then."""
    writer = NftablesServices([RANGE.vip_range])
    wanted, took, weights = writer.held(), [], []
    writer.remove()
    for _ in range(ROUNDS):
        empty = kernel_megabytes()
        took.append(_timed(lambda: writer.reconcile(wanted)))
        full = kernel_megabytes()
        assert writer.held() == wanted
        writer.remove()
        weights += [full - empty, full - kernel_megabytes()]
    writer.close()
    return median(took), median(weights)


def _resident() -> dict[str, float]:
    lines = dict(
        line.split(":", 1)
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    )
    return {
        "memory": int(lines["VmRSS"].split()[0]) / 1024,
        "peak": int(lines["VmHWM"].split()[0]) / 1024,
    }


def _timed(step: Callable[[], object]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
