"""Enters a cluster that another process keeps."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tests.e2e import network
from tests.e2e.cluster import HOME, PROGRAMS
from tests.lab import processes, world


def run(verb: str, arguments: Sequence[str]) -> NoReturn:
    """Become kubectl, or a program on a host of the cluster.

    CLUSTER names the cluster; without it, the only one is meant.
    """
    name = _chosen(os.environ.get("CLUSTER"))
    kubeconfig = HOME / name / "control-plane" / "admin.kubeconfig"
    if verb == "kubectl":
        kubectl = str(HOME / name / PROGRAMS / "kubectl")
        _become(name, network.CONTROL_PLANE, kubectl, f"--kubeconfig={kubeconfig}", *arguments)
    if verb in {"at", "in"} and arguments:
        host, *command = arguments
        is_whole = verb == "in"
        _become(name, host, *(command or ["bash"]), is_whole=is_whole)
    sys.exit(
        "usage: python -m tests.e2e [kubectl ARGUMENTS | at HOST [COMMAND] | in NODE [COMMAND]]"
    )


def _become(cluster: str, host: str, *command: str, is_whole: bool = False) -> NoReturn:
    """Run a command on the network of a host, or in all namespaces of a node."""
    namespace = world.ROOT / cluster / "netns" / host
    entered = ["nsenter", f"--net={namespace}"]
    if is_whole:
        entered = ["nsenter", "--all", f"--target={_kubelet(namespace)}"]
    os.execvp("nsenter", [*entered, *command])  # noqa: S606  no shell is wanted


def _kubelet(namespace: Path) -> int:
    for number in processes.running_in([namespace]):
        if processes.command_line(number)[:1][0].endswith("/kubelet"):
            return number
    sys.exit(f"no kubelet runs in {namespace}")


def _chosen(name: str | None) -> str:
    up = sorted(folder.name for folder in HOME.glob("*"))
    if name in up:
        return name
    if name or len(up) != 1:
        sys.exit(f"CLUSTER must name a cluster that is up: {', '.join(up) or 'none is'}")
    return up[0]
