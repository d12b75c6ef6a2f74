"""Other projects' programs that run in a cluster beside netmgr, as images made on the spot: the
cluster's DNS, and the image in which Kubernetes' own tests run nearly everything.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tests.e2e import programs
from tests.e2e.cluster import Cluster
from tests.e2e.images import Archive
from tests.runtimes.images import BUSYBOX, oci_archive

MANIFESTS = Path(__file__).parent / "manifests"
COREDNS = "netmgr.test/coredns:1"
AGNHOST = "registry.k8s.io/e2e-test-images/agnhost:2.66.1"
ALSO_AGNHOST = (
    "registry.k8s.io/e2e-test-images/glibc-dns-testing:2.1.1",
    "registry.k8s.io/pause:3.10.2",
)
"""Under which names Kubernetes 1.37 asks for it (test/utils/image/manifest.go), and for others that
it can stand in for.
"""

POLICIES = "netmgr.test/kube-network-policies:1"
QUEUE_NEW = (
    # As its own rules: what the node's root sends passes, or no probe reached a pod.
    "-A POSTROUTING -m owner --uid-owner 0 -j ACCEPT",
    "-A POSTROUTING -m conntrack --ctstate NEW -j NFQUEUE --queue-num 98 --queue-bypass",
)
"""What stands for kube-network-policies' rules on a kernel without `queue` in nftables, where it
cannot load them and goes on: the packets reach it, and its verdict holds, in the same way.
"""

IN_AGNHOST = {
    **{name: name for name in ("bash", "curl", "dig", "getent", "ip", "ss", "wget")},
    "nc": "nc.openbsd",
    # Debian's busybox, as a shell, prefers its own applets to any program of the same name.
    "sh": "dash",
}
"""What Kubernetes' tests run in its pods beside busybox's applets, by which program of Debian's."""

Files = Mapping[str, bytes | str]


def install_dns(cluster: Cluster) -> None:
    """Start CoreDNS at the address that kubelets give to pods; returns when it is Ready."""
    bring_dns(cluster)
    arguments = ("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=60s")
    cluster.plane.kubectl(*arguments, timeout=70)


def bring_dns(cluster: Cluster) -> None:
    """The same, without waiting: it starts once there is a network."""
    image(cluster, COREDNS, {"coredns": built(programs.MODULE / "coredns", "coredns")})
    cluster.plane.kubectl("apply", "-f", MANIFESTS / "coredns.yaml")


def install_agnhost(cluster: Cluster) -> None:
    """Have Kubernetes' image of test servers and clients on every node."""
    program = built(programs.MODULE / "conformance", "agnhost")
    files = {"agnhost": program, **_of_debian(IN_AGNHOST), **_certificate(cluster.folder)}
    image(cluster, AGNHOST, files, "pause", aliases=ALSO_AGNHOST)


def install_policies(cluster: Cluster) -> None:
    """Run kube-network-policies on every node; returns when it is Ready."""
    program = built(programs.MODULE / "policies", "kube-network-policies")
    image(cluster, POLICIES, {"netpol": program})
    cluster.plane.kubectl("apply", "-f", MANIFESTS / "policies.yaml")
    arguments = ("-n", "kube-system", "rollout", "status", "daemonset/kube-network-policies")
    cluster.plane.kubectl(*arguments, "--timeout=60s", timeout=70)
    for node in cluster.nodes:
        if not _has_nft_queue(cluster, node.name):
            for family in ("iptables", "ip6tables"):
                for rule in QUEUE_NEW:
                    cluster.run_at(node.name, family, "-w", "-t", "mangle", *rule.split())


def _has_nft_queue(cluster: Cluster, node: str) -> bool:
    """Whether the kernel has what kube-network-policies builds its own rules of."""
    try:
        cluster.run_at(
            node,
            "nft",
            "add table inet probe; add chain inet probe c; "
            "add rule inet probe c queue num 98; delete table inet probe",
        )
    except subprocess.CalledProcessError:
        return False
    return True


def image(
    cluster: Cluster, name: str, files: Files, *command: str, aliases: tuple[str, ...] = ()
) -> None:
    """Import an image into every node, which runs the first of its files."""
    path = cluster.folder / f"{re.sub('[^a-z0-9]', '-', name)}.tar"
    path.write_bytes(oci_archive(name, list(command), files, [f"/{next(iter(files))}"]))
    for node in cluster.nodes:
        node.import_image(Archive(path, name, aliases))
    path.unlink()


def built(module: Path, name: str) -> bytes:
    """A program that `.ci/programs` built from the Go module in a folder."""
    if reason := programs.missing_of(module, [name]):
        pytest.fail(reason)
    return (programs.folder(module) / name).read_bytes()


def _of_debian(names: Mapping[str, str]) -> dict[str, bytes | str]:
    """Programs of this machine with the libraries they need, and busybox's applets for the rest."""
    busybox = next(path for path in BUSYBOX if path.exists())
    applets = subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True)
    files: dict[str, bytes | str] = {f"bin/{each}": "busybox" for each in applets.stdout.split()}
    files["bin/busybox"] = busybox.read_bytes()
    files["etc/nsswitch.conf"] = b"hosts: files dns\n"
    for name, program in names.items():
        path = shutil.which(program)
        assert path, f"{program} is not installed: run .ci/setup e2e"
        files[f"bin/{name}"] = Path(path).read_bytes()
        files |= {library.lstrip("/"): Path(library).read_bytes() for library in _libraries(path)}
    return files


def _certificate(folder: Path) -> dict[str, bytes]:
    """What agnhost's TLS servers look for in the root of the image."""
    certificate, key = folder / "localhost.crt", folder / "localhost.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-subj", "/CN=localhost", "-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    return {each.name: each.read_bytes() for each in (certificate, key)}


def _libraries(program: str) -> Iterable[str]:
    """Every library that a program loads, the loader included."""
    linked = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    return re.findall(r"(/\S+) \(0x", linked)
