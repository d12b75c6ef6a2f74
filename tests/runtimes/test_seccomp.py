"""Agent and exporter do all their work with the system calls of configs/seccomp, and get no others.

In containers, as the component `seccomp` of the manifests has them made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.topology import Node
from tests.runtimes import attempts
from tests.runtimes.engines import IMAGE, NATIVE, start_containerd
from tests.runtimes.internet import Internet
from tests.runtimes.machine import Machine, MachineError
from tests.runtimes.node import SOURCE, settled
from tests.runtimes.plugin import Plugin
from tests.runtimes.test_contained import (
    OVERLAY,
    OVERLAYS,
    PYTHON,
    ROOT,
    ContainedNode,
    contained,
    remove_containers,
)
from tests.waiting import eventually

pytestmark = [pytest.mark.root, pytest.mark.runtimes, pytest.mark.slow]

COMPONENTS = OVERLAYS.parent / "components"
COMPONENT = COMPONENTS / "seccomp"
LIMITS = [{"pods": "*/*", "internet-out": "500M", "internet-in": "500M"}]


@dataclass
class FilteredNode(ContainedNode):
    """A node whose containers have the profiles, with limits."""

    def _document(self) -> dict[str, object]:
        return {**super()._document(), "limits": LIMITS}


@pytest.fixture(params=["nftables", "links", "iptables-legacy"])
def filtered_node(
    request: pytest.FixtureRequest, machine: Machine, node: Node
) -> Iterator[FilteredNode]:
    components = [COMPONENT, COMPONENTS / "seccomp-links"][: 1 + (request.param == "links")]
    made = FilteredNode(machine, node, request.param, components=tuple(components))
    made.start()
    yield made
    remove_containers(machine)


def test_all_verbs_limits_repairs_and_a_restart_work_under_the_profile(
    filtered_node: FilteredNode, internet: Internet, probe: bytes
):
    node, machine = filtered_node, filtered_node.machine
    plugin = Plugin(machine, probe)
    pod = plugin.run("inside")
    plugin.speak("inside")
    assert settled(lambda: node.counted(*pod), internet.meter) == internet.meter()
    machine.run("ip", "route", "flush", "dev", plugin.host_link("inside"))
    machine.run("sysctl", "-w", "net.ipv4.ip_forward=0")
    machine.run(*DAMAGE[node.backend])
    areas = {"wiring", "forwarding", "rules"}
    eventually(lambda: node.repaired() >= areas, lambda: machine.log("agent"))
    plugin.check("inside")
    plugin.speak("inside")
    plugin.run("other")
    plugin.collect_garbage("inside")
    assert node.addresses("allocated") == 2

    netmgr = ("podman", "exec", "agent", PYTHON, "-m", "netmgr")
    machine.run("podman", "exec", "agent", PYTHON, "-m", "netmgr.api.client")
    found = json.loads(machine.run(*netmgr, "doctor", "-o", "json"))
    assert {check: each for check, each in found.items() if "error" in str(each)} == {}
    machine.run(*netmgr, "node", "status")
    machine.run(*netmgr, "bundle", "--to", "/run/netmgr/bundle.tar.gz")

    machine.run("podman", "rm", "--force", "--time", "10", "agent")
    machine.start("agent", *contained("agent", OVERLAY, *node.components))
    eventually(node._is_ready, lambda: machine.log("agent"))
    plugin.remove("inside")
    assert node.addresses("allocated") == 0
    assert not [line for line in machine.log("agent").splitlines() if "attempt-failed" in line]


@pytest.mark.parametrize("filtered_node", ["nftables"], indirect=True)
def test_other_calls_are_refused_although_capabilities_would_allow_them(
    filtered_node: FilteredNode,
):
    def tried(process: str, *components: Path) -> dict[str, str]:
        """What a program meets in a container like that of the process."""
        command = contained(process, OVERLAY, *components)
        options = command[: command.index(ROOT)]
        options[options.index(process)] = f"{process}-attempts"
        script = [PYTHON, "/attempts.py", *attempts.CALLS]
        printed = filtered_node.machine.run(*options, "--rm", ROOT, *script)
        return attempts.not_refused(printed, attempts.CALLS)

    script = SOURCE / "tests/runtimes/attempts.py"
    filtered_node.machine.run("cp", script, f"{ROOT}/attempts.py")
    assert tried("agent", COMPONENT) == {}
    assert tried("exporter", COMPONENT) == {}
    # By the runtime's default it may all that CAP_SYS_ADMIN allows.
    assert tried("agent")["new-mounts"] == "allowed"


def test_containerd_and_runc_take_the_profiles(machine: Machine, probe: bytes):
    start_containerd(machine, probe, "default")
    # What a container prints to its standard output may be lost with it. busybox's own complaint
    # shows that the program ran.
    script = "busybox mount -t proc proc /proc"
    for process in ("agent", "agent-links", "exporter"):
        profile = str(SOURCE / f"configs/seccomp/{process}.json")
        options = ("--rm", "--privileged", "--seccomp", "--seccomp-profile", profile, *NATIVE)
        refusal = r"exit 1\nmount: permission denied \(are you root\?\)"
        with pytest.raises(MachineError, match=refusal):
            machine.run("ctr", "run", *options, IMAGE, process, "sh", "-c", script)


DAMAGE = {
    "nftables": ("nft", "flush", "table", "inet", "netmgr"),
    "links": ("tc", "qdisc", "del", "dev", "eth0", "clsact"),
    "iptables-legacy": ("iptables-legacy", "-t", "mangle", "-F", "FORWARD"),
}
