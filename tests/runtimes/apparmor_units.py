"""Agent and exporter under the AppArmor profiles of configs/apparmor, as their units name them.

For a kernel with AppArmor, as Debian's: `make vm` runs it there.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.topology import Node
from tests.runtimes import attempts
from tests.runtimes import node as node_module
from tests.runtimes.internet import Internet
from tests.runtimes.machine import Machine
from tests.runtimes.node import BIN_DIR, SOURCE, scraped, settled
from tests.runtimes.plugin import Plugin
from tests.runtimes.test_units import INSTALLED, UnitNode
from tests.waiting import eventually

pytestmark = [pytest.mark.root, pytest.mark.runtimes]

PROFILES = SOURCE / "configs" / "apparmor"
UNMEDIATED = {"new-users", "new-mounts", "others-mounts", "ptrace"}
"""AppArmor 3 has no rule for namespaces, and a process may be traced by its parent; seccomp refuses
these.
"""


@pytest.fixture(scope="module", autouse=True)
def _loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Loaded, and the same as administrators add what their machine has elsewhere."""
    profiles = sorted(PROFILES.iterdir())
    added = tmp_path_factory.mktemp("apparmor")
    (added / "local").mkdir()
    for profile in profiles:
        # The environment of tests looks for packages here.
        (added / "local" / profile.name).write_text(f"{SOURCE}/ r,\n")
    parser = ["apparmor_parser", "--skip-cache", f"--Include={added}"]
    subprocess.run([*parser, "--replace", *profiles], check=True)
    yield
    subprocess.run([*parser, "--remove", *profiles], check=True)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first agent has the emulated kernel load its modules."""
    monkeypatch.setattr(node_module, "PATIENCE", 60.0)


@pytest.fixture(params=["nftables", "iptables-legacy"])
def unit_node(request: pytest.FixtureRequest, machine: Machine, node: Node) -> UnitNode:
    made = UnitNode(machine, node, backend=request.param)
    made.start("--bin-dir", BIN_DIR)
    return made


def refusals() -> list[str]:
    """What the kernel logged of refused accesses."""
    log = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout
    return [line for line in log.splitlines() if 'apparmor="DENIED"' in line]


def test_all_work_is_done_in_enforce_mode(
    unit_node: UnitNode, internet: Internet, probe: bytes, tmp_path: Path
):
    node, machine, systemd = unit_node, unit_node.machine, unit_node.systemd
    before = len(refusals())
    for process in ("agent", "exporter"):
        number = systemd.property(f"netmgr-{process}", "MainPID")
        mode = systemd.control("cat", f"/proc/{number}/attr/current").strip()
        assert mode == f"netmgr-{process} (enforce)"
    plugin = Plugin(machine, probe)
    pod = plugin.run("inside")
    plugin.speak("inside")
    assert settled(lambda: node.counted(*pod), internet.meter) == internet.meter()
    plugin.check("inside")
    eventually(lambda: bool(scraped(machine)), lambda: node.log("exporter"))

    machine.run("ip", "route", "flush", "dev", plugin.host_link("inside"))
    machine.run("sysctl", "-w", "net.ipv4.ip_forward=0")
    machine.run("rm", "-r", "/run/netmgr")
    areas = {"wiring", "forwarding", "files"}
    eventually(lambda: node._is_ready() and node.repaired() >= areas, lambda: node.log("agent"))
    systemd.control("systemctl", "restart", "netmgr-agent")
    node.wait_until_ready()
    plugin.speak("inside")
    plugin.run("other")
    plugin.collect_garbage("inside")
    plugin.remove("inside")
    assert node.addresses("allocated") == 0
    node.add_budgets(tmp_path)
    assert node.failures() == []
    assert refusals()[before:] == []


@pytest.mark.parametrize("process", ["agent", "exporter"])
def test_the_rest_of_the_machine_is_refused_to_root_by_the_profile_alone(
    machine: Machine, process: str
):
    machine.run("mkdir", "-p", f"{INSTALLED}/source")
    machine.run("mount", "--bind", SOURCE, f"{INSTALLED}/source")
    script = f"{INSTALLED}/source/tests/runtimes/attempts.py"
    python = Path(INSTALLED, "source", Path(sys.executable).relative_to(SOURCE))
    printed = machine.run("aa-exec", "-p", f"netmgr-{process}", "--", python, script)
    assert attempts.not_refused(printed, attempts.ATTEMPTS.keys() - UNMEDIATED) == {}
