"""A node, a peer and an internet behind a fabric, without any agent, and ways to break it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from netmgr.kernel import netns
from netmgr.prefixes import Family
from netmgr.preflight.results import PreflightReport
from netmgr.preflight.run import run
from tests.builders import NODE_KEYS
from tests.kernel.namespaces import inside
from tests.lab import wiring
from tests.lab.topology import cluster

TOPOLOGY = cluster(pods=0)
NODE, PEER = TOPOLOGY.nodes
RANGES = {Family.V4: "10.128.16.0/28", Family.V6: "fd00:128:0:1::/112"}
STATE = (
    ["ip", "-d", "address"],
    ["ip", "route", "show", "table", "all"],
    ["nft", "list", "ruleset"],
)


@dataclass(frozen=True)
class Fabric:
    """The hosts' namespaces, and the node's document."""

    directory: Path
    document: Path

    def at(self, host: str, *command: str) -> str:
        return inside(self.directory / host, *command)

    def write(self, *, preflight: dict[str, Any] | None = None, **keys: Any) -> Path:
        """The node's document, which probes the peer unless asked otherwise."""
        given = {"peers": list(map(str, PEER.addresses)), "answer_seconds": 0.45}
        identity = {"name": NODE.host, "addresses": list(map(str, NODE.addresses))}
        folder = self.document.parent
        content = {
            **NODE_KEYS,
            "node": identity,
            "ranges": list(RANGES.values()),
            "state_dir": str(folder / "state"),
            "run_dir": str(folder / "run"),
            "preflight": {**given, **(preflight or {})},
        }
        self.document.write_text(yaml.safe_dump(content | keys))
        return self.document

    def probed(self, **keys: Any) -> PreflightReport:
        """What a preflight in the node's namespace finds."""
        path = self.write(**keys)
        with wiring.inside(self.directory / NODE.host):
            return run(path)

    def failed(self, **keys: Any) -> dict[str, str]:
        """The checks that failed, with what each says."""
        found = self.probed(**keys)
        assert found.skipped == ""
        assert found.results
        return {each.check: each.message for each in found.failures}


@contextmanager
def built() -> Iterator[Path]:
    """The hosts' namespaces, in a directory."""
    directory = Path(f"/run/netns/preflight-{os.getpid()}")
    directory.mkdir(parents=True)
    try:
        wiring.build(TOPOLOGY, directory)
        wiring.wait_until_up(TOPOLOGY, directory)
        yield directory
    finally:
        for host in TOPOLOGY.hosts:
            netns.delete(directory / host.name)
        directory.rmdir()


@contextmanager
def changed(fabric: Fabric, host: str, change: str, back: str) -> Iterator[None]:
    """Run a command of the shell at a host, and another one afterwards."""
    fabric.at(host, "sh", "-ec", change)
    try:
        yield
    finally:
        fabric.at(host, "sh", "-ec", back)


def filtering(fabric: Fabric, host: str, hook: str, *rules: str) -> Any:
    """Rules of a filter at a host, for a block."""
    chain = "\n".join((f"chain c {{ type filter hook {hook} priority 0;", *rules, "}"))
    table = f"table inet test {{\n{chain}\n}}"
    return changed(fabric, host, f"nft '{table}'", "nft delete table inet test")


@contextmanager
def serving(opened: socket.socket, serve: Callable[[bytes, Any], None]) -> Iterator[None]:
    """Have a thread hand each packet that a socket receives to `serve`."""
    ended = threading.Event()
    opened.settimeout(0.05)

    def work() -> None:
        while not ended.is_set():
            try:
                serve(*opened.recvfrom(65535))
            except TimeoutError:
                continue

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        ended.set()
        worker.join()
