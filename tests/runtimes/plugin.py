"""The plugin as a runtime calls it, for tests that need pods and no runtime."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from netmgr.prefixes import Family
from tests.lab.topology import INTERNET
from tests.runtimes.internet import probing
from tests.runtimes.machine import Machine
from tests.runtimes.node import BIN_DIR

NETWORK = {"cniVersion": "1.1.0", "name": "netmgr", "type": "netmgr"}
PROBE = "/run/probe"


@dataclass
class Plugin:
    """Makes pods of network namespaces: a pod's name is its container's and its namespace's."""

    machine: Machine
    probe: bytes
    results: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(self, pod: str) -> tuple[str, str]:
        """Make a pod; the namespace and name that it is accounted under."""
        self.machine.run("ip", "netns", "add", pod)
        self.add(pod, f"/run/netns/{pod}")
        return "-", pod

    def add(self, pod: str, netns: str) -> None:
        """Give an existing namespace its addresses."""
        self.results[pod] = json.loads(self._call("ADD", pod, NETNS=netns))

    def check(self, pod: str) -> None:
        """Have it compared with what ADD answered."""
        result = {"prevResult": self.results[pod]}
        self._call("CHECK", pod, result, NETNS=f"/run/netns/{pod}")

    def collect_garbage(self, *valid: str) -> None:
        """Say which pods there are."""
        attachments = [{"containerID": pod, "ifname": "eth0"} for pod in valid]
        self._call("GC", "", {"cni.dev/valid-attachments": attachments})

    def speak(self, pod: str) -> None:
        """Exchange packets of both families with the internet."""
        self.machine.write(PROBE, self.probe, mode=0o755)
        for family in Family:
            self.machine.run("ip", "netns", "exec", pod, *probing(INTERNET[family], PROBE))

    def remove(self, pod: str) -> None:
        self._call("DEL", pod, NETNS=f"/run/netns/{pod}")
        self.machine.run("ip", "netns", "delete", pod)
        del self.results[pod]

    def host_link(self, pod: str) -> str:
        """The node's end of its link."""
        (link,) = [each for each in self.results[pod]["interfaces"] if "sandbox" not in each]
        return str(link["name"])

    def _call(self, verb: str, pod: str, more: dict[str, Any] | None = None, **given: str) -> str:
        given |= {"COMMAND": verb, "CONTAINERID": pod, "IFNAME": "eth0", "PATH": BIN_DIR}
        environment = [f"CNI_{name}={value}" for name, value in given.items() if value]
        network = json.dumps({**NETWORK, **(more or {})}).encode()
        return self.machine.run("env", *environment, f"{BIN_DIR}/netmgr", stdin=network)
