"""Pods' processes, a node's agent above all: how it is ended, and when its successor serves."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.e2e import netmgr
from tests.e2e.cluster import Cluster, wait_for

_PODS = "/api/v1/namespaces/netmgr/pods"
_SELECTOR = "labelSelector=app.kubernetes.io/component%3Dagent"
_SECONDS_TO_END = 40
_SECONDS_TO_SERVE = 60


def process(cluster: Cluster, node: str, command: str = "agent") -> int:
    """The process of the node's agent or exporter."""
    return process_of(_pod(cluster, node)["uid"], command)


def process_of(uid: str, command: str) -> int:
    """The process with this word in its command, by the control group of its pod."""
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if f"/pod{uid}/" not in (each / "cgroup").read_text():
                continue
            words = (each / "cmdline").read_text().split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if command in words:
            return int(each.name)
    raise AssertionError(f"no {command} runs in pod {uid}")


def kill(cluster: Cluster, node: str) -> None:
    """End the agent's process; the kubelet starts its container again."""
    number = process(cluster, node)
    _end(number, lambda: os.kill(number, signal.SIGKILL))


def replace(cluster: Cluster, node: str) -> None:
    """Delete the agent's pod, as a rollout does; returns when its process has ended."""
    pod = f"{_PODS}/{_pod(cluster, node)['name']}"
    _end(process(cluster, node), lambda: cluster.plane.ask("DELETE", pod))


def _end(number: int, action: Callable[[], object]) -> None:
    handle = os.pidfd_open(number)
    try:
        action()
        ended, _, _ = select.select([handle], [], [], _SECONDS_TO_END)
    finally:
        os.close(handle)
    assert ended, f"process {number} did not end within {_SECONDS_TO_END} s"


def serves(cluster: Cluster, node: str) -> bool:
    """Whether a launcher would reach an agent on this node."""
    path = cluster.node(node).machine.path("/run/netmgr/cni.sock")
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def seconds_until_it_serves(cluster: Cluster, node: str) -> tuple[float, float]:
    """From now until the next agent serves; and how long of that its process was there."""
    begin = time.monotonic()
    wait_for(partial(serves, cluster, node), f"an agent that serves {node}", _SECONDS_TO_SERVE)
    gap = time.monotonic() - begin
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    netmgr.roll_out(cluster)
    return gap, now - _start(process(cluster, node))


def _pod(cluster: Cluster, node: str) -> dict[str, str]:
    (found,) = [
        each["metadata"]
        for each in cluster.plane.ask("GET", f"{_PODS}?{_SELECTOR}")["items"]
        if each["spec"]["nodeName"] == node and "deletionTimestamp" not in each["metadata"]
    ]
    return dict(found)


def _start(number: int) -> float:
    """When a process started, in seconds since the machine did (proc(5), starttime)."""
    stat = Path(f"/proc/{number}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
