"""Multus as a node has it: the plugin that the runtime executes, which executes others for a pod.

It is the real one ("thin"), with its delegates in its own configuration instead of in
NetworkAttachmentDefinitions, which it would ask an API server for. How it calls a delegate is the
same for both.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.built import built
from tests.runtimes.machine import Machine
from tests.runtimes.node import BIN_DIR

MODULE = Path(__file__).with_name("multus")
RESULTS = "/var/lib/cni/multus/results"
"""Where Multus' libcni caches the results of its delegates; the runtime's has Multus' own."""

_DEBIANS = "/usr/lib/cni"
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
Conf = dict[str, object]

IPAM = {
    "type": "host-local",
    "ranges": [[{"subnet": "10.88.1.0/24"}], [{"subnet": "fd00:88:1::/112"}]],
    "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
}
"""Of Debian's plugins."""


def program() -> Path:
    """Where `make test-all` puts it.

    Raises:
        FileNotFoundError: it was not built.
    """
    found = built(MODULE, "multus") / "multus"
    if not found.exists():
        raise FileNotFoundError(f"{found}: `make test-all` builds it once, in two minutes")
    return found


class Multus:
    """The plugin on one machine, as its runtime's first network."""

    def __init__(self, machine: Machine, *delegates: Conf) -> None:
        self.machine = machine
        machine.write(f"{BIN_DIR}/multus", program().read_bytes(), 0o755)
        for name in ("bridge", "host-device", "host-local", "macvlan", "ptp", "static"):
            machine.run("ln", "-sf", f"{_DEBIANS}/{name}", BIN_DIR)
        self.use(*delegates)

    def use(self, *delegates: Conf) -> None:
        """Have each pod's interfaces made by these, the first one's named eth0, then net1 …"""
        conf = {"cniVersion": "1.0.0", "name": "multus", "type": "multus"}
        conf["delegates"] = list(delegates)
        self.machine.write("/etc/cni/net.d/00-multus.conf", json.dumps(conf))
        # STATUS and GC came with 1.1.0, which containerd 1 and Debian's plugins do not know.
        newest = {"cniVersion": "1.1.0"}
        listed = [each | newest if each["name"] == "netmgr" else each for each in delegates]
        self._conf = conf | newest | {"delegates": listed}

    def call(self, command: str, sandbox: str = "") -> None:
        """Execute a verb for which containerd has no use, for a sandbox that it made."""
        self._execute("multus", self._conf, command, sandbox, "eth0")

    def execute(self, delegate: Conf, command: str, sandbox: str, ifname: str) -> None:
        """Execute a delegate's first plugin by itself."""
        ((plugin, *_),) = [delegate["plugins"]]
        conf = {"cniVersion": "1.0.0", "name": delegate["name"], **plugin}
        self._execute(plugin["type"], conf, command, sandbox, ifname)

    def _execute(self, plugin: str, conf: Conf, command: str, sandbox: str, ifname: str) -> None:
        variables = {"CNI_COMMAND": command, "CNI_PATH": BIN_DIR, "PATH": _PATH}
        if sandbox:
            variables |= {
                "CNI_CONTAINERID": sandbox,
                "CNI_NETNS": self.netns(sandbox),
                "CNI_IFNAME": ifname,
                "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=research;K8S_POD_NAME=pod",
            }
        given = [f"{name}={value}" for name, value in variables.items()]
        self.machine.run(
            "env", "-i", *given, f"{BIN_DIR}/{plugin}", stdin=json.dumps(conf).encode()
        )

    def netns(self, sandbox: str) -> str:
        """The path of a sandbox's namespace, as the results of its interfaces have it."""
        (result, *_) = [each for each in self.cached() if each["containerId"] == sandbox]
        return next(
            link["sandbox"] for link in result["result"]["interfaces"] if link.get("sandbox")
        )

    def cached(self) -> list[dict]:
        folder = self.machine.path(RESULTS)
        return [json.loads(path.read_text()) for path in folder.glob("*")]
