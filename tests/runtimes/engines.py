"""The container engines under test, each behind the same three verbs: run a pod, speak in it,
remove it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from typing import Protocol

from tests.runtimes import images
from tests.runtimes.cri import Cri, SandboxConfig
from tests.runtimes.machine import PATH, Machine, MachineError
from tests.runtimes.node import BIN_DIR
from tests.waiting import PATIENCE, eventually

IMAGE = "netmgr.test/busybox:1"
PAUSE = ("sleep", "100000")
LOOPBACK = "/usr/lib/cni/loopback"
"""containerd's CRI service brings up a sandbox's lo with this plugin, whatever the network."""

NATIVE = ("--snapshotter", "native")
"""Copies layers: overlayfs does not stack on the overlay that is the machine's /var/lib."""

CONTAINERD_CONFIG = "/etc/containerd/config.toml"
_CONTAINERD_1 = f"""
version = 2
oom_score = 0
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{IMAGE}"
restrict_oom_score_adj = true # lowering it needs CAP_SYS_RESOURCE, which a container may lack
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "%s"
"""

_CONTAINERD_2 = f"""
version = 3
oom_score = 0
[plugins."io.containerd.cri.v1.images"]
snapshotter = "native"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["%s"]
"""


def major(program: str) -> int:
    """The first number of a program's version."""
    shown = subprocess.run(
        [program, "--version"], env={"PATH": PATH}, capture_output=True, text=True, check=True
    )
    found = re.search(r"\b(\d+)\.\d+", shown.stdout)
    assert found, f"{program} --version printed no version: {shown.stdout}"
    return int(found[1])


@cache
def containerd_config(bin_dir: str = BIN_DIR) -> str:
    """containerd's configuration, as its release reads it, with plugins in `bin_dir`."""
    return (_CONTAINERD_1 if major("containerd") < 2 else _CONTAINERD_2) % bin_dir


@cache
def podman_has_cni() -> bool:
    """podman left CNI networks behind with release 5; where there is none, its tests say so."""
    return shutil.which("podman", path=PATH) is None or major("podman") < 5


_CNI_NETWORKS = """
[network]
network_backend = "cni"
cni_plugin_dirs = ["/opt/cni/bin"]
network_config_dir = "/etc/cni/net.d"
"""

_ENGINE = """
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "crun"
[containers]
cgroups = "disabled"
"""


def containers_conf() -> str:
    return (_CNI_NETWORKS if podman_has_cni() else "") + _ENGINE


STORAGE_CONF = """
[storage]
driver = "vfs"
runroot = "/run/containers/storage"
graphroot = "/var/lib/containers/storage"
"""


class Engine(Protocol):
    """A container runtime; `pod` is a name it has not used yet."""

    def run(self, pod: str) -> tuple[str, str]:
        """Start a pod on the netmgr network; the namespace and name it is accounted under."""
        ...

    def speak(self, pod: str, *command: str) -> str:
        """Run a program in the pod and return what it printed."""
        ...

    def remove(self, pod: str) -> None: ...


def execute(machine: Machine, namespace: str, container: str, *command: str) -> str:
    """Run a program in a container of containerd's and return what it printed."""
    # The shim writes to the file. Over ctr's own pipes, output is lost now and then: ctr cancels
    # their copying when the program has ended (containerd's `process.Delete`).
    output = machine.path("/run/speak.log")
    output.unlink(missing_ok=True)
    to = ("--exec-id", "speak", "--log-uri", "file:///run/speak.log")
    machine.run("ctr", "--namespace", namespace, "task", "exec", *to, container, *command)
    return output.read_bytes().decode()


class Ctr:
    """containerd's own client, `ctr run --cni`, which calls the plugins itself."""

    def __init__(self, machine: Machine, probe: bytes) -> None:
        self.machine = machine
        start_containerd(machine, probe, "default")

    def run(self, pod: str) -> tuple[str, str]:
        self.machine.start(f"ctr-{pod}", "ctr", "run", "--rm", "--cni", *NATIVE, IMAGE, pod, *PAUSE)
        eventually(lambda: self._is_running(pod), lambda: self.machine.log(f"ctr-{pod}"))
        return "-", f"default-{pod}"

    def speak(self, pod: str, *command: str) -> str:
        return execute(self.machine, "default", pod, *command)

    def remove(self, pod: str) -> None:
        self.machine.run("ctr", "task", "kill", "--signal", "KILL", pod)
        self.machine.running[f"ctr-{pod}"].wait(PATIENCE)

    def _is_running(self, pod: str) -> bool:
        return any(
            line.split()[::2] == [pod, "RUNNING"]
            for line in self.machine.run("ctr", "task", "ls").splitlines()
        )


class ContainerdCri:
    """containerd's CRI service, as kubelet uses it."""

    NAMESPACE = "research"

    def __init__(self, machine: Machine, probe: bytes) -> None:
        self.machine = machine
        self.ids: dict[str, str] = {}
        machine.run("mkdir", "-p", BIN_DIR)
        machine.run("ln", "-sf", LOOPBACK, BIN_DIR)
        start_containerd(machine, probe, "k8s.io")
        self._connect()
        eventually(self.cri.network_is_ready, lambda: machine.log("containerd"))

    def run(
        self,
        pod: str,
        host_ports: Mapping[int, int] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> tuple[str, str]:
        config = SandboxConfig(
            pod, self.NAMESPACE, f"uid-of-{pod}", host_ports or {}, annotations or {}
        )
        self.ids[pod] = self.cri.run_pod_sandbox(config)
        return self.NAMESPACE, pod

    def speak(self, pod: str, *command: str) -> str:
        return execute(self.machine, "k8s.io", self.ids[pod], *command)

    def remove(self, pod: str) -> None:
        self.cri.stop_pod_sandbox(self.ids[pod])
        self.cri.remove_pod_sandbox(self.ids.pop(pod))

    def restart(self) -> None:
        """Start containerd again after its end, with what is on the disk."""
        self.cri.close()
        launch_containerd(self.machine)
        self._connect()

    def _connect(self) -> None:
        self.cri = Cri(self.machine.path("/run/containerd/containerd.sock"))
        eventually(self.cri.answers, lambda: self.machine.log("containerd"))


class Podman:
    """podman on CNI networks, from a directory instead of an image."""

    def __init__(self, machine: Machine, probe: bytes) -> None:
        self.machine = machine
        machine.write("/etc/containers/containers.conf", containers_conf())
        machine.write("/etc/containers/storage.conf", STORAGE_CONF)
        self.root = images.unpack_root(machine.path("/run") / "root", probe)

    def run(self, pod: str) -> tuple[str, str]:
        where = ("--network", "netmgr", "--ulimit", "host", "--name", pod, "--rootfs", "/run/root")
        self.machine.run("podman", "run", "--detach", *where, *PAUSE)
        return "-", pod

    def speak(self, pod: str, *command: str) -> str:
        return self.machine.run("podman", "exec", pod, *command)

    def remove(self, pod: str) -> None:
        self.machine.run("podman", "rm", "--force", "--time", "0", pod)


def start_containerd(machine: Machine, probe: bytes, namespace: str) -> None:
    """Start containerd, as it is configured or else with these tests' configuration, and give it
    the image.
    """
    if not machine.written(CONTAINERD_CONFIG):
        machine.write(CONTAINERD_CONFIG, containerd_config())
    launch_containerd(machine)
    machine.write(
        "/run/image.tar", images.oci_archive(IMAGE, list(PAUSE), images.root_files(probe))
    )
    # From release 2 the daemon unpacks an image itself, with its own snapshotter, unless told
    # otherwise.
    local = () if major("containerd") < 2 else ("--local",)
    machine.run(
        "ctr", "--namespace", namespace, "image", "import", *local, *NATIVE, "/run/image.tar"
    )


def launch_containerd(machine: Machine) -> None:
    """Start containerd, and wait until it answers."""
    machine.start("containerd", "containerd")
    eventually(lambda: _answers(machine), lambda: machine.log("containerd"))


def _answers(machine: Machine) -> bool:
    try:
        machine.run("ctr", "version")
    except MachineError:
        return False
    return True
