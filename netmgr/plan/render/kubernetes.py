"""What a cluster's API server is given: one apply, and every node runs an agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NAMESPACE = "netmgr"
APP = {"app.kubernetes.io/name": "netmgr"}
EXPORTER_PORT = 9119
NOBODY = 65534
"""User and group of the exporter, and the group that may read the agent's ledger socket."""

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class HostFolder:
    """A folder (or file) of the node, mounted at the same path unless `seen_at` is given."""

    name: str
    path: str
    type: str = "DirectoryOrCreate"
    propagation: str = ""
    seen_at: str = ""

    @property
    def volume(self) -> Object:
        return {"name": self.name, "hostPath": {"path": self.path, "type": self.type}}

    @property
    def mount(self) -> Object:
        propagation = {"mountPropagation": self.propagation} if self.propagation else {}
        return {"name": self.name, "mountPath": self.seen_at or self.path, **propagation}


RUN = HostFolder("run", "/run/netmgr")
STATE = HostFolder("state", "/var/lib/netmgr")
# Sandboxes come while the agent runs: their namespaces must appear in its mounts, too.
SANDBOXES = HostFolder("sandboxes", "/run/netns", propagation="HostToContainer")
XTABLES_LOCK = HostFolder("xtables-lock", "/run/xtables.lock", "FileOrCreate")
# The installer changes its root to the node's. The agent sees where runtimes look for plugins.
# Volumes that the node unmounts meanwhile must not live on in there.
HOST = HostFolder("host", "/", "Directory", "HostToContainer", seen_at="/host")
_RUNTIME_FOLDERS = (
    HostFolder("host-etc", "/etc", "Directory", seen_at="/host/etc"),
    HostFolder("host-opt", "/opt", seen_at="/host/opt"),
    HostFolder("host-usr", "/usr", "Directory", seen_at="/host/usr"),
)
# Containers see /proc/sys read-only; the agent switches forwarding on there.
SYSCTLS = HostFolder("sysctls", "/proc/sys/net", "Directory", seen_at="/host/proc/sys/net")
_HOST = (RUN, STATE, SANDBOXES, XTABLES_LOCK, SYSCTLS, HOST, *_RUNTIME_FOLDERS)
_DOCUMENT: Object = {"name": "document", "mountPath": "/etc/netmgr"}
_PLAN: Object = {"name": "plan", "mountPath": "/plan", "readOnly": True}


def objects(
    documents: Mapping[str, str], services: str, image: str, most_unavailable: str = "10%"
) -> list[Object]:
    """Everything to apply, in order.

    `documents` are plan and lock as text, `services` is the cluster's Service range, for whoever
    starts the API server. A rollout may replace `most_unavailable` agents at once, or that share.
    """
    # The API takes a share as text, and a number as a number.
    most = int(most_unavailable) if most_unavailable.isdigit() else most_unavailable
    scraped = {"prometheus.io/scrape": "true", "prometheus.io/port": str(EXPORTER_PORT)}
    metadata = {"labels": dict(APP), "annotations": scraped}
    daemon_set = {
        "selector": {"matchLabels": dict(APP)},
        # A broken image must not take the agents off all nodes at once.
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": most}},
        "template": {"metadata": metadata, "spec": _pod(image)},
    }
    data = {**documents, "service-cluster-ip-range": services}
    return [
        _object("v1", "Namespace", NAMESPACE, namespaced=False),
        _object("v1", "ServiceAccount", "netmgr") | {"automountServiceAccountToken": False},
        _object("v1", "ConfigMap", "netmgr-plan") | {"data": data},
        _object("apps/v1", "DaemonSet", "netmgr") | {"spec": daemon_set},
    ]


def _object(version: str, kind: str, name: str, *, namespaced: bool = True) -> Object:
    place = {"namespace": NAMESPACE} if namespaced else {}
    metadata = {"name": name, **place, "labels": dict(APP)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _pod(image: str) -> Object:
    return {
        "serviceAccountName": "netmgr",
        "automountServiceAccountToken": False,
        # The node has no pod network before this pod runs, and none of ours is in its way.
        "hostNetwork": True,
        # Without the agent no other pod can start here, so it is evicted last.
        "priorityClassName": "system-node-critical",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        # A node stays tainted as not ready until it has a network, which comes from here.
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 30,
        "initContainers": [_write_document(image)],
        "containers": [_agent(image), _exporter(image), _install_plugin(image)],
        "volumes": [
            {"name": "plan", "configMap": {"name": "netmgr-plan"}},
            {"name": "document", "emptyDir": {}},
            *(folder.volume for folder in _HOST),
        ],
    }


def _write_document(image: str) -> Object:
    # No node asks the API server for anything: its document follows from plan, lock and its own
    # name, which the kubelet hands in. So plan and lock travel as they are, in one ConfigMap.
    command = ["netmgr", "plan", "render", "node", "$(NODE_NAME)", "--file", "/plan/plan.yaml"]
    return {
        "name": "document",
        "image": image,
        "command": [*command, "--reader-group", str(NOBODY), "--to", "/etc/netmgr/node.yaml"],
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "securityContext": _root(),
        "volumeMounts": [_PLAN, _DOCUMENT],
    }


def _root(*capabilities: str) -> Object:
    """Root, for its files' sake, and with no more power than is named."""
    return {"runAsUser": 0, **_confined(*capabilities)}


def _confined(*capabilities: str) -> Object:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]} | ({"add": [*capabilities]} if capabilities else {}),
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _install_plugin(image: str) -> Object:
    return {
        "name": "plugin",
        "image": image,
        # It waits for the agent: no plugin is announced before somebody serves it.
        "command": ["netmgr", "cni", "install", "--in-pod", "--host-root", HOST.seen_at],
        "securityContext": _root("SYS_CHROOT"),
        "resources": {"requests": {"cpu": "1m", "memory": "16Mi"}, "limits": {"memory": "256Mi"}},
        "volumeMounts": [HOST.mount],
    }


def _agent(image: str) -> Object:
    return {
        "name": "agent",
        "image": image,
        "command": ["netmgr", "agent"],
        # In order: links, rules and routes; iptables' raw socket; a socket's group;
        # entering pods' namespaces; hearing of changes in them.
        "securityContext": _root("NET_ADMIN", "NET_RAW", "CHOWN", "SYS_ADMIN", "NET_BROADCAST"),
        # Whether it answers on its own socket; a node whose addresses are all in use is in order.
        "readinessProbe": {
            "exec": {"command": ["python3", "-m", "netmgr.api.client"]},
            "periodSeconds": 10,
        },
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "volumeMounts": [
            _DOCUMENT | {"readOnly": True},
            *(f.mount for f in (RUN, STATE, SANDBOXES, XTABLES_LOCK, SYSCTLS)),
            *(f.mount | {"readOnly": True} for f in _RUNTIME_FOLDERS),
        ],
    }


def _exporter(image: str) -> Object:
    return {
        "name": "exporter",
        "image": image,
        "command": ["netmgr", "exporter", "--listen", f":{EXPORTER_PORT}"],
        "ports": [{"name": "metrics", "containerPort": EXPORTER_PORT, "protocol": "TCP"}],
        "securityContext": {
            "runAsUser": NOBODY,
            "runAsGroup": NOBODY,
            "runAsNonRoot": True,
            **_confined(),
        },
        # Every failed probe is a warning: none is sent before it usually listens.
        "startupProbe": _probe()
        | {"initialDelaySeconds": 3, "periodSeconds": 1, "failureThreshold": 60},
        "readinessProbe": _probe(),
        # Not /readyz: an exporter cannot be cured by a restart while its agent is away.
        "livenessProbe": _probe(),
        "resources": {"requests": {"cpu": "10m", "memory": "40Mi"}, "limits": {"memory": "128Mi"}},
        "volumeMounts": [RUN.mount | {"readOnly": True}],
    }


def _probe() -> Object:
    get = {"path": "/healthz", "port": EXPORTER_PORT}
    return {"httpGet": get, "periodSeconds": 10, "timeoutSeconds": 3}
