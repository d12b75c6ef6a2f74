"""A lab's world: made from a topology, kept in one directory, removable from that directory alone.

    /run/netmgr-lab/<name>/
        topology.json   what it looks like; written first, so that every lab can be listed
        complete        written last: the lab was built to the end
        netns/<host>    the hosts' namespaces
        pods/<pod>      the pods' namespaces
        nodes/<node>/   see `nodes`

A lab has no link, route, rule, port or process in the machine's own network namespace. The
directory lists all of it, so a lab whose builder was killed is taken down like any other.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter

from netmgr import descriptors
from netmgr.documents.node import Backend
from netmgr.errors import SetupError
from netmgr.kernel import proc
from netmgr.prefixes import Family
from tests.lab import named_netns, processes, services, wiring
from tests.lab.errors import PROGRAM, LabError
from tests.lab.exchange import End
from tests.lab.nodes import TRAVERSABLE, LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET, Topology

FIRST_NAME = "lab-1"
"""What the first lab without a name of its own is called."""

ROOT = Path("/run/netmgr-lab")
"""Short, because a Unix socket's path has at most 107 bytes."""

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,22}[a-z0-9])?")

MOUNT_POINT = 4
"""Place of the mount point in a line of /proc/self/mountinfo (proc(5))."""

SETTINGS: Mapping[str, Any] = {
    "accounting": {"reading_seconds": 1, "min_reading_seconds": 0},
    "pool": {"cooldown_seconds": 5, "conntrack_wait_seconds": 5},
}
"""What a lab's node.yaml says beside the topology: as in production, only more impatient."""


def names() -> list[str]:
    """The labs on this machine, complete or not."""
    return sorted(path.name for path in ROOT.iterdir()) if ROOT.is_dir() else []


def counted_by(backend: Backend, accounting: Mapping[str, Any]) -> dict[str, Any]:
    """What node.yaml says so that this backend counts, beside other keys of `accounting`."""
    if backend is not Backend.LINKS:
        others = {key: value for key, value in accounting.items() if key != "at"}
        return {"backend": backend.value, "accounting": others}
    return {"backend": Backend.NFTABLES.value, "accounting": {**accounting, "at": "links"}}


def counting_by(document: Mapping[str, Any]) -> Backend:
    """What counts where node.yaml says this."""
    at_links = document["accounting"].get("at") == "links"
    return Backend.LINKS if at_links else Backend(document["backend"])


class World:
    """A lab. As a context manager it is up inside the block and gone after it, however it ends."""

    def __init__(
        self,
        topology: Topology,
        *,
        backend: Backend = Backend.NFTABLES,
        name: str | None = None,
        settings: Mapping[str, Any] | None = None,
        exporters: bool = True,
    ) -> None:
        """Describe a lab without building it.

        Args:
            topology: the hosts, links, nodes and pods.
            backend: what holds every node's rules.
            name: what the lab is called; default: the first free `lab-<number>`.
            settings: keys of node.yaml that replace the lab's own.
            exporters: whether every agent gets one beside it.
        """
        self.topology = topology
        chosen = {**SETTINGS, **(settings or {})}
        self._settings = {**counted_by(backend, {}), **chosen}
        if backend is Backend.LINKS:
            self._settings |= counted_by(backend, chosen["accounting"])
        self._name = name
        self._exporters = exporters
        self._is_ours = False
        self._nodes: dict[str, LabNode] = {}

    @classmethod
    def open(cls, name: str | None = None) -> Self:
        """Open a lab that is up; without a name, the only one."""
        directory = ROOT / choose(name)
        if not (directory / "complete").exists():
            raise LabError(
                f"lab {directory.name} is not complete; "
                f"remove it with: {PROGRAM} down --name {directory.name}"
            )
        kept = json.loads((directory / "topology.json").read_text("utf-8"))
        world = cls(
            TypeAdapter(Topology).validate_python(kept["topology"]),
            name=directory.name,
            settings=kept["settings"],
        )
        world._is_ours = True
        world._describe_nodes()
        return world

    @property
    def name(self) -> str:
        if self._name is None:
            raise LabError("the lab is not up yet, so it has no name")
        return self._name

    @property
    def directory(self) -> Path:
        """Where everything of it is."""
        return ROOT / self.name

    @property
    def backend(self) -> Backend:
        return counting_by(self._settings)

    @property
    def nodes(self) -> list[LabNode]:
        return list(self._nodes.values())

    def node(self, name: str) -> LabNode:
        try:
            return self._nodes[name]
        except KeyError:
            raise LabError(f"the lab has no node {name}; it has {', '.join(self._nodes)}") from None

    def namespace(self, host: str) -> Path:
        """Where the namespace of `host` is pinned."""
        return self.directory / "netns" / host

    @property
    def internet(self) -> Path:
        """Where the internet host's namespace is pinned."""
        return self.namespace(self.topology.internet)

    def outside(self, family: Family) -> End:
        """The internet's side of a conversation."""
        return End(self.internet, INTERNET[family])

    def pods(self) -> list[Sandbox]:
        """Every pod that runs, node by node."""
        return [sandbox for node in self.nodes for sandbox in node.runtime.sandboxes()]

    def pod(self, name: str) -> Sandbox:
        pods = {sandbox.pod.name: sandbox for sandbox in self.pods()}
        try:
            return pods[name]
        except KeyError:
            raise LabError(
                f"no pod {name} runs in lab {self.name}; there are {', '.join(pods)}"
            ) from None

    def find(self, name: str) -> Path:
        """Where the namespace of the pod or host called `name` is pinned."""
        for folder in ("pods", "netns"):
            path = self.directory / folder / name
            if path.parent == self.directory / folder and path.is_file():
                return path
        known = ", ".join(sorted(pin.name for pin in _pins(self.directory)))
        raise LabError(f"lab {self.name} has no pod or host {name}; it has {known}")

    def node_of(self, name: str) -> LabNode | None:
        """The node that is called `name`, or that runs the pod of that name; None for any other."""
        nodes = {sandbox.pod.name: sandbox.pod.node for sandbox in self.pods()}
        return self._nodes.get(nodes.get(name, name))

    def build(self) -> None:
        """Claim the directory and make hosts and links, without agents."""
        if os.geteuid() != 0:
            raise SetupError("a lab needs root, to make network namespaces: run it with sudo")
        self._name = _claim(self._name)
        self._is_ours = True
        kept = {
            "settings": self._settings,
            "topology": TypeAdapter(Topology).dump_python(self.topology, mode="json"),
        }
        # Written first: `down` must know of a lab whose builder was killed.
        (self.directory / "topology.json").write_text(json.dumps(kept), encoding="utf-8")
        wiring.build(self.topology, self.directory / "netns")
        self._describe_nodes()

    def up(self) -> None:
        """Build the world, start its nodes and run its pods; when that fails, nothing is left."""
        try:
            self.build()
            self._start_nodes()
            for pod in self.topology.pods:
                self.node(pod.node).add(pod.name, pod.namespace)
            services.publish(self.topology.spokes, self.nodes, self.backend)
            (self.directory / "complete").touch()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        if self._is_ours:
            remove(self.name)
            self._is_ours = False
        for node in self.nodes:
            node.reap()

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def _describe_nodes(self) -> None:
        for node in self.topology.nodes:
            self._nodes[node.host] = LabNode(
                node,
                self.namespace(node.host),
                self.directory / "nodes" / node.host,
                self.directory / "pods",
                self._settings,
            )

    def _start_nodes(self) -> None:
        for node in self.nodes:
            node.write_document()
            if node.node.runs_pods:
                node.install_plugin()
            node.start_agent()
        # Agents first and all at once: they load side by side, and an exporter needs its agent's
        # socket.
        for node in self.nodes if self._exporters else ():
            node.start_exporter()
        for node in self.nodes:
            node.wait_until_ready()
        wiring.wait_until_up(self.topology, self.directory / "netns")


def choose(name: str | None) -> str:
    """The lab that is meant: the named one, else the only one."""
    known = names()
    if name is None and len(known) == 1:
        return known[0]
    if not known:
        raise LabError(f"there is no lab; make one with: {PROGRAM} up")
    if name is None:
        raise LabError(f"there are several labs; say which with --name: {', '.join(known)}")
    if name not in known:
        raise LabError(f"there is no lab {name}; there are {', '.join(known)}")
    return name


def remove(name: str) -> None:
    """Remove a lab by its directory alone: its processes, its namespaces, its files."""
    directory = ROOT / name
    pins = _pins(directory)
    # One for each pod.
    descriptors.allow_most()
    with ExitStack() as stack:
        # Open, so that nobody else's namespace gets the identity of one of these meanwhile.
        numbers = [stack.enter_context(pin.open("rb")).fileno() for pin in pins]
        namespaces = [Path(f"/proc/self/fd/{number}") for number in numbers]
        # First: a process inside keeps its namespace alive, also without the pin.
        processes.end(namespaces)
        for pin in pins:
            named_netns.delete(pin)
        # What the builder started just before it was interrupted has entered by now, or never will.
        processes.end(namespaces)
    shutil.rmtree(directory)
    with suppress(OSError):
        ROOT.rmdir()


def _pins(directory: Path) -> list[Path]:
    """Every namespace pinned below the directory, from the kernel's mount table."""
    # Not from the directory: a file without a mount is no namespace, and is removed with the
    # directory.
    lines = proc.lines(Path("/proc/self/mountinfo"))
    points = (Path(proc.fields(line)[MOUNT_POINT]) for line in lines)
    return [point for point in points if directory in point.parents]


def _claim(name: str | None) -> str:
    """Make the lab's directory; making it is what makes the name ours."""
    if name is None:
        return next(
            candidate for number in count(1) if _make(ROOT / (candidate := f"lab-{number}"))
        )
    if not NAME.fullmatch(name):
        raise LabError(
            f"{name!r} is no name for a lab: at most 24 of a-z, 0-9 and '-', no '-' at either end"
        )
    if not _make(ROOT / name):
        raise LabError(
            f"there is a lab {name} already; remove it with: {PROGRAM} down --name {name}"
        )
    return name


def _make(directory: Path) -> bool:
    try:
        # Making a directory is atomic, so that of two labs that start at once only one gets a name.
        directory.mkdir(parents=True)
    except FileExistsError:
        return False
    for path in (directory.parent, directory):
        path.chmod(TRAVERSABLE)
    return True
