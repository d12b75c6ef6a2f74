"""The control plane of a cluster: API server, etcd, controller manager and scheduler on a machine's
network, and a kubeconfig for every account.
"""

from __future__ import annotations

import json
import secrets
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from http.client import HTTPSConnection
from pathlib import Path

import yaml

from netmgr.prefixes import Family, Prefix
from tests.e2e import network, programs
from tests.kubernetes.control_plane import ControlPlane
from tests.lab import wiring

API_PORT = 6443
ADMIN = "admin"
_ETCD_PORTS = (2379, 2380)
_CONTROLLER_MANAGER = "system:kube-controller-manager"
_SCHEDULER = "system:kube-scheduler"
KUBE_PROXY = "system:kube-proxy"
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "Metadata", "userGroups": ["system:nodes", "system:serviceaccounts:netmgr"]},
        {"level": "None"},
    ],
}
"""One line for each request of netmgr's accounts, and of kubelets to compare with."""


def kubelet_account(node: str) -> str:
    """The user as which a node's kubelet speaks, by which the Node authorizer knows the node."""
    return f"system:node:{node}"


@dataclass
class ClusterControlPlane(ControlPlane):
    """All four programs, in the network namespace pinned at `netns`; with `has_previous` of
    Kubernetes' minor version before the newest.
    """

    netns: Path = Path()
    families: tuple[Family, ...] = (Family.V4,)
    allocates_node_cidrs: bool = True
    pod_cidr_length: int = 24
    has_previous: bool = False
    _tokens: dict[str, str] = field(default_factory=dict)
    _managers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> None:
        """Start all; return once the API server is ready."""
        kubelets = map(kubelet_account, network.NODES)
        users = (_CONTROLLER_MANAGER, _SCHEDULER, KUBE_PROXY, *kubelets)
        self._tokens = {ADMIN: self.admin, **{user: secrets.token_hex() for user in users}}
        super().start()
        self.kubeconfig()
        self._managers = [
            self._run("kube-controller-manager", *self._controller_manager_options()),
            self._run(
                "kube-scheduler",
                f"--kubeconfig={self.kubeconfig(_SCHEDULER)}",
                "--leader-elect=false",
            ),
        ]

    def stop(self) -> None:
        """End all."""
        for process in self._managers:
            process.kill()
            process.wait(10)
        super().stop()

    def kubeconfig(self, user: str = ADMIN) -> Path:
        """A file for clients that act as `user`; it contains everything they need."""
        path = self.folder / f"{user.replace(':', '-')}.kubeconfig"
        return self.write_kubeconfig(path, **{user: self._tokens[user]})

    def kubectl(self, *arguments: str | Path, stdin: str = "", timeout: float = 60) -> str:
        """Run kubectl as the administrator and return its output.

        Raises:
            KubectlError: it failed.
        """
        done = subprocess.run(
            self.command("kubectl", f"--kubeconfig={self.kubeconfig()}", *map(str, arguments)),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode != 0:
            raise KubectlError(f"kubectl {' '.join(map(str, arguments))}: {done.stderr}")
        return done.stdout

    def ports(self) -> list[int]:
        """The usual ones: nothing else is in the namespace."""
        return [*_ETCD_PORTS, API_PORT]

    def accounts(self) -> list[str]:
        """The administrator, the programs, and each node's kubelet."""
        groups = {ADMIN: "system:masters"}
        groups |= {kubelet_account(node): "system:nodes" for node in network.NODES}
        return [
            f"{token},{user},{user}" + (f",{groups[user]}" if user in groups else "") + "\n"
            for user, token in self._tokens.items()
        ]

    def requests_by_account(self) -> Counter[str]:
        """How many requests of kubelets and of netmgr have ended, by the account."""
        lines = self._audit_log.read_text().splitlines()
        return Counter(json.loads(line)["user"]["username"] for line in lines)

    @property
    def _audit_log(self) -> Path:
        return self.folder / "audit.log"

    def server_options(self) -> list[str]:
        """As kubeadm's: NodeRestriction, and pods' Services in the cluster's families."""
        policy = self.folder / "audit-policy.yaml"
        policy.write_text(yaml.safe_dump(_AUDIT_POLICY))
        return [
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self._audit_log}",
            f"--service-cluster-ip-range={self._prefixes(network.SERVICE_CIDRS)}",
            "--enable-admission-plugins=NodeRestriction",
            "--kubelet-preferred-address-types=InternalIP",
        ]

    def command(self, program: str, *options: str) -> list[str | Path]:
        """In the control plane's network."""
        path = programs.kubernetes(program, is_previous=self.has_previous)
        return ["nsenter", f"--net={self.netns}", path, *options]

    def connection(self) -> HTTPSConnection:
        """A new connection to the server, from its own network."""
        made = super().connection()
        with wiring.inside(self.netns):
            made.connect()
        return made

    def _controller_manager_options(self) -> list[str]:
        lengths = {Family.V4: self.pod_cidr_length, Family.V6: 64}
        mask_sizes = [
            f"--node-cidr-mask-size-ipv{family.value}={lengths[family]}"
            if len(self.families) > 1
            else f"--node-cidr-mask-size={lengths[family]}"
            for family in self.families
        ]
        allocation = [
            "--allocate-node-cidrs=true",
            f"--cluster-cidr={self._prefixes(network.POD_CIDRS)}",
            f"--service-cluster-ip-range={self._prefixes(network.SERVICE_CIDRS)}",
            *mask_sizes,
        ]
        return [
            f"--kubeconfig={self.kubeconfig(_CONTROLLER_MANAGER)}",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--root-ca-file={self.authority}",
            f"--service-account-private-key-file={self.folder / 'service-accounts.key'}",
            *(allocation if self.allocates_node_cidrs else ()),
        ]

    def _prefixes(self, of: dict[Family, Prefix]) -> str:
        return ",".join(str(of[family]) for family in self.families)


class KubectlError(Exception):
    """kubectl failed; the message has what it printed."""
