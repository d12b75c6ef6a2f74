"""A node as an installation leaves it: netmgr's agent and plugin in their default places on a
machine.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import yaml

from netmgr.api.snapshot import Snapshot
from netmgr.documents.node import Backend
from tests.builders import NODE_KEYS
from tests.lab.topology import Node
from tests.lab.world import counted_by
from tests.runtimes.machine import Machine
from tests.waiting import PATIENCE, eventually

DOCUMENT = "/etc/netmgr/node.yaml"
SOURCE = Path(__file__).resolve().parents[2]
NETMGR = ("env", f"PYTHONPATH={SOURCE}", sys.executable, "-m", "netmgr")
BIN_DIR = "/opt/cni/bin"
"""Where these tests' engines look for plugins; `ctr` has it built in."""

SCRAPE = (
    "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9119/metrics', "
    "timeout=5).read().decode())"
)

Value = TypeVar("Value")


@dataclass
class NetmgrNode:
    """What the tests ask of the node."""

    machine: Machine
    node: Node
    backend: str

    def start(self, *options: str) -> str:
        """Install the plugin with these options and start the agent;
        what the installation printed."""
        self.machine.write(DOCUMENT, yaml.safe_dump(self._document()))
        self.machine.start("agent", *NETMGR, "agent", "--config", DOCUMENT)
        printed = self.machine.run(*NETMGR, "cni", "install", *options)
        self.wait_until_ready()
        return printed

    def start_agent(self) -> None:
        self.machine.start("agent", *NETMGR, "agent", "--config", DOCUMENT)
        self.wait_until_ready()

    def stop_agent(self) -> None:
        self.machine.run("pkill", "-f", "netmgr agent")
        self.machine.running["agent"].wait(PATIENCE)

    def wait_until_ready(self) -> None:
        eventually(self._is_ready, lambda: f"the agent is not ready:\n{self.machine.log('agent')}")

    def snapshot(self) -> Snapshot:
        """Everything the agent tells over its read-only socket."""
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(self.machine.path("/run/netmgr/ledger.sock")))
            asking.sendall(b'{"version":1,"query":"snapshot"}\n')
            with asking.makefile("rb") as answer:
                return json.load(answer)

    def counted(self, namespace: str, pod: str) -> dict[str, tuple[int, int]]:
        """(bytes, packets) of a pod by direction."""
        rows = [
            row
            for row in self.snapshot()["pods"]
            if (row["namespace"], row["pod"]) == (namespace, pod)
        ]
        return {row["traffic"]: (row["bytes"], row["packets"]) for row in rows}

    def repaired(self) -> set[str]:
        return {each["reason"] for each in self.snapshot()["drift_repaired"] if each["count"]}

    def addresses(self, state: str) -> int:
        """How many addresses of both families are in `state`."""
        return sum(pool[state] for pool in self.snapshot()["pool"])

    def traces(self, address: str) -> list[str]:
        """Where the kernel and libcni still have something of an attachment that held `address`."""
        shown = {
            "link": self.machine.run("ip", "-o", "link", "show", "type", "veth"),
            "route": self.machine.run("ip", "route", "show", "table", "all"),
            "rule": self.machine.run("nft", "list", "ruleset"),
            "result": self.machine.run("sh", "-c", "ls /var/lib/cni/results 2>/dev/null || true"),
        }
        uplink = f" {self.node.uplink}@"
        found = [line for line in shown["link"].splitlines() if uplink not in line]
        found += [
            line
            for name in ("route", "rule")
            for line in shown[name].splitlines()
            if address in line.split()
        ]
        return found + shown["result"].split()

    def _document(self) -> dict[str, object]:
        return {
            **NODE_KEYS,
            "node": {
                "name": self.node.host,
                "addresses": [str(address) for address in self.node.addresses],
                "uplink": self.node.uplink,
            },
            "ranges": [str(block) for block in self.node.ranges],
            **counted_by(Backend(self.backend), {}),
        }

    def _is_ready(self) -> bool:
        try:
            return self.snapshot()["ready"]
        except OSError:
            return False


def scraped(machine: Machine) -> list[str]:
    """The lines of the exporter's page; none while it has no answer from the agent."""
    page = machine.run(sys.executable, "-c", SCRAPE, check=False).splitlines()
    return page if "netmgr_up 1.0" in page else []


def sent_of_pod(page: list[str]) -> float | None:
    """What an exporter's page says that its only pod sent to the internet; None without a page."""
    lines = [
        line
        for line in page
        if line.startswith("netmgr_pod_traffic_bytes_total{") and "internet-out" in line
    ]
    return float(lines[0].split()[-1]) if len(lines) == 1 else None


def settled(read: Callable[[], Value], expected: Callable[[], Value]) -> Value:
    """What `read()` gives once it equals `expected()`, or at last, if it never does."""
    deadline = time.monotonic() + PATIENCE
    while (found := read()) != expected() and time.monotonic() < deadline:
        time.sleep(0.1)
    return found
