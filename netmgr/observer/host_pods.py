"""Finds host-network pods without an API: by kubelet's cgroups, its log directories, and where their processes are.

Kubelet keeps one cgroup for each pod, named by its UID, with either driver:

    kubepods/pod<uid>                       kubepods.slice/kubepods-pod<uid_>.slice
    kubepods/burstable/pod<uid>             kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid_>.slice

and one directory of logs, which tells the name: /var/log/pods/<namespace>_<name>_<uid>. A pod is
one of the host's network when it has a process and every process of it is in the node's own
network namespace; the agent must therefore see the node's processes (hostPID).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from netmgr.model import PodRef
from netmgr.rules import nft_cgroups
from netmgr.rules.host_pods import Cgroup

ROOTS = ("kubepods", "kubepods.slice")
_POD = re.compile(r"(?:kubepods-(?:(?:burstable|besteffort)-)?)?pod([0-9a-f][0-9a-f_\-]{7,63})(?:\.slice)?")
_CLASS = re.compile(r"burstable|besteffort|kubepods-(?:burstable|besteffort)\.slice")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.\-]{0,251}[a-z0-9])?")
_LOGS = 3
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class HostPod:
    """One pod that shares the node's network."""

    pod: PodRef
    cgroup: Cgroup


class HostPodFinder:
    """Looks at the files. What vanishes while it is looked at is passed over.

    Args:
        cgroups: the directory that holds kubelet's; below a mount of cgroup v2, or that itself.
        logs: kubelet's log directories.
    """

    def __init__(self, cgroups: Path, logs: Path) -> None:
        self._cgroups = cgroups
        self._logs = logs
        self._above = len(cgroups.relative_to(_mount_of(cgroups)).parts)

    @property
    def depths(self) -> tuple[int, int]:
        """Depths below the mount at which pods are."""
        return self._above + 2, self._above + 3

    def find(self) -> list[HostPod]:
        """Every host-network pod there is now."""
        names, own = self._names(), os.stat("/proc/self/ns/net").st_ino  # noqa: PTH116  a magic link
        return [
            HostPod(names[uid], cgroup) for uid, cgroup in self._pods() if uid in names and _is_on(own, cgroup.path)
        ]

    def _pods(self) -> Iterator[tuple[str, Cgroup]]:
        for root in ROOTS:
            for entry in _folders(self._cgroups / root):
                if _CLASS.fullmatch(entry.name):
                    yield from (found for inner in _folders(entry) for found in self._pod(inner))
                else:
                    yield from self._pod(entry)

    def _pod(self, path: Path) -> Iterator[tuple[str, Cgroup]]:
        if found := _POD.fullmatch(path.name):
            with suppress(OSError):
                depth = self._above + len(path.relative_to(self._cgroups).parts)
                yield found[1].replace("_", "-"), Cgroup(nft_cgroups.number_of(path), path, depth)

    def _names(self) -> dict[str, PodRef]:
        parts = (entry.name.split("_") for entry in _folders(self._logs))
        return {
            uid: PodRef(namespace, name, uid)
            for namespace, name, uid in (words for words in parts if len(words) == _LOGS)
            if _NAME.fullmatch(namespace) and _NAME.fullmatch(name)
        }


def _is_on(own: int, cgroup: Path) -> bool:
    """Whether the cgroup has a process, and all are in the network namespace of this number."""
    seen = set()
    for folder, _, _ in os.walk(cgroup):
        with suppress(OSError):
            for number in Path(folder, "cgroup.procs").read_text(encoding="ascii").split():
                with suppress(OSError):
                    seen.add((_PROC / number / "ns/net").stat().st_ino)
    return seen == {own}


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(entry for entry in path.iterdir() if entry.is_dir())
    except OSError:
        return []


def _mount_of(path: Path) -> Path:
    while not path.is_mount():
        path = path.parent
    return path
