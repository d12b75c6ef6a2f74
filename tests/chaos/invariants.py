"""What has to be true of a node whose agent is ready, and of what a dead one leaves.

The numbers are those of ARCHITECTURE.md's invariants.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from ipaddress import IPv6Address
from itertools import chain
from pathlib import Path

from netmgr.agent.cni.spool import REFUSED
from netmgr.agent.core.instance import QUEUE
from netmgr.errors import NetmgrError
from tests.chaos.foreign import Foreign
from tests.chaos.kernel import Kernel
from tests.lab.errors import LabError
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox

STATE_FILES = re.compile(
    r"agent\.lock|(ipam|ledger)\.sqlite(-wal|-shm)?|ledger-mark|rules-backend|ranges\.json|spool|reserve"
    r"|plugin\.json"
)
SCRATCH = re.compile(
    r"\.(ledger-mark|rules-backend|ranges\.json)\.\w{8}"
    r"|\.(ipam|ledger)\.sqlite\.(new|restored)(-wal|-shm)?"
)
"""What a writer leaves that is killed; the next one of the same file removes it."""
MOST_SCRATCH = 6
SET_ASIDE = re.compile(r"(ipam|ledger)\.sqlite\.\w+-\d{8}T\d{6}(-wal|-shm)?")
SWITCHES = ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding")

Pods = Mapping[str, Sandbox]
Links = dict[str, set[str]]
"""Addresses by the host's end of their pod's link."""


class Invariants:
    """Of one node. The rules are right as they are now, which is before the first pod.

    Attributes:
        rules: the skeleton that the document's rules have.
        blackholes: ranges for whose unused addresses there is a route to nowhere.
        has_limits: whether the document limits every pod.
    """

    def __init__(
        self,
        node: LabNode,
        kernel: Kernel,
        foreign: Foreign,
        verb: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._node = node
        self.kernel = kernel
        self._foreign = foreign
        self._verb = verb
        self.has_limits = True
        self.rules, self.blackholes = kernel.rules().skeleton, kernel.blackholes()

    def wrong(self, pods: Pods) -> str:
        """What is not as it has to be; empty if all is well."""
        try:
            listed = self._node.ask("pods")["attachments"]
        except NetmgrError as error:
            return error.message
        held = {item["pod"]: set(item["addresses"]) for item in listed}
        expected = {name: set(map(str, pod.addresses)) for name, pod in pods.items()}
        # Two attachments never hold one address (2), and nothing leaks.
        if held != expected or len(listed) != len(held):
            return f"attachments are {held}, not {expected}"
        links = {item["host_link"]: set(item["addresses"]) for item in listed}
        faults = chain(
            [self.miscounting(pods)],
            self._programs(links),
            self._wiring(links),
            self._limits(links),
            self._state(links),
            [self._foreign.wrong()],
            self._checks(pods),
        )
        return next(filter(None, faults), "")

    def miscounting(self, pods: Pods) -> str:
        """Rules are a function of role, plan and attachments (7 and 10); what differs from it."""
        found = self.kernel.rules()
        if found.skeleton != self.rules:
            missing = [one for one in self.rules if one not in found.skeleton]
            more = [one for one in found.skeleton if one not in self.rules]
            return f"rules: {missing} are missing, {more} too many"
        addresses = {str(address) for pod in pods.values() for address in pod.addresses}
        for name, elements in found.members.items():
            wanted = {a for a in addresses if (":" in a) is name.endswith("6")}
            # A sender is a link and an address.
            if name.startswith(("pod_", "senders")) and {e.split()[-1] for e in elements} != wanted:
                return f"{name} has {elements}, not {wanted}"
            if name.startswith("ledger_mark") and len(elements) != 1:
                return f"marks: {elements}"
        return ""

    def _programs(self, links: Links) -> Iterator[str]:
        """Each pod's link has one each way where links count, and none elsewhere."""
        wanted = 0 if self.kernel.has_counting_sets else 2
        for link in links:
            if len(filters := self.kernel.filters(link)) != wanted:
                yield f"{link} has the programs {filters}"

    def _wiring(self, held: Links) -> Iterator[str]:
        links, routes = self.kernel.links(), self.kernel.routes()
        if links.keys() != held.keys():
            yield f"links are {set(links)}, not {set(held)}"
        if addresses := self.kernel.addresses():
            yield f"pods' links have {addresses}"
        wanted = {address: link for link, addresses in held.items() for address in addresses}
        if routes != wanted:
            yield f"routes are {routes}, not {wanted}"
        if missing := set(wanted.items()) - self.kernel.neighbours():
            yield f"neighbours are missing: {missing}"
        if (found := self.kernel.blackholes()) != self.blackholes:
            yield f"blackholes are {found}"
        for name, link in links.items():
            if not {"UP", "NOARP"} <= set(link["flags"]) or link["operstate"] != "UP":
                yield f"{name} is {link['flags']} {link['operstate']}"
            if not link.get("ifalias", "").startswith("netmgr "):
                yield f"{name} has the alias {link.get('ifalias')}"

    def _limits(self, links: Links) -> Iterator[str]:
        if wrong := {k: v for k, v in self.kernel.settings(links).items() if v != "0"}:
            yield f"settings of pods' links: {wrong}"
        if self.has_limits and (unlimited := self.kernel.unlimited(links)):
            yield f"{unlimited} are not limited"
        if self.kernel.run("sysctl", "-n", *SWITCHES).split() != ["1", "1"]:
            yield "packets are not forwarded"
        # The one agent of this namespace (11).
        if f"{QUEUE} " not in self.kernel.run("cat", "/proc/net/netfilter/nfnetlink_queue"):
            yield "the agent does not hold its lock"

    def _state(self, links: Links) -> Iterator[str]:
        """Files hold what the agent holds, and nothing is left in their folders."""
        try:
            with self._copy("ipam.sqlite") as ipam, self._copy("ledger.sqlite") as ledger:
                held = {row[0] for row in ipam.execute("SELECT address FROM leases")}
                ledger.execute("SELECT subject FROM counter")
        except sqlite3.Error as error:
            yield f"the state cannot be read: {error}"
            return
        if held != set().union(*links.values()):
            yield f"the file holds {held}, the agent {links}"
        try:
            yield from self._left()
        except FileNotFoundError as error:
            yield f"{error.filename} is missing"

    def _left(self) -> Iterator[str]:
        paths = list(self._folder.iterdir())
        scratch = [path for path in paths if SCRATCH.fullmatch(path.name)]
        if len(scratch) > MOST_SCRATCH:
            yield f"killed writers left {scratch}"
        for path in paths:
            # What was set aside is kept for people, who remove it one day.
            if SET_ASIDE.fullmatch(path.name):
                path.unlink()
            elif path not in scratch and not STATE_FILES.fullmatch(path.name):
                yield f"{path.name} is left in the state directory"
        for path in (self._folder / "spool").iterdir():
            if path.name.endswith(REFUSED):
                path.unlink()
            else:
                yield f"a DEL waits: {path.name}"

    def _checks(self, pods: Pods) -> Iterator[str]:
        for sandbox in pods.values():
            try:
                with self._verb("CHECK"):
                    self._node.runtime.check(sandbox)
            except LabError as error:
                yield error.message

    def judge_remains(self, *, has_whole_limits: bool) -> None:
        """What a dead agent leaves is never ahead of its files (2 and 4), or of its other parts."""
        rules, routes = self.kernel.rules(), self.kernel.routes()
        with self._copy("ledger.sqlite") as ledger, self._copy("ipam.sqlite") as ipam:
            known = {row[0] for row in ledger.execute("SELECT subject FROM counter")}
            facts = dict(ledger.execute("SELECT key, value FROM fact"))
            held = {row[0] for row in ipam.execute("SELECT address FROM leases")}
        for name, elements in rules.members.items():
            if name.startswith("pod_"):
                assert elements <= known, f"{name} counts {elements - known}, unknown to the ledger"
        assert set(routes) <= held, f"{set(routes) - held} have routes and are not held"
        books, sequence = int(facts.get("books", "0"), 16), int(facts.get("sequence", "0"))
        for element in rules.members.get("ledger_mark6", ()):
            of, at = _mark_of(element)
            assert of != books or at <= sequence, "the kernel's mark is ahead of the ledger"
        if has_whole_limits:
            assert not (astray := self.kernel.astray()), f"packets are sent to no class: {astray}"

    def synced(self) -> int:
        """Bytes of the totals that a power cut leaves at least: the file without its log."""
        with self._copy("ledger.sqlite", is_alone=True) as alone:
            try:
                rows = alone.execute("SELECT sum(bytes) FROM total WHERE scope = 'namespace'")
                (found,) = rows.fetchone()
            except sqlite3.Error as error:
                raise AssertionError(f"the ledger is not on the disk: {error}") from error
        return found or 0

    @contextmanager
    def _copy(self, name: str, *, is_alone: bool = False) -> Iterator[sqlite3.Connection]:
        with tempfile.TemporaryDirectory() as folder:
            for suffix in ("",) if is_alone else ("", "-wal"):
                with suppress(FileNotFoundError):
                    shutil.copy(self._folder / f"{name}{suffix}", folder)
            with closing(sqlite3.connect(f"{folder}/{name}")) as copy:
                yield copy

    @property
    def _folder(self) -> Path:
        return self._node.directory / "state"


def _mark_of(element: str) -> tuple[int, int]:
    """Books and sequence of the ledger's mark, as an element of a set shows it."""
    text = json.loads(element)["prefix"]["addr"] if element.startswith("{") else element
    value = int(IPv6Address(text.partition("/")[0]))
    return value >> 64, value & (1 << 64) - 1
