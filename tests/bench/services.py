"""Opening many Services: loading all, changing one endpoint, and what the kernel keeps for it.

Beside each: the same Services as kube-proxy's iptables mode programs them, written with
`iptables-restore` (which is what kube-proxy runs) in a namespace of its own; its time is that
of the program alone, without kube-proxy's own work before it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from netmgr import programs
from netmgr.kernel import netns
from tests.bench import services_connections
from tests.bench import services_shapes as shapes
from tests.bench.report import Effort, Figure
from tests.bench.services_load import kernel_megabytes

SOURCE = Path(__file__).resolve().parents[2]
PATIENCE, CHANGES = 600, 2
WEIGHABLE = 2_000
"""What fewer Services weigh is lost in what else the machine does."""


def measure(effort: Effort) -> Iterator[Figure]:
    """netmgr beside iptables-restore."""
    count = effort.services
    with TemporaryDirectory() as folder:
        load, change, memory = _kube_proxy(count, Path(folder, "lock"))
    took = _netmgr(count)
    what = f"{count:,} Services x {shapes.ENDPOINTS} endpoints, nftables"
    peer = "iptables-restore"
    yield Figure(f"programming {what}", took["program"], "s", load, peer, 1)
    yield Figure(
        f"one endpoint less of {what}", 1000 * took["change"], "ms", 1000 * change, peer, 0.1
    )
    if count >= WEIGHABLE:
        yield Figure(f"kernel memory, {what}", took["kernel"], "MB", memory, peer, 1)
    yield Figure(f"from documents to the kernel, {what}", took["load"], "s")
    yield Figure(f"taking over from a predecessor, {what}", took["take over"], "s")
    yield Figure(f"looking for drift where there is none, {what}", 1000 * took["idle sync"], "ms")
    yield Figure(f"process's memory, {what}", took["memory"], "MB")
    yield Figure(f"process's memory at most, {what}", took["peak"], "MB")
    yield from services_connections.measure(effort)


def _netmgr(count: int) -> dict[str, float]:
    with TemporaryDirectory() as folder, namespace("services"):
        shapes.write_documents(Path(folder), count)
        command = [sys.executable, "-m", "tests.bench.services_load", folder]
        done = programs.run(command, cwd=SOURCE, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _kube_proxy(count: int, lock: Path) -> tuple[float, float, float]:
    """Seconds to load, seconds to change, megabytes in the kernel."""
    everything = shapes.kube_proxy_rules(count)
    changes = [shapes.kube_proxy_change(count, number) for number in range(min(CHANGES, count))]
    took, weights, changing = [], [], []
    with namespace("services"):
        for _ in range(2):
            empty = kernel_megabytes()
            took.append(_timed(lambda: _restore(everything, lock)))
            full = kernel_megabytes()
            changing += [_timed(lambda text=text: _restore(text, lock)) for text in changes]
            _restore("*nat\nCOMMIT\n", lock, keep=False)
            weights += [full - empty, full - kernel_megabytes()]
    return median(took), median(changing), median(weights)


def _restore(text: str, lock: Path, *, keep: bool = True) -> None:
    # A lock of its own: the whole machine's would have it wait for others, and others for it.
    environment = os.environ | {"XTABLES_LOCKFILE": str(lock)}
    program = programs.locate("iptables-legacy-restore", "iptables")
    done = programs.run(
        [program, *["--noflush"] * keep], stdin=text.encode(), env=environment, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr.decode()


@contextmanager
def namespace(what: str) -> Iterator[None]:
    """Have the calling thread run in a network namespace of its own."""
    path = Path(f"/run/netns/bench-{what}-{os.getpid()}")
    netns.create(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with netns.entered(descriptor):
            yield
    finally:
        os.close(descriptor)
        netns.delete(path)


def _timed(step: Callable[[], object]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began
