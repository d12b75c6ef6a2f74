"""A miniature container runtime: makes a pod's namespace and executes the installed CNI plugins.

It does what libcni does for a runtime, no more: reads the conflist, gives each plugin its
configuration and the result before it, sets the CNI_* variables, and keeps the result in a
cache laid out like libcni's (`cniCacheV1`), which DEL and CHECK get back as `prevResult`.
"""

from __future__ import annotations

import base64
import json
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from netmgr import programs
from netmgr.prefixes import Address, Family
from tests.lab import named_netns, wiring
from tests.lab.errors import LabError
from tests.lab.exchange import End
from tests.lab.topology import Host, Pod
from tests.waiting import PATIENCE

INTERFACE = "eth0"
"""What every runtime of Kubernetes calls a pod's interface."""

PLUGIN_SECONDS = 60

UNANSWERED = "Connection timed out"
"""What the launcher says of an agent that has not answered CHECK or STATUS in three seconds."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """One running pod: its namespace, what the runtime calls it, and the addresses it was given."""

    pod: Pod
    container_id: str
    uid: str
    netns: Path
    addresses: tuple[Address, ...] = ()

    def address(self, family: Family) -> Address:
        for address in self.addresses:
            if address.family is family:
                return address
        raise LabError(f"{self.pod.name} has no IPv{family.value} address")

    def end(self, family: Family) -> End:
        """The pod's side of a conversation."""
        return End(self.netns, self.address(family))

    @property
    def arguments(self) -> list[tuple[str, str]]:
        """CNI_ARGS as containerd gives them."""
        return [
            ("IgnoreUnknown", "1"),
            ("K8S_POD_NAMESPACE", self.pod.namespace),
            ("K8S_POD_NAME", self.pod.name),
            ("K8S_POD_INFRA_CONTAINER_ID", self.container_id),
            ("K8S_POD_UID", self.uid),
        ]


@dataclass(frozen=True, slots=True)
class Runtime:
    """One node's runtime: where its plugins, its network and its result cache lie."""

    node: str
    bin_dir: Path
    conf_dir: Path
    cache_dir: Path
    pods_dir: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def add(self, pod: Pod) -> Sandbox:
        """Make a namespace for `pod` and attach it to the network."""
        container_id = uuid.uuid4().hex
        sandbox = Sandbox(pod, container_id, str(uuid.uuid4()), self.pods_dir / pod.name)
        wiring.make_host(Host(pod.name), sandbox.netns)
        try:
            result = self.execute("ADD", sandbox)
        # Also when interrupted: a half-attached pod would be in no cache, and never be removed.
        except BaseException:
            self.delete(sandbox)
            raise
        attached = _with_addresses(sandbox, result)
        self._remember(attached, result)
        return attached

    def check(self, sandbox: Sandbox, patience: float = PATIENCE) -> None:
        """Have the plugins verify that the pod is as ADD left it."""
        self._look(patience, "CHECK", sandbox, self._cached_result(sandbox))

    def delete(self, sandbox: Sandbox) -> None:
        """Detach the pod and remove its namespace. A pod that is gone already is fine."""
        try:
            self.execute("DEL", sandbox, self._cached_result(sandbox))
        finally:
            named_netns.delete(sandbox.netns)
            self._cache_file(sandbox.container_id).unlink(missing_ok=True)

    def status(self, patience: float = PATIENCE) -> str:
        """Empty when the network would accept an ADD now, else the plugin's reason."""
        try:
            self._look(patience, "STATUS", None)
        except LabError as error:
            return error.message
        return ""

    def _look(self, patience: float, *request: Any) -> None:
        """Ask again, as runtimes do, while a busy machine keeps the agent from answering."""
        deadline = time.monotonic() + patience
        while True:
            try:
                self.execute(*request)
            except LabError as error:
                if UNANSWERED not in error.message or time.monotonic() > deadline:
                    raise
            else:
                return

    def sandboxes(self) -> list[Sandbox]:
        """The pods that run, from the cache; pod-2 before pod-10."""
        entries = (json.loads(path.read_text("utf-8")) for path in self._results_dir.glob("*"))
        sandboxes = (_from_cache(entry, self.node, self.pods_dir) for entry in entries)
        return sorted(sandboxes, key=lambda sandbox: (len(sandbox.pod.name), sandbox.pod.name))

    def execute(
        self, command: str, sandbox: Sandbox | None, previous: object = None
    ) -> dict[str, Any]:
        """Run one verb through every plugin of the conflist, in reverse for DEL.

        Returns the last result.
        """
        network = self._network()
        plugins = network["plugins"]
        result = previous
        # Specification, section 3: DEL runs the list backwards.
        for plugin in reversed(plugins) if command == "DEL" else plugins:
            config = plugin | {"name": network["name"], "cniVersion": _version(network)}
            if result is not None:
                config["prevResult"] = result
            answer = self._run(command, sandbox, plugin["type"], config)
            # In an ADD each plugin gets the result of the one before it. CHECK and DEL give all of
            # them the final result.
            result = answer if command == "ADD" else previous
        return result if isinstance(result, dict) else {}

    def _run(
        self, command: str, sandbox: Sandbox | None, plugin: str, config: dict[str, Any]
    ) -> dict[str, Any]:
        environment = {
            **os.environ,
            **self.environment,
            "CNI_COMMAND": command,
            "CNI_PATH": str(self.bin_dir),
        }
        if sandbox is not None:
            environment |= {
                "CNI_CONTAINERID": sandbox.container_id,
                "CNI_NETNS": str(sandbox.netns),
                "CNI_IFNAME": INTERFACE,
                "CNI_ARGS": ";".join(map("=".join, sandbox.arguments)),
            }
        stdin = json.dumps(config).encode()
        outcome = programs.run(
            [self.bin_dir / plugin], stdin=stdin, env=environment, timeout=PLUGIN_SECONDS
        )
        subject = f"{command} of {sandbox.pod.name}" if sandbox else command
        return _answer_of(outcome, f"{subject} on {self.node}")

    def _network(self) -> dict[str, Any]:
        # The first by name, as runtimes choose.
        for path in sorted(self.conf_dir.glob("*.conflist")):
            network: dict[str, Any] = json.loads(path.read_text("utf-8"))
            return network
        raise LabError(f"no CNI network is configured in {self.conf_dir}")

    @property
    def _results_dir(self) -> Path:
        return self.cache_dir / "results"

    def _cache_file(self, container_id: str) -> Path:
        return self._results_dir / f"{self._network()['name']}-{container_id}-{INTERFACE}"

    def _remember(self, sandbox: Sandbox, result: dict[str, Any]) -> None:
        network = self._network()
        entry = {
            "kind": "cniCacheV1",
            "containerId": sandbox.container_id,
            "config": base64.b64encode(json.dumps(network).encode()).decode(),
            "ifName": INTERFACE,
            "networkName": network["name"],
            "netns": str(sandbox.netns),
            "cniArgs": sandbox.arguments,
            "result": result,
        }
        path = self._cache_file(sandbox.container_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(entry), encoding="utf-8")

    def _cached_result(self, sandbox: Sandbox) -> object:
        try:
            return json.loads(self._cache_file(sandbox.container_id).read_text("utf-8"))["result"]
        # An ADD that failed left no result; DEL must work without one (specification, section 2).
        except FileNotFoundError:
            return None


def _version(network: Mapping[str, Any]) -> str:
    """The newest version the network offers, as libcni since 1.2 chooses."""
    offered: list[str] = network.get("cniVersions") or [network["cniVersion"]]
    return max(offered, key=lambda version: tuple(map(int, version.split("."))))


def _answer_of(outcome: programs.Outcome, what: str) -> dict[str, Any]:
    try:
        answer = json.loads(outcome.stdout or b"{}")
    except ValueError:
        answer = {"msg": f"printed no JSON: {outcome.stdout[:200]!r}"}
    if outcome.returncode == 0 and isinstance(answer, dict):
        return answer
    code = answer.get("code", outcome.returncode)
    words = " ".join(
        filter(None, (answer.get("msg"), answer.get("details")))
    ) or outcome.stderr.decode(errors="replace")
    raise LabError(f"{what} failed with code {code}: {words.strip()}")


def _with_addresses(sandbox: Sandbox, result: dict[str, Any]) -> Sandbox:
    addresses = tuple(
        Address.parse(entry["address"].partition("/")[0]) for entry in result.get("ips", ())
    )
    return Sandbox(sandbox.pod, sandbox.container_id, sandbox.uid, sandbox.netns, addresses)


def _from_cache(entry: dict[str, Any], node: str, pods_dir: Path) -> Sandbox:
    arguments = dict(entry["cniArgs"])
    pod = Pod(arguments["K8S_POD_NAME"], node, arguments["K8S_POD_NAMESPACE"])
    sandbox = Sandbox(pod, entry["containerId"], arguments["K8S_POD_UID"], pods_dir / pod.name)
    return _with_addresses(sandbox, entry["result"])
