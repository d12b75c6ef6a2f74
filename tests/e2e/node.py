"""One node of a cluster: a machine with a disk, on which containerd, kubelet and kube-proxy run."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from netmgr.prefixes import Family
from tests.e2e import network, programs
from tests.e2e.control_plane import KUBE_PROXY, ClusterControlPlane, kubelet_account
from tests.e2e.images import PAUSE_IMAGE, Archive
from tests.lab.topology import INTERNET
from tests.runtimes.machine import PATH, Machine, MachineError
from tests.runtimes.node import BIN_DIR

CONTAINERD_CONFIG = "/etc/containerd/config.toml"
KUBELET_CONFIG = "/etc/kubernetes/kubelet.yaml"
PROXY_CONFIG = "/etc/kubernetes/kube-proxy.yaml"
_DISK_SIGNALS = ("imagefs.available", "nodefs.available", "nodefs.inodesFree")
CLUSTER_CIDRS = {Family.V4: "10.0.0.0/8", Family.V6: str(network.POD_CIDRS[Family.V6])}
"""Every address that a pod may have, also when a plan decides."""

DISK_BYTES = 16 << 30
"""A sparse file: it takes what is written, half a gigabyte."""

PLUGINS = Path("/usr/lib/cni")

_CONTAINERD_1 = f"""
version = 2
oom_score = 0
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE_IMAGE}"
restrict_oom_score_adj = true # lowering it needs CAP_SYS_RESOURCE, which a container may lack
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{BIN_DIR}"
"""

_CONTAINERD_2 = f"""
version = 3
oom_score = 0
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{BIN_DIR}"]
"""


@dataclass
class ClusterNode:
    """A node called `name`, with everything it keeps below `folder`.

    containerd is Debian's, or with `has_containerd_2` the one of programs/containerd; Kubernetes is
    the newest, or with `has_previous` the one of programs/previous.
    """

    name: str
    netns: Path
    folder: Path
    cgroup: str
    plane: ClusterControlPlane
    proxy_mode: str = "iptables"
    has_containerd_2: bool = False
    has_previous: bool = False
    machine: Machine = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        disk = self.folder / f"{self.name}.img"
        with disk.open("xb") as new:
            new.truncate(DISK_BYTES)
        # No journal: the disk ends with the test.
        subprocess.run(
            ["mkfs.ext4", "-q", "-O", "^has_journal", "-E", "nodiscard", disk], check=True
        )
        self.machine = Machine(self.netns, self.folder, disk=disk, cgroup=self.cgroup)

    def boot(self) -> None:
        """Make the machine on its new disk, and start containerd."""
        self.machine.__enter__()
        # What this machine's own packages put there is no part of a node.
        self.machine.run("sh", "-c", "rm -rf /etc/cni/net.d /opt/cni /var/lib/cni /etc/containerd")
        self.machine.run("mkdir", "-p", "/etc/cni/net.d", BIN_DIR)
        self.add_plugin("loopback")
        self.machine.write("/etc/resolv.conf", f"nameserver {INTERNET[Family.V4]}\n")
        config = _CONTAINERD_2 if self.has_containerd_2 else _CONTAINERD_1
        self.machine.write(CONTAINERD_CONFIG, config)
        self.start_containerd()

    def start_containerd(self) -> None:
        """Start it, with what is on the disk."""
        # It starts the shim that it finds first.
        self.machine.start("containerd", "env", f"PATH={self._path}", "containerd")

    def lose_power(self) -> None:
        """End the machine at once, and forget what its kernel knew; the disk stays."""
        self.stop()
        # The network namespace is the only one that stays, since the cluster's links end in it.
        self._at("nft", "flush", "ruleset")
        for iptables in ("iptables-legacy", "ip6tables-legacy"):
            for table in ("raw", "mangle", "nat", "filter"):
                self._at(iptables, "-t", table, "-F")
                self._at(iptables, "-t", table, "-X")
        for version in ("-4", "-6"):
            self._at("ip", version, "route", "flush", "table", "all", "type", "blackhole")
        self._at("sysctl", "-qw", "net.ipv4.ip_forward=0")

    def power_on(self) -> None:
        """Start the machine that lost its power, with another boot id, and containerd."""
        self.machine.__enter__()
        # What systemd does before it starts containerd.
        rules = "/etc/tmpfiles.d/netmgr-cni.conf"
        self.machine.run("systemd-tmpfiles", "--remove", "--boot", rules)
        self.start_containerd()

    def add_plugin(self, name: str) -> None:
        """Install a plugin of Debian's where the runtime looks for it."""
        self.machine.write(f"{BIN_DIR}/{name}", (PLUGINS / name).read_bytes(), 0o755)

    def import_image(self, archive: Archive) -> None:
        """Put an image into containerd's store, as a pull would."""
        inside = f"/var/lib/containerd/{archive.path.name}"
        target = self.machine.path(inside)
        shutil.copyfile(archive.path, target)
        ctr = ("env", f"PATH={self._path}", "ctr", "--namespace", "k8s.io", "image")
        self.machine.run(*ctr, "import", inside, timeout=180)
        for alias in archive.aliases:
            self.machine.run(*ctr, "tag", archive.name, alias)
        target.unlink()

    def containerd_answers(self) -> bool:
        """Whether containerd serves its socket."""
        try:
            self.machine.run("env", f"PATH={self._path}", "ctr", "version")
        except MachineError:
            return False
        return True

    def join(self) -> None:
        """Start kubelet and kube-proxy, with accounts of the cluster's."""
        self.start_kubelet()
        self.machine.write(PROXY_CONFIG, yaml.safe_dump(self._proxy()))
        self.machine.start(
            "kube-proxy",
            programs.kubernetes("kube-proxy", is_previous=self.has_previous),
            f"--config={PROXY_CONFIG}",
            f"--hostname-override={self.name}",
        )

    def start_kubelet(self, **settings: object) -> None:
        """Start it, with more keys of its configuration; it registers the Node if there is none."""
        kubeconfig = self.plane.kubeconfig(kubelet_account(self.name))
        self.machine.write(KUBELET_CONFIG, yaml.safe_dump(_kubelet() | settings))
        self.machine.start(
            "kubelet",
            programs.kubernetes("kubelet", is_previous=self.has_previous),
            f"--config={KUBELET_CONFIG}",
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={self.name}",
            f"--node-ip={self._node_ips()}",
        )

    def stop_kubelet(self) -> None:
        """End it; its pods run on."""
        # In the machine's own process namespace, where it is the only one.
        self.machine.run("sh", "-c", "kill $(pidof kubelet)")
        self.machine.running["kubelet"].wait(30)

    def stop(self) -> None:
        """End the machine and everything on it; the disk stays."""
        self.machine.__exit__()

    def _at(self, *command: str) -> None:
        subprocess.run(["nsenter", f"--net={self.netns}", *command], check=True)

    @property
    def _path(self) -> str:
        return f"{programs.folder(programs.CONTAINERD_2)}:{PATH}" if self.has_containerd_2 else PATH

    def _node_ips(self) -> str:
        return ",".join(str(network.address(self.name, each)) for each in self.plane.families)

    def _proxy(self) -> dict[str, object]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": self.proxy_mode,
            "clientConnection": {"kubeconfig": str(self.plane.kubeconfig(KUBE_PROXY))},
            # Not NodeCIDR: kube-proxy would wait for podCIDRs, and the controller that gives them
            # for kube-proxy, which leads it to the API server.
            "detectLocalMode": "ClusterCIDR",
            "clusterCIDR": ",".join(CLUSTER_CIDRS[each] for each in self.plane.families),
            "oomScoreAdj": 0,
            # The table's limits belong to the whole machine.
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        }


def _kubelet() -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "clusterDomain": "cluster.local",
        "clusterDNS": [str(network.CLUSTER_DNS)],
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        # How full this machine's disk is says nothing about the node's.
        "evictionHard": dict.fromkeys(_DISK_SIGNALS, "0%"),
        "imageGCHighThresholdPercent": 100,
        "serializeImagePulls": False,
    }
