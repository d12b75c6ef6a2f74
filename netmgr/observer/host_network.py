"""Finds host-network pods without an API: by kubelet's cgroups, its logs, and their processes.

Kubelet keeps one cgroup for each pod, named by its UID, with either driver:

    kubepods/pod<uid>                       kubepods.slice/kubepods-pod<uid_>.slice
    kubepods/burstable/pod<uid>             kubepods.slice/kubepods-burstable.slice/
                                                kubepods-burstable-pod<uid_>.slice

and one directory of logs, which has the name: /var/log/pods/<namespace>_<name>_<uid>. A pod uses
the host's network if it has a process and all its processes are in the node's own network
namespace; the agent must therefore see the node's processes (hostPID).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from netmgr.kernel import proc
from netmgr.model import PodRef
from netmgr.rules import cgroup_counters
from netmgr.rules.cgroup_counters import Cgroup

ROOTS = ("kubepods", "kubepods.slice")
_POD = re.compile(
    r"(?:kubepods-(?:(?:burstable|besteffort)-)?)?pod([0-9a-f][0-9a-f_\-]{7,63})(?:\.slice)?"
)
_CLASS = re.compile(r"burstable|besteffort|kubepods-(?:burstable|besteffort)\.slice")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.\-]{0,251}[a-z0-9])?")
_LOGS = 3
_PROC = Path("/proc")
_MOUNTS = _PROC / "self/mounts"
_MOUNT, _KIND = 1, 2


@dataclass(frozen=True, slots=True)
class HostPod:
    """One pod that shares the node's network."""

    pod: PodRef
    cgroup: Cgroup


def uncountable(cgroups: Path) -> str:
    """Why pods below `cgroups` cannot be counted by cgroup; empty if they can."""
    # In a directory that kubelet does not use no pod would ever be found, and nothing would say so.
    if not cgroups.is_relative_to(cgroup_counters.SYSFS) or not cgroups.is_dir():
        return f"{cgroups} is no directory at or below {cgroup_counters.SYSFS}"
    # Every cgroup of v2 has this file, and none of v1.
    if not (cgroups / "cgroup.controllers").exists():
        return f"{cgroups} is not cgroup v2, and nftables counts by no other"
    if _has_kubelets(cgroups):
        return ""
    # A kubelet may start after the agent: without its directories, only those in v1 are a fault.
    below = cgroups.relative_to(_mount_of(cgroups))
    for hierarchy in _hierarchies_of_v1():
        if _has_kubelets(hierarchy / below):
            return f"kubelet keeps its pods in cgroup v1 ({hierarchy / below}), not in {cgroups}"
    return ""


def _has_kubelets(cgroups: Path) -> bool:
    return any((cgroups / root).is_dir() for root in ROOTS)


def _hierarchies_of_v1() -> list[Path]:
    mounts = map(proc.fields, proc.lines(_MOUNTS))
    return [Path(fields[_MOUNT]) for fields in mounts if fields[_KIND] == "cgroup"]


class HostPodFinder:
    """Reads the files. What vanishes meanwhile is skipped.

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
        # Guaranteed pods are right below kubelet's root, all others below their QoS class.
        return self._above + 2, self._above + 3

    def fault(self) -> str:
        """Why none can be counted; empty if they can."""
        return uncountable(self._cgroups)

    def find(self, counted: Collection[int] = ()) -> list[HostPod]:
        """List every host-network pod there is now; `counted` are the numbers of cgroups."""
        names, own = self._names(), os.stat("/proc/self/ns/net").st_ino  # noqa: PTH116  a magic link
        host_pods = []
        for path in self._folders_of_pods():
            match = _POD.fullmatch(path.name)
            # systemd's slices write the UID's dashes as underscores: in a slice's name a dash
            # nests.
            uid = match[1].replace("_", "-") if match else ""
            # A log folder may have an empty UID; it names no cgroup.
            if not uid or uid not in names:
                continue
            with suppress(OSError):
                depth = self._above + len(path.relative_to(self._cgroups).parts)
                cgroup = Cgroup(cgroup_counters.number_of(path), path, depth)
                # Between two containers a pod has no process. Its counter in the kernel goes on,
                # and would be posted as a whole again if the pod were taken for gone.
                if cgroup.number in counted or _is_on(own, path):
                    host_pods.append(HostPod(names[uid], cgroup))
        return host_pods

    def _folders_of_pods(self) -> Iterator[Path]:
        for root in ROOTS:
            for entry in _folders(self._cgroups / root):
                # Guaranteed pods are at the root, the others below the folder of their QoS class.
                if _CLASS.fullmatch(entry.name):
                    yield from _folders(entry)
                else:
                    yield entry

    def _names(self) -> dict[str, PodRef]:
        names = {}
        for entry in _folders(self._logs):
            words = entry.name.split("_")
            # No name of a namespace or a pod has an underscore.
            if len(words) != _LOGS:
                continue
            namespace, name, uid = words
            if _NAME.fullmatch(namespace) and _NAME.fullmatch(name):
                names[uid] = PodRef(namespace, name, uid)
        return names


def _is_on(own: int, cgroup: Path) -> bool:
    """Whether the cgroup has a process, and all of them are in the network namespace `own`."""
    seen = set()
    # The processes are in the containers' cgroups, which are below the pod's.
    for folder, _, _ in os.walk(cgroup):
        with suppress(OSError):
            # A process may end between the listing and the look at its namespace.
            for number in Path(folder, "cgroup.procs").read_text(encoding="ascii").split():
                with suppress(OSError):
                    seen.add((_PROC / number / "ns/net").stat().st_ino)
    # Also false without any process, as between two containers of a pod.
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
