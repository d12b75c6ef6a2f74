"""Agent and exporter in real containers, with what the manifests give them: capabilities, a
read-only root, seccomp.

The containers' root is this machine's own. NETMGR_IMAGE_ROOT names the root of an image that `make
image` built instead: a copy of what `podman image mount` shows, since /var/lib is the test's own.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from netmgr.prefixes import Family
from tests.fakes.kustomize import build
from tests.lab.topology import INTERNET, Node
from tests.runtimes.engines import (
    CONTAINERD_CONFIG,
    STORAGE_CONF,
    ContainerdCri,
    containerd_config,
    containers_conf,
)
from tests.runtimes.internet import Internet, probing
from tests.runtimes.machine import Machine
from tests.runtimes.node import BIN_DIR, DOCUMENT, SOURCE, NetmgrNode, scraped, sent_of_pod, settled
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.root, pytest.mark.runtimes, pytest.mark.slow]

OVERLAYS = SOURCE / "configs" / "kubernetes" / "overlays"
OVERLAY = OVERLAYS / "cni"
ROOT = "/run/image"
IMAGE_ROOT = os.environ.get("NETMGR_IMAGE_ROOT", "")
PYTHON = "python3" if IMAGE_ROOT else sys.executable
"""The interpreter in there."""

DEBIANS_PLUGINS = "/usr/lib/cni"
CONF_DIR = "/etc/cni/net.d"
ANNOTATIONS = "/run/annotations"
"""As the kubelet makes it of a pod that nothing was written to: its file is empty."""

SECCOMP = "/var/lib/kubelet/seccomp"
IMAGES_PROFILES = "/opt/netmgr/share"

MOST_KIB = 16 << 10
"""What the container `plugin` requests."""

K3S = "/var/lib/rancher/k3s"
K3S_CONFIG = f"{K3S}/agent/etc/containerd/config.toml"
K3S_BIN_DIR, K3S_CONF_DIR = f"{K3S}/data/current/bin", f"{K3S}/agent/etc/cni/net.d"


def manifest(overlay: Path = OVERLAY, *components: Path) -> dict[str, Any]:
    (found,) = [item for item in build(overlay, *components) if item["kind"] == "DaemonSet"]
    return found["spec"]["template"]["spec"]


def contained(name: str, overlay: Path = OVERLAY, *components: Path) -> list[str]:
    """The command that runs `name` of the manifest as a kubelet would;
    the image is this machine."""
    pod = manifest(overlay, *components)
    every = [*pod["initContainers"], *pod["containers"]]
    (container,) = [item for item in every if item["name"] == name]
    context = container["securityContext"]
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    assert pod["hostNetwork"]
    volumes = [volume for volume in pod["volumes"] if "hostPath" in volume]
    where = {volume["name"]: volume["hostPath"]["path"] for volume in volumes}
    where["document"] = str(Path(DOCUMENT).parent)
    where["node-ranges"] = ANNOTATIONS
    options = ["--network=host", "--read-only", "--read-only-tmpfs=false", "--ulimit=host"]
    options += ["--security-opt=no-new-privileges", "--cap-drop=all"]
    options += [f"--cap-add={each}" for each in context["capabilities"].get("add", ())]
    options.append(f"--user={context['runAsUser']}:{context.get('runAsGroup', 0)}")
    seccomp = context["seccompProfile"]
    if seccomp["type"] == "Localhost":
        options += ["--security-opt", f"seccomp={SECCOMP}/{seccomp['localhostProfile']}"]
    for mount in container["volumeMounts"]:
        modes = ["ro"] if mount.get("readOnly") else ["rw"]
        modes += ["rslave"] if mount.get("mountPropagation") == "HostToContainer" else []
        options += ["--volume", f"{where[mount['name']]}:{mount['mountPath']}:{','.join(modes)}"]
    command = container["command"]
    if IMAGE_ROOT:
        environment = {"PATH": "/opt/netmgr/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    else:
        environment = {"PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
        module = [] if command[0] == "python3" else ["-m", command[0]]
        command = [sys.executable, *module, *command[1:]]
    given = [f"--env={key}={value}" for key, value in environment.items()]
    return ["podman", "run", "--name", name, *given, *options, "--rootfs", ROOT, *command]


@dataclass
class ContainedNode(NetmgrNode):
    """The node with its agent and exporter in containers.

    `bin_dir` and `conf_dir` are where containerd is configured to look for plugins and networks.
    `components` are of the manifests.
    """

    bin_dir: str = BIN_DIR
    conf_dir: str = CONF_DIR
    components: tuple[Path, ...] = ()

    def start(self) -> None:
        machine = self.machine
        machine.write("/etc/containers/containers.conf", containers_conf())
        machine.write("/etc/containers/storage.conf", STORAGE_CONF)
        own = {"reader_group": 65534, "reconcile_seconds": 1}
        machine.write(DOCUMENT, yaml.safe_dump(self._document() | own))
        # podman refuses its configuration without the first.
        folders = (BIN_DIR, "/run/netmgr", "/run/netns", "/var/lib/netmgr", f"{SECCOMP}/netmgr")
        machine.run("mkdir", "-p", *folders, ROOT, "/run/upper", "/run/work")
        machine.run("touch", "/run/xtables.lock")
        # Networks of this machine's own packages.
        machine.run("sh", "-c", f"rm -f {CONF_DIR}/*")
        machine.run("mount", "--make-shared", "/run")
        overlay = f"lowerdir={IMAGE_ROOT or '/'},upperdir=/run/upper,workdir=/run/work"
        machine.run("mount", "-t", "overlay", "-o", overlay, "overlay", ROOT)
        # Off, so that it is seen to be switched on from within.
        machine.run("sysctl", "-w", "net.ipv4.ip_forward=0", "net.ipv6.conf.all.forwarding=0")
        machine.write(f"{ANNOTATIONS}/ranges", "")
        self.configure_containerd()
        if not IMAGE_ROOT:
            # The image has no compiler, which ctypes would look for libraries with, in /tmp.
            machine.run("rm", "-f", f"{ROOT}/usr/bin/gcc", f"{ROOT}/usr/bin/cc")
            machine.run("mkdir", "-p", f"{ROOT}{IMAGES_PROFILES}")
            machine.run("cp", "-r", f"{SOURCE}/configs/seccomp", f"{ROOT}{IMAGES_PROFILES}")
        for container in manifest(OVERLAY, *self.components)["initContainers"]:
            if container["name"] != "document":  # which asks an API server
                machine.run(*contained(container["name"], OVERLAY, *self.components))
        self.start_container("agent")
        self.wait_until_ready()
        self.start_container("plugin")
        eventually(self.conflist.exists, lambda: machine.log("plugin"))

    @property
    def conflist(self) -> Path:
        """What announces the plugin."""
        return self.machine.path(f"{self.conf_dir}/10-netmgr.conflist")

    def start_container(self, name: str) -> None:
        """Start one of the pod's, anew if it ran."""
        self.machine.run("podman", "rm", "--force", "--ignore", "--time", "5", name)
        self.machine.start(name, *contained(name, OVERLAY, *self.components))

    def reboot(self, engine: ContainerdCri) -> None:
        """As a loss of power and a boot, up to containerd's start: /run is empty, and systemd has
        done what tmpfiles.d says of this node.
        """
        machine = self.machine
        remove_containers(machine)
        machine.run("sh", "-c", "kill -KILL $(pidof containerd)")
        machine.running["containerd"].wait(PATIENCE)
        machine.run("sh", "-c", "rm -rf /run/netmgr/* /run/containerd")
        machine.run("systemd-tmpfiles", "--remove", "--boot", "/etc/tmpfiles.d/netmgr-cni.conf")
        engine.restart()

    def configure_containerd(self) -> None:
        self.machine.write(CONTAINERD_CONFIG, containerd_config(self.bin_dir))


@dataclass
class K3sNode(ContainedNode):
    """A node whose containerd is configured as k3s does it."""

    conf_dir: str = K3S_CONF_DIR

    def configure_containerd(self) -> None:
        """Write the same configuration where k3s generates it, and its directories."""
        self.machine.run("mkdir", "-p", f"{K3S}/data/1f2e/bin", K3S_CONF_DIR)
        self.machine.run("ln", "-s", f"{K3S}/data/1f2e", f"{K3S}/data/current")
        self.machine.run("cp", f"{DEBIANS_PLUGINS}/loopback", f"{K3S}/data/1f2e/bin")
        config = containerd_config(K3S_BIN_DIR) + f'conf_dir = "{K3S_CONF_DIR}"\n'
        for path in (CONTAINERD_CONFIG, K3S_CONFIG):
            self.machine.write(path, config)


class Looking:
    """Looks at a file all the time."""

    def __init__(self, path: Path) -> None:
        self.seen: set[bytes | None] = set()
        self._path = path
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.001):
            try:
                self.seen.add(self._path.read_bytes())
            except FileNotFoundError:
                self.seen.add(None)


@pytest.fixture
def contained_node(machine: Machine, node: Node) -> Iterator[ContainedNode]:
    made = ContainedNode(machine, node, backend="nftables", bin_dir=DEBIANS_PLUGINS)
    made.start()
    yield made
    remove_containers(machine)


def remove_containers(machine: Machine) -> None:
    for name in ("exporter", "agent", "plugin", "seccomp-profiles"):
        machine.run("podman", "rm", "--force", "--ignore", "--time", "30", name)


def test_pods_are_wired_counted_and_scraped_from_within_containers(
    contained_node: ContainedNode, internet: Internet, probe: bytes
):
    machine = contained_node.machine
    engine = ContainerdCri(machine, probe)
    pod = engine.run("inside")
    for family in Family:
        engine.speak("inside", *probing(INTERNET[family]))
    assert settled(lambda: contained_node.counted(*pod), internet.meter) == internet.meter()

    for probe_name in ("readinessProbe", "livenessProbe"):
        (container,) = [each for each in manifest()["containers"] if each["name"] == "agent"]
        command = container[probe_name]["exec"]["command"]
        assert command[0] == "python3"
        machine.run("podman", "exec", "agent", PYTHON, *command[1:])

    # What an operator runs in there: the container's capabilities and mounts suffice for it.
    netmgr = ("podman", "exec", "agent", PYTHON, "-m", "netmgr")
    found = json.loads(machine.run(*netmgr, "doctor", "-o", "json"))
    errors = {check: each for check, each in found["checks"].items() if "error" in str(each)}
    assert errors == {}
    machine.run(*netmgr, "bundle", "--to", "/run/netmgr/bundle.tar.gz")

    machine.start("exporter", *contained("exporter"))
    sent = internet.meter()["internet-out"][0]
    eventually(lambda: sent_of_pod(scraped(machine)) == sent, lambda: machine.log("exporter"))

    number = machine.run("pgrep", "-f", "netmgr agent").split()[-1]
    entries = (machine.path("/proc") / number / "status").read_text().splitlines()
    shown = dict(entry.split(":\t", 1) for entry in entries if ":\t" in entry)
    assert (shown["NoNewPrivs"], shown["Seccomp"]) == ("1", "2")
    (agent,) = [each for each in manifest()["containers"] if each["name"] == "agent"]
    capabilities = agent["securityContext"]["capabilities"]["add"]
    assert int(shown["CapBnd"], 16).bit_count() == len(capabilities)
    engine.remove("inside")
    assert settled(lambda: contained_node.addresses("allocated"), lambda: 0) == 0


def test_an_agent_that_runtimes_do_not_find_is_not_ready_and_its_plugin_is_removed_where_it_is(
    contained_node: ContainedNode,
):
    machine, launcher = contained_node.machine, f"{contained_node.bin_dir}/netmgr"
    first = f"{CONF_DIR}/05-other.conflist"

    def reason_has(words: str) -> bool:
        return words in contained_node.snapshot()["reason"]

    def expect(words: str) -> None:
        eventually(lambda: reason_has(words), lambda: contained_node.snapshot()["reason"])

    machine.run("mv", launcher, "/run/moved")
    expect(f"{launcher} is missing")
    machine.run("mv", "/run/moved", launcher)
    eventually(lambda: contained_node.snapshot()["ready"], lambda: "not ready again")
    machine.write(first, '{"name": "other", "plugins": [{"type": "ptp"}]}')
    expect(f"the runtime takes {first}, not netmgr's")
    machine.run("rm", first)
    eventually(lambda: contained_node.snapshot()["ready"], lambda: "not ready again")
    machine.write(CONTAINERD_CONFIG, containerd_config("/etc/elsewhere"))
    expect(f"{CONTAINERD_CONFIG} has changed what it says about CNI plugins")
    # What the message asks for: the container that installs the plugin runs again.
    contained_node.start_container("plugin")
    eventually(machine.path("/etc/elsewhere/netmgr").exists, lambda: machine.log("plugin"))
    eventually(lambda: contained_node.snapshot()["ready"], lambda: "not ready again")

    machine.run("podman", "rm", "--force", "--time", "5", "plugin")
    machine.run(*contained("plugin", OVERLAYS / "uninstall"))
    assert not machine.path("/etc/elsewhere/netmgr").exists()
    assert machine.run("find", CONF_DIR, "/etc/tmpfiles.d", "-name", "*netmgr*") == ""


def test_the_plugin_is_announced_once_the_agent_serves_and_through_its_restarts_until_a_reboot(
    contained_node: ContainedNode, probe: bytes
):
    machine, conflist = contained_node.machine, contained_node.conflist
    engine = ContainerdCri(machine, probe)
    with Looking(conflist) as looking:
        for _ in range(3):
            contained_node.start_container("agent")
            contained_node.wait_until_ready()
        machine.run("mkdir", "/run/volume")
        machine.run("mount", "-t", "tmpfs", "tmpfs", "/run/volume")
        contained_node.start_container("plugin")
        eventually(lambda: "up to date" in machine.log("plugin"), lambda: machine.log("plugin"))
    assert looking.seen == {conflist.read_bytes()}
    # It stays, with little, and ends when it is told.
    eventually(lambda: machine.run("pgrep", "-f", "signal.sigwait", check=False))
    (stays,) = machine.run("pgrep", "-f", "signal.sigwait").split()
    resident = machine.path(f"/proc/{stays}/status").read_text().partition("VmRSS:")[2]
    assert int(resident.split()[0]) < MOST_KIB
    # A volume that the node unmounts does not live on in there.
    mounts = machine.path(f"/proc/{stays}/mountinfo")
    assert "/host/run/volume" in mounts.read_text()
    machine.run("umount", "/run/volume")
    assert "/host/run/volume" not in mounts.read_text()
    machine.run("podman", "stop", "--time", "1000", "plugin")

    contained_node.reboot(engine)
    assert not engine.cri.network_is_ready()
    # An agent that hangs before it serves.
    lock = "/run/netmgr/agent.lock"
    machine.start("lock", "flock", lock, "sleep", "1000")
    eventually(machine.path(lock).exists)
    contained_node.start_container("plugin")
    contained_node.start_container("agent")
    eventually(lambda: "waiting-for-predecessor" in machine.log("agent"))
    assert machine.run("pgrep", "-f", "install --in-pod")
    assert not conflist.exists()
    assert not engine.cri.network_is_ready()
    machine.run("pkill", "-f", f"^(flock {lock} )?sleep 1000$")
    # It gives up after a while, and the kubelet starts it again.
    contained_node.start_container("agent")
    eventually(engine.cri.network_is_ready, lambda: machine.log("plugin") + machine.log("agent"))
    # The first ADD meets an agent that serves.
    engine.run("after")


def test_pods_start_with_k3s_whose_directories_a_component_shows_the_agent(
    machine: Machine, node: Node, probe: bytes
):
    component = OVERLAYS.parent / "components" / "k3s"
    made = K3sNode(machine, node, backend="nftables", components=(component,))
    made.start()
    try:
        ContainerdCri(machine, probe).run("inside")
        launcher = f"{K3S}/data/1f2e/bin/netmgr"
        machine.run("mv", launcher, "/run/moved")
        eventually(
            lambda: f"{launcher} is missing" in made.snapshot()["reason"],
            lambda: made.snapshot()["reason"],
        )
    finally:
        remove_containers(machine)
