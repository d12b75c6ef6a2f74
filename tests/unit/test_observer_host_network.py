"""Who is a host-network pod, by kubelet's directories and the processes in them, whatever else lies
there.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from netmgr.observer.host_network import HostPodFinder

UID = "0f3a1c52-9d3e-4c55-8a70-6f0f3c2b1a99"
UNDERSCORED = UID.replace("-", "_")
STATIC = "9c4b8f6f6d0e4a0b9d1e2f3a4b5c6d7e"
PLACES = {
    "cgroupfs, guaranteed": (f"kubepods/pod{UID}", 2, UID),
    "cgroupfs, best effort": (f"kubepods/besteffort/pod{UID}", 3, UID),
    "cgroupfs, static": (f"kubepods/burstable/pod{STATIC}", 3, STATIC),
    "systemd, guaranteed": (f"kubepods.slice/kubepods-pod{UNDERSCORED}.slice", 2, UID),
    "systemd, burstable": (
        f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice",
        *(3, UID),
    ),
}


@pytest.fixture
def finder(tmp_path: Path) -> HostPodFinder:
    for name in ("cgroup", "pods"):
        (tmp_path / name).mkdir()
    return HostPodFinder(tmp_path / "cgroup", tmp_path / "pods")


def pod(tmp_path: Path, place: str, *processes: int) -> Path:
    """A pod's cgroup with one for a container in it, whose processes these are."""
    made = tmp_path / "cgroup" / place
    (made / "container").mkdir(parents=True)
    (made / "cgroup.procs").write_text("")
    (made / "container" / "cgroup.procs").write_text("".join(f"{number}\n" for number in processes))
    return made


@pytest.mark.parametrize("place", PLACES)
def test_a_pod_is_found_wherever_kubelet_puts_it(
    finder: HostPodFinder, tmp_path: Path, place: str
) -> None:
    path, depth, uid = PLACES[place]
    # That another process of it is gone decides nothing.
    made = pod(tmp_path, path, os.getpid(), (1 << 22) - 1)
    (tmp_path / "pods" / f"kube-system_kube-proxy-x7k2p_{uid}").mkdir()
    (found,) = finder.find()
    assert str(found.pod) == "kube-system/kube-proxy-x7k2p"
    assert found.pod.uid == uid
    assert found.cgroup.path == made
    assert found.cgroup.number == made.stat().st_ino
    assert found.cgroup.depth == finder.depths[0] - 2 + depth
    assert found.cgroup.depth in finder.depths


def test_a_pod_without_a_process_or_a_name_is_not(finder: HostPodFinder, tmp_path: Path) -> None:
    pod(tmp_path, f"kubepods/pod{UID}")
    pod(tmp_path, f"kubepods/pod{STATIC}", os.getpid())
    pod(tmp_path, "kubepods/of-another-program", os.getpid())
    for name in (f"kube-system_empty_{UID}", "kube-system_nameless_"):
        (tmp_path / "pods" / name).mkdir()
    assert finder.find() == []


@pytest.mark.parametrize(
    "name",
    [
        f"kube-system_{UID}",
        f"kube_system_pod_{UID}",
        f"_pod_{UID}",
        f"Kube_pod_{UID}",
        f"kube-system_po\nd_{UID}",
        f'kube-system_p"d_{UID}',
        f"kube-system_{'p' * 200}{'x' * 5}.._{UID}",
    ],
)
def test_a_name_that_is_none_of_kubernetes_names_nobody(
    finder: HostPodFinder, tmp_path: Path, name: str
) -> None:
    pod(tmp_path, f"kubepods/pod{UID}", os.getpid())
    (tmp_path / "pods" / name[:255]).mkdir()
    assert finder.find() == []


def test_other_directories_and_missing_ones_are_none(finder: HostPodFinder, tmp_path: Path) -> None:
    assert finder.find() == []
    for place in ("system.slice/pod12345678", "kubepods/podXYZ", "kubepods/other/pod12345678"):
        pod(tmp_path, place, os.getpid())
    (tmp_path / "cgroup" / "kubepods" / "cgroup.procs").write_text("1\n")
    (tmp_path / "pods" / "kube-system_any_12345678").mkdir()
    assert finder.find() == []
