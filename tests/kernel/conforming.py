"""A container runtime that can be as wrong as it likes: executes the installed plugin with any
variables and bytes.
"""

import json
import os
import subprocess
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from netmgr.documents.node import Backend
from tests.lab import named_netns
from tests.lab.runtime import UNANSWERED
from tests.lab.topology import cluster
from tests.lab.world import World
from tests.waiting import PATIENCE, ask_until

ONE_NODE = cluster(nodes=1, pods=0)
DEBIAN_PLUGINS = Path("/usr/lib/cni")
VERSIONS = ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
CHECKING = VERSIONS[2:]
"""Those that have CHECK."""


@dataclass(frozen=True)
class Answer:
    exit_code: int
    body: dict | None

    @property
    def code(self):
        """The CNI error code, 0 for success."""
        return 0 if self.exit_code == 0 else self.body["code"]


@dataclass(frozen=True)
class Pod:
    """A sandbox, and what a runtime would say about it."""

    container: str
    netns: Path
    ifname: str = "eth0"
    more: dict = field(default_factory=dict)

    @property
    def variables(self):
        return {
            "CNI_CONTAINERID": self.container,
            "CNI_NETNS": str(self.netns),
            "CNI_IFNAME": self.ifname,
            "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=train;K8S_POD_NAME={self.container}",
        } | self.more

    @property
    def reference(self):
        return {"containerID": self.container, "ifname": self.ifname}


class Caller:
    """Executes one node's plugin."""

    def __init__(self, world, node):
        self.node = node
        self.world = world
        self.plugin = node.runtime.bin_dir / "netmgr"
        self._pods = world.directory / "pods"

    def variables(self, command, pod=None, **changes):
        """The variables of a request; a change to None takes one away."""
        given = {"CNI_COMMAND": command, "CNI_PATH": str(self.plugin.parent)}
        given |= (pod.variables if pod else {}) | changes
        return {name: value for name, value in given.items() if value is not None}

    def execute(self, variables, stdin):
        done = subprocess.run(
            [self.plugin],
            env=variables,
            input=stdin,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.stderr == b""
        return Answer(done.returncode, json.loads(done.stdout) if done.stdout else None)

    def call(self, command, pod=None, version="1.0.0", keys=None, **changes):
        """A request as it should be, but for `keys` of the configuration and `changes` of the
        variables.
        """
        variables, stdin = self.variables(command, pod, **changes), config(version, **(keys or {}))
        # A busy machine may keep the agent from answering CHECK and STATUS in three seconds.
        return ask_until(
            lambda answer: UNANSWERED not in json.dumps(answer.body),
            lambda: self.execute(variables, stdin),
        )

    def add(self, pod, keys=None, **changes):
        """The result of an ADD, which must succeed."""
        answer = self.call("ADD", pod, keys=keys, **changes)
        assert answer.exit_code == 0, answer.body
        return answer.body

    def check(self, pod, result, version="1.0.0", **changes):
        """What CHECK says of a pod whose ADD had this result."""
        return self.call("CHECK", pod, version, {"prevResult": result}, **changes)

    @contextmanager
    def begun(self, command, pod, **changes):
        """A request whose plugin runs and waits for its configuration: call what is yielded to hand
        it over.
        """
        process = subprocess.Popen(
            [self.plugin],
            env=self.variables(command, pod, **changes),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            _wait_until_started(process)

            def finish(version="1.0.0"):
                output, _ = process.communicate(config(version), timeout=PATIENCE)
                return Answer(process.returncode, json.loads(output) if output else None)

            yield finish
        finally:
            process.kill()
            process.communicate()

    def occupancy(self):
        """Addresses held, by family."""
        return {state["family"]: state["allocated"] for state in self.node.snapshot()["pool"]}

    @contextmanager
    def sandbox(self, **more):
        """A namespace as a runtime makes one; whatever the test did, it is detached and removed."""
        container = uuid.uuid4().hex
        pod = Pod(container, self._pods / container, more=more)
        named_netns.create(pod.netns)
        try:
            yield pod
        finally:
            self.call("DEL", pod)
            named_netns.delete(pod.netns)


def config(version="1.0.0", **keys):
    """A configuration; a key of `...` is left out, and `__` stands for what names of Python cannot
    hold.
    """
    given = {"cniVersion": version, "name": "netmgr", "type": "netmgr"} | keys
    return json.dumps({key: value for key, value in given.items() if value is not ...}).encode()


def valid(*pods):
    """The key in which GC is told what to keep."""
    return {"cni.dev/valid-attachments": [pod.reference for pod in pods]}


@contextmanager
def one_node(topology=ONE_NODE, *, backend=Backend.NFTABLES, **settings):
    """A world whose agent repairs nothing by itself, so that what a test broke stays broken."""
    patient = {
        "reconcile_seconds": 3600,
        "pool": {"cooldown_seconds": 0, "conntrack_wait_seconds": 0},
    }
    name = f"cni-{os.getpid()}-{uuid.uuid4().hex[:6]}"
    with World(topology, backend=backend, name=name, settings=patient | settings) as world:
        yield Caller(world, world.nodes[0])


def ptp(cni, command, pod, state):
    """Debian's `ptp` on a node; `state` is where it keeps what it gave."""
    ipam = {
        "type": "host-local",
        "dataDir": str(state),
        "ranges": [[{"subnet": "192.0.2.0/24"}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    return debians("ptp", cni, command, pod, name="another", ipam=ipam)


def debians(plugin, cni, command, pod, **keys):
    """One of Debian's plugins on a node, with these keys of its configuration."""
    config = {"cniVersion": "1.0.0", "name": "netmgr", "type": plugin} | keys
    environment = {
        **pod.variables,
        "CNI_COMMAND": command,
        "CNI_PATH": str(DEBIAN_PLUGINS),
        "PATH": os.defpath + ":/usr/sbin:/sbin",
    }
    entered = ["nsenter", f"--net={cni.node.namespace}", str(DEBIAN_PLUGINS / plugin)]
    done = subprocess.run(
        entered,
        env=environment,
        input=json.dumps(config).encode(),
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout) if done.stdout else {}


POLL = {"x86_64": "7", "aarch64": "73"}[os.uname().machine]


def _wait_until_started(process):
    """The plugin notes when it began before it reads: once it sleeps in poll(2) or ppoll(2), it
    has.
    """
    while Path(f"/proc/{process.pid}/syscall").read_text().split()[0] != POLL:
        time.sleep(0.001)
