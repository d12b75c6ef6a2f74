"""One node of a lab: its document, its processes in its namespace, and its answers.

Everything of a node lies in one directory, so that any number of nodes can share a machine:

    node.yaml  bin/  net.d/  cache/  run/  state/  agent.log  exporter.log

A hub's router and a NAT host are nodes too, which run no pods.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from cni import install
from netmgr import programs
from netmgr.api import client
from netmgr.api.snapshot import Snapshot
from netmgr.documents import loader
from netmgr.documents.node import Backend, NodeDocument
from netmgr.documents.sites import SourceAddress
from netmgr.errors import NetmgrError
from netmgr.prefixes import Family
from tests.builders import NODE_KEYS
from tests.lab import processes, wiring
from tests.lab.errors import LabError
from tests.lab.exchange import End
from tests.lab.runtime import Runtime, Sandbox
from tests.lab.topology import Node, Pod
from tests.lab.unprivileged import NOBODY
from tests.waiting import PATIENCE

EXPORTER_PORT = 9119
"""The same on every node: each listens in a namespace of its own."""

TRAVERSABLE = 0o755
"""Mode of the directories on the exporter's way to its socket, whatever the umask."""

START_SECONDS = 2 * PATIENCE
"""Of a busy machine; a process that ends before it is ready is seen at once."""


@dataclass
class LabNode:
    """A node's agent and exporter, its runtime, and its numbers.

    Attributes:
        namespace: path its network namespace is pinned at.
        directory: everything else of it.
        pods_dir: where the world keeps its pods' namespaces.
        settings: keys of node.yaml beside those the topology gives.
    """

    node: Node
    namespace: Path
    directory: Path
    pods_dir: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    _started: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        return self.node.host

    @property
    def document(self) -> Path:
        return self.directory / "node.yaml"

    @property
    def run_dir(self) -> Path:
        """Where its agent's sockets are."""
        return self.directory / "run"

    @property
    def ledger_socket(self) -> Path:
        """Its agent's read-only socket."""
        return self.run_dir / "ledger.sock"

    @cached_property
    def runtime(self) -> Runtime:
        directory = self.directory
        return Runtime(
            self.name, directory / "bin", directory / "net.d", directory / "cache", self.pods_dir
        )

    def end(self, family: Family) -> End:
        """The node's own side of a conversation."""
        return End(self.namespace, self.node.address(family))

    def add(self, name: str, namespace: str = "research") -> Sandbox:
        return self.runtime.add(Pod(name, self.name, namespace))

    def write_document(self) -> None:
        text = yaml.safe_dump(self._document(), sort_keys=False)
        # Validated here: an agent that refuses its document would only be seen to time out.
        loader.parse(text, str(self.document), NodeDocument)
        self.run_dir.mkdir(parents=True, exist_ok=True)
        # The exporter runs as nobody and needs to pass each of them, whatever the umask of who
        # built the lab.
        for directory in (self.directory.parent, self.directory, self.run_dir):
            directory.chmod(TRAVERSABLE)
        self.document.write_text(text, encoding="utf-8")

    def _document(self) -> dict[str, Any]:
        planned = self.node.document
        identity = {
            "name": self.name,
            "addresses": [str(address) for address in self.node.addresses],
        }
        given: dict[str, Any] = planned or {"ranges": [str(block) for block in self.node.ranges]}
        return {
            **NODE_KEYS,
            **given,
            "node": {**identity, "uplink": self.node.uplink},
            "state_dir": str(self.directory / "state"),
            "run_dir": str(self.run_dir),
            "reader_group": NOBODY,
            **self.settings,
            **self._preserving(planned.get("nat", {})),
        }

    def _preserving(self, nat: Mapping[str, Any]) -> dict[str, str]:
        """Only nftables keeps clients' addresses, also in a lab whose other rules are iptables'."""
        preserves = nat.get("source") == SourceAddress.PRESERVE
        return {"backend": Backend.NFTABLES.value} if preserves else {}

    def install_plugin(self) -> None:
        runtime = self.runtime
        install.install(
            install.Installation(
                runtime.bin_dir, runtime.conf_dir, self.run_dir, self.directory / "state"
            )
        )

    def start_agent(
        self, module: str = "netmgr", environment: Mapping[str, str] | None = None
    ) -> None:
        """Start the agent inside the node's namespace; returns without waiting for it.

        Args:
            module: what `python -m` runs in place of netmgr, with the same arguments.
            environment: variables beside this process's own.
        """
        arguments = ("agent", "--config", str(self.document))
        self._start("agent", module, *arguments, environment=environment)

    def start_exporter(self, *options: str) -> None:
        """Start the exporter as a user that may read the agent's ledger socket and nothing else."""
        own = ("--socket", str(self.ledger_socket), "--listen", f":{EXPORTER_PORT}")
        self._start("exporter", "tests.lab.unprivileged", *own, *options)

    def start_until_ready(self) -> None:
        self.start_agent()
        self.wait_until_ready()

    def restart_after_kill(self) -> None:
        self.kill_agent()
        self.start_until_ready()

    def wait_until_ready(self, timeout: float = START_SECONDS) -> None:
        """Wait until the agent is ready and the exporter answers, up to `timeout` seconds each."""
        self._wait_for("agent", self.status, timeout)
        # Only after the agent: without it /readyz is never 200.
        if "exporter" in self._started:
            self._wait_for("exporter", self._exporter_status, timeout)

    def status(self) -> str:
        """Empty while the agent is ready, else why it is not."""
        if self.node.runs_pods:
            return self.runtime.status(patience=0)
        try:
            snapshot = self.snapshot()
        except NetmgrError as error:
            return error.message
        return "" if snapshot["ready"] else snapshot["reason"]

    def kill_agent(self) -> None:
        """Kill the agent as a crash would: SIGKILL, in the middle of its work."""
        self._end("agent", signal.SIGKILL)

    def kill_exporter(self) -> None:
        self._end("exporter", signal.SIGKILL)

    def stop_agent(self) -> None:
        """End the agent as an orderly restart would: SIGTERM."""
        self._end("agent", signal.SIGTERM)

    def agent_pid(self) -> int | None:
        return self._find("agent")

    def exporter_pid(self) -> int | None:
        return self._find("exporter")

    def ask(self, query: str, **fields: str) -> dict[str, Any]:
        """Put one question to the agent's read-only socket."""
        return client.ask(self.ledger_socket, query, timeout=PATIENCE, **fields)

    def snapshot(self) -> Snapshot:
        """The agent's whole document, as the exporter gets it."""
        return client.read_snapshot(self.ledger_socket, timeout=PATIENCE)

    def problems(self) -> dict[str, str]:
        """What the agent says is wrong, by reason."""
        return {problem["reason"]: problem["message"] for problem in self.snapshot()["problems"]}

    def scrape(self) -> str:
        return self._get("/metrics")

    def history(self, **arguments: str) -> dict[str, Any]:
        """What the exporter answers for `netmgr usage --cluster`."""
        answer: dict[str, Any] = json.loads(self._get(f"/usage?{urlencode(arguments)}"))
        return answer

    def _get(self, path: str) -> str:
        """Fetch from the exporter, from inside the node's namespace."""
        with wiring.inside(self.namespace):
            connection = http.client.HTTPConnection("127.0.0.1", EXPORTER_PORT, timeout=PATIENCE)
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                body = response.read().decode()
            except OSError as error:
                raise LabError(f"the exporter of {self.name} does not answer: {error}") from error
            finally:
                connection.close()
        if response.status != http.client.OK:
            raise LabError(
                f"the exporter of {self.name} answers {response.status}: {body.strip()[:200]}"
            )
        return body

    def reap(self) -> None:
        """Collect the exit codes of processes that were started from here and have ended."""
        for process in self._started.values():
            process.wait(timeout=PATIENCE)
        self._started.clear()

    def _start(
        self, role: str, module: str, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> None:
        nsenter = programs.locate("nsenter", "util-linux")
        command = [nsenter, f"--net={self.namespace}", sys.executable, "-m", module, *arguments]
        # A session of its own: a Ctrl-C at the terminal of `up` must not end the lab.
        with (self.directory / f"{role}.log").open("ab") as output:
            self._started[role] = subprocess.Popen(
                command,
                env={**_environment(), **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _find(self, role: str) -> int | None:
        marker = {"agent": "agent", "exporter": "tests.lab.unprivileged"}[role]
        for number in processes.running_in([self.namespace]):
            if marker in processes.command_line(number):
                return number
        return None

    def _end(self, role: str, which: signal.Signals) -> None:
        if (process := self._started.pop(role, None)) is not None:
            process.send_signal(which)
            process.wait(timeout=PATIENCE)
        # Another process built the lab, so this one has no handle of the child.
        elif (number := self._find(role)) is not None:
            processes.stop(number, which, [self.namespace])

    def _exporter_status(self) -> str:
        try:
            self._get("/readyz")
        except LabError as error:
            return error.message
        return ""

    def _wait_for(self, role: str, status: Callable[[], str], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while reason := status():
            # A process that ended will never be ready, so its log is shown at once.
            ended = role in self._started and self._started[role].poll() is not None
            if ended or time.monotonic() > deadline:
                raise LabError(
                    f"the {role} of {self.name} did not start: {reason}",
                    _tail(self.directory / f"{role}.log"),
                )
            time.sleep(0.02)


def _environment() -> dict[str, str]:
    """This process's environment, and our own package importable whatever the working directory."""
    source = str(Path(__file__).resolve().parents[2])
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH")))),
    }


def _tail(path: Path) -> str:
    with suppress(OSError):
        return "\n".join(path.read_text("utf-8", errors="replace").splitlines()[-10:])
    return ""
