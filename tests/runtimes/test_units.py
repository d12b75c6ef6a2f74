"""Agent and exporter as the units of configs/systemd run them, by systemd."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.fakes.authority import Authority
from tests.kernel.budgeted import write_plan
from tests.lab.topology import Node
from tests.runtimes import attempts
from tests.runtimes.internet import Internet
from tests.runtimes.machine import Machine
from tests.runtimes.node import (
    BIN_DIR,
    DOCUMENT,
    NETMGR,
    SOURCE,
    NetmgrNode,
    scraped,
    sent_of_pod,
    settled,
)
from tests.runtimes.plugin import Plugin
from tests.runtimes.systemd import UNITS, Systemd
from tests.waiting import eventually

pytestmark = [pytest.mark.root, pytest.mark.runtimes, pytest.mark.slow]

CONFIGS = SOURCE / "configs" / "systemd"
INSTALLED = "/opt/netmgr"
RUN_FROM_HERE = f"""#!/bin/sh
PYTHONPATH={INSTALLED}/source PYTHONDONTWRITEBYTECODE=1 exec {{python}} -P -m netmgr "$@"
"""


BUDGETS = {
    "apiVersion": "netmgr.io/v1alpha1",
    "kind": "Budgets",
    "budgets": [{"name": "everyone", "namespaces": ["*"], "internet-in": "1G"}],
}
SETTINGS = {"reader_group": "netmgr", "reconcile_seconds": 1}


@dataclass
class UnitNode(NetmgrNode):
    """The node with its agent and exporter under systemd."""

    def __post_init__(self) -> None:
        self.systemd = Systemd(self.machine)

    def start(self, *options: str) -> str:
        machine = self.machine
        self._install()
        machine.write(DOCUMENT, yaml.safe_dump(self._document() | SETTINGS))
        machine.run("groupadd", "--system", "netmgr")
        machine.run("mount", "--make-shared", "/run")
        if self.backend == "links":
            allowed = "[Service]\nSystemCallFilter=bpf\n"
            machine.write(f"{UNITS}/netmgr-agent.service.d/links.conf", allowed)
        self.systemd.start()
        printed = machine.run(*NETMGR, "cni", "install", *options)
        self.systemd.control("systemctl", "start", "netmgr-agent", "netmgr-exporter")
        self.wait_until_ready()
        return printed

    def add_budgets(self, folder: Path) -> None:
        """What docs/budgets.md says of a node without Kubernetes, and a server beside it."""
        machine, address, kept = self.machine, "127.0.0.1:9122", "/var/lib/netmgr-budgets"
        authority = Authority(folder)
        (folder / "budgets.yaml").write_text(yaml.safe_dump(BUDGETS))
        write_plan(folder, 1)
        files = ("--file", folder / "budgets.yaml", "--plan", folder / "plan.yaml")
        tls = ("--tls", authority.certify("netmgr-budgets"), "--state", folder / "state")
        serve = ("budgets", "serve", "--listen", address, *files, *tls)
        machine.start("budgets", *NETMGR, *serve)
        for file in authority.certify("lab-cpu-0").iterdir():
            machine.write(f"/etc/netmgr/budgets/{file.name}", file.read_bytes(), 0o640)
        machine.run("chgrp", "-R", "netmgr", "/etc/netmgr/budgets")
        exporter = f"{UNITS}/netmgr-exporter.service"
        (command,) = re.findall("^ExecStart=.*$", machine.path(exporter).read_text(), re.MULTILINE)
        command += f" --budgets-server {address} --budgets-credentials /etc/netmgr/budgets"
        command += f" --budgets-file {kept}/budgets.json"
        machine.write(f"{exporter}.d/budgets.conf", f"[Service]\nExecStart=\n{command}\n")
        settings = {**SETTINGS, "budgets_file": f"{kept}/budgets.json"}
        machine.write(DOCUMENT, yaml.safe_dump(self._document() | settings))
        self.systemd.control("systemctl", "daemon-reload")
        self.systemd.control("systemctl", "restart", "netmgr-agent", "netmgr-exporter")
        eventually(self._has_budgets, lambda: f"{self.log('agent')}\n{self.log('exporter')}")

    def _has_budgets(self) -> bool:
        try:
            return self.snapshot().get("budgets", {}).get("epoch", 0) > 0
        except OSError:
            return False

    @property
    def python(self) -> Path:
        """The interpreter, as a service sees it."""
        python = Path(sys.executable)
        if python.is_relative_to(SOURCE):
            return Path(INSTALLED, "source", python.relative_to(SOURCE))
        return python

    def log(self, unit: str) -> str:
        return self.machine.path(f"/run/netmgr-{unit}.log").read_text()

    def failures(self) -> list[str]:
        """Attempts that failed, but for those that found the folder of sockets taken away."""
        lines = [line for line in self.log("agent").splitlines() if "attempt-failed" in line]
        away = re.compile(r"No such file.*/run/netmgr|/run/netmgr.*No such file")
        return [line for line in lines if not away.search(line)]

    def wait_until_ready(self) -> None:
        eventually(self._is_ready, lambda: f"the agent is not ready:\n{self.log('agent')}")

    def _install(self) -> None:
        """This source in /opt/netmgr: home directories are hidden from services."""
        machine = self.machine
        machine.run("mkdir", "-p", f"{INSTALLED}/source")
        machine.run("mount", "--bind", SOURCE, f"{INSTALLED}/source")
        program = RUN_FROM_HERE.format(python=self.python)
        machine.write(f"{INSTALLED}/bin/netmgr", program, mode=0o755)
        for unit in CONFIGS.iterdir():
            machine.write(f"{UNITS}/{unit.name}", unit.read_text())
            # There is no journal.
            log = f"[Service]\nStandardError=append:/run/{unit.stem}.log\n"
            machine.write(f"{UNITS}/{unit.name}.d/log.conf", log)


@pytest.fixture(params=["nftables", "iptables-legacy"])
def unit_node(request: pytest.FixtureRequest, machine: Machine, node: Node) -> UnitNode:
    made = UnitNode(machine, node, backend=request.param)
    made.start("--bin-dir", BIN_DIR)
    return made


@pytest.mark.parametrize("unit_node", ["nftables", "links", "iptables-legacy"], indirect=True)
def test_pods_come_talk_are_counted_and_scraped_and_go(
    unit_node: UnitNode, internet: Internet, probe: bytes
):
    machine, plugin = unit_node.machine, Plugin(unit_node.machine, probe)
    pod = plugin.run("inside")
    plugin.speak("inside")
    assert settled(lambda: unit_node.counted(*pod), internet.meter) == internet.meter()
    plugin.check("inside")
    sent = internet.meter()["internet-out"][0]
    eventually(lambda: sent_of_pod(scraped(machine)) == sent, lambda: unit_node.log("exporter"))

    unit_node.systemd.control("systemctl", "restart", "netmgr-agent")
    unit_node.wait_until_ready()
    plugin.speak("inside")
    assert settled(lambda: unit_node.counted(*pod), internet.meter) == internet.meter()
    assert "attempt-failed" not in unit_node.log("agent")
    # Drift is repaired, and lost files are made again.
    machine.run("sysctl", "-w", "net.ipv4.ip_forward=0")
    # At once: the agent may look while a program takes one file after the other away.
    machine.run("mv", "/run/netmgr", "/run/gone")
    machine.run("rm", "-r", "/run/gone")

    def repaired() -> bool:
        forwards = machine.run("sysctl", "--values", "net.ipv4.ip_forward").strip() == "1"
        return forwards and bool(scraped(machine))

    eventually(repaired, lambda: unit_node.log("agent"))
    plugin.remove("inside")
    assert settled(lambda: unit_node.addresses("allocated"), lambda: 0) == 0
    assert unit_node.failures() == []


@pytest.mark.parametrize("unit_node", ["nftables"], indirect=True)
def test_a_server_of_budgets_is_heard(unit_node: UnitNode, tmp_path: Path):
    unit_node.add_budgets(tmp_path)
    assert unit_node.failures() == []


SANDBOX = "[Service]\nType=exec\nDynamicUser=yes\nPrivateNetwork=yes\nExecStart=sleep infinity\n"


@pytest.mark.parametrize("unit_node", ["nftables"], indirect=True)
def test_a_sandbox_that_another_users_process_names_is_entered(unit_node: UnitNode, probe: bytes):
    systemd, plugin = unit_node.systemd, Plugin(unit_node.machine, probe)
    unit_node.machine.write(f"{UNITS}/sandbox.service", SANDBOX)
    systemd.control("systemctl", "start", "sandbox")
    netns = f"/proc/{systemd.property('sandbox', 'MainPID')}/ns/net"
    plugin.add("sandbox", netns)
    shown = systemd.control("nsenter", f"--net={netns}", "ip", "address")
    assert all(each["address"] in shown for each in plugin.results["sandbox"]["ips"])


@pytest.mark.parametrize("unit_node", ["nftables"], indirect=True)
def test_what_runs_in_a_services_place_is_refused_the_rest_of_the_machine(unit_node: UnitNode):
    """A unit with the same limits and another program."""
    machine, systemd = unit_node.machine, unit_node.systemd
    for process in ("agent", "exporter"):
        unit = machine.path(f"{UNITS}/netmgr-{process}.service").read_text()
        (command,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
        tries = f"ExecStart={unit_node.python} {INSTALLED}/source/tests/runtimes/attempts.py"
        for given, instead in (command, tries), ("=exec", "=oneshot"), ("=always", "=no"):
            unit = unit.replace(given, instead)
        unit += f"[Service]\nStandardOutput=file:/run/{process}.tried\n"
        machine.write(f"{UNITS}/{process}-attempts.service", unit)
        systemd.control("systemctl", "daemon-reload")
        systemd.control("systemctl", "start", f"{process}-attempts")
        tried = machine.path(f"/run/{process}.tried").read_text()
        assert attempts.not_refused(tried) == {}
