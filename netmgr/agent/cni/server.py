"""A CNI request from its bytes to its answer, and the socket that launchers ask."""

from __future__ import annotations

import json
import logging
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate

from cni import installed
from cni.request import Request, Verb, parse_request, version_of
from cni.results import Json, error_result, version_result
from cni.wire import STARTED, decode_request, encode_reply, only_looks
from netmgr.agent.cni import spool
from netmgr.agent.cni.node import Node
from netmgr.agent.cni.repairs import Repairs
from netmgr.agent.core.components import PLUGIN, Agent, Component, PluginMissing
from netmgr.agent.core.files import Files, Made
from netmgr.agent.core.scheduler import Task
from netmgr.api.server import UnixServer
from netmgr.api.snapshot import (
    LATENCY_BUCKETS,
    Fault,
    Problem,
    RequestCount,
    RequestLatency,
    Snapshot,
)
from netmgr.errors import InvalidNetworkConfig, NetmgrError, NodeFull, NotReady, StateError

# Launchers wait for a successor only while the file is at most 60 s old.
HEARTBEAT_SECONDS = 10.0
"""How often the file is touched that shows launchers that an agent was there a moment ago."""

_VERBS = frozenset(Verb)
# Of nanoseconds since boot: three centuries.
_MOST_DIGITS = 19

log = logging.getLogger(__name__)


class Requests:
    """Figures of requests since the agent started. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, int]] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def answered(self, command: str, code: int, seconds: float) -> None:
        """Count a request: its CNI error code (0 for success) and how long it took."""
        with self._lock:
            self._counts[command, code] += 1
            buckets = self._buckets.setdefault(command, [0] * (len(LATENCY_BUCKETS) + 1))
            buckets[bisect_left(LATENCY_BUCKETS, seconds)] += 1
            self._sums[command] = self._sums.get(command, 0.0) + seconds

    def counts(self) -> list[RequestCount]:
        with self._lock:
            items = sorted(self._counts.items())
        return [
            {"command": command, "code": str(code), "count": count}
            for (command, code), count in items
        ]

    def latency(self) -> list[RequestLatency]:
        """Cumulative histograms by verb."""
        bounds = (*map(str, LATENCY_BUCKETS), "+Inf")
        with self._lock:
            return [
                {
                    "command": command,
                    "buckets": list(zip(bounds, accumulate(buckets), strict=True)),
                    "sum": self._sums[command],
                }
                for command, buckets in sorted(self._buckets.items())
            ]


class CniSocket(Component):
    """Answers what the launcher sends, and what it spooled while no agent was there."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._node, self._repairs = agent.get(Node), agent.get(Repairs)
        self._requests = Requests()
        self._serves = False
        self._spool_dir = agent.document.state_dir / "spool"
        self._heartbeat = agent.document.run_dir / "cni.heartbeat"
        # Made before the socket is served: while no agent answers, launchers write their DELs here.
        spool_dir = Made(self._spool_dir, self._make_spool)
        if spool_dir.is_lost():
            spool_dir.restore()
        agent.get(Files).keep(spool_dir)
        # As early as the document is known to be right: launchers may wait for the socket now.
        self._beat()

    def start(self) -> None:
        # `only_looks`: the launcher gives STATUS and CHECK 3 s, and a burst of ADDs may keep every
        # worker busy for longer.
        self._agent.get(Files).serve(
            UnixServer(self._agent.document.run_dir / "cni.sock", self.answer, is_quick=only_looks)
        )
        self._serves = True
        # Once more: a launcher that found no socket a moment ago spooled its DEL after the
        # reconcile pass.
        self._replay_spool()

    def stop(self) -> None:
        # Launchers wait for a successor, counted from now.
        self._beat()

    def tasks(self) -> Iterable[Task]:
        # Not only in `stop`: an agent that is killed says nothing any more.
        return (Task(self._beat, HEARTBEAT_SECONDS, delay=HEARTBEAT_SECONDS),)

    def _beat(self) -> None:
        self._agent.health.attempt("heartbeat", self._heartbeat.touch)

    def health(self, failing: Mapping[str, str]) -> None:
        super().health(failing)
        if not self._serves:
            raise NotReady("the agent is starting: its CNI socket does not listen yet")
        if PLUGIN in failing:
            raise PluginMissing(f"container runtimes do not find the plugin: {failing[PLUGIN]}")

    def problems(self) -> Iterable[Problem]:
        if message := self._agent.health.failing.get(PLUGIN):
            yield {"reason": Fault.PLUGIN, "message": message}

    def reconcile(self) -> None:
        self._replay_spool()
        # A runtime that does not find the plugin never asks here, so nothing else could notice.
        # In a pod, the plugin is installed once the socket listens.
        if self._serves:
            state_dir = self._agent.document.state_dir
            self._agent.health.attempt(PLUGIN, lambda: installed.check(state_dir))

    def _replay_spool(self) -> None:
        # The second is where launchers leave a DEL that the state's disk has no room for.
        folders = {self._spool_dir, self._agent.document.run_dir / "spool"}
        self._agent.health.attempt(
            "spool", lambda: spool.replay(folders, lambda message: self.serve(message)[0])
        )

    def _make_spool(self) -> None:
        try:
            self._spool_dir.mkdir(mode=0o700)
        except OSError as error:
            raise StateError(f"{self._spool_dir}: cannot be made: {error.strerror}") from None

    def snapshot(self, snapshot: Snapshot) -> None:
        snapshot["cni_requests"] = self._requests.counts()
        snapshot["cni_latency"] = self._requests.latency()

    def answer(self, message: bytes) -> bytes:
        """The reply to one request; errors become CNI error objects."""
        code, output = self.serve(message)
        return encode_reply(1 if code else 0, output)

    def serve(self, message: bytes) -> tuple[int, bytes]:
        """Carry out a request: its CNI error code, 0 for success, and what the launcher prints."""
        begin = time.monotonic()
        environment: Mapping[str, str] = {}
        # With this code a fault of ours is counted, which ends in another exception.
        stdin, code, output, fault = b"", NetmgrError.cni_code, b"", ""
        try:
            environment, stdin = decode_request(message)
            request = parse_request(environment, stdin)
            result = self._carry_out(request, _started_at(environment))
            code, output = 0, json.dumps(result).encode() if result else b""
        except NetmgrError as error:
            code, fault = error.cni_code, error.message
            output = json.dumps(error_result(version_of(stdin), error)).encode()
        finally:
            seconds = time.monotonic() - begin
            command = environment.get("CNI_COMMAND", "")
            # The label's values stay bounded, whatever a caller sends.
            self._requests.answered(command if command in _VERBS else "invalid", code, seconds)
        shown = (
            _shown(environment, "CNI_COMMAND", 12),
            _shown(environment, "CNI_CONTAINERID", 80),
            _shown(environment, "CNI_IFNAME", 16),
            code,
            seconds * 1000,
        )
        if code:
            log.warning(
                "request verb=%s container=%s ifname=%s code=%d ms=%.1f message=%s", *shown, fault
            )
        else:
            log.info("request verb=%s container=%s ifname=%s code=%d ms=%.1f", *shown)
        return code, output

    def _carry_out(self, request: Request, started_at: float) -> Json | None:
        if request.command is Verb.VERSION:
            return version_result(request.version)
        network = self._agent.document.network
        # A DEL has to succeed even after the network was renamed in node.yaml.
        if request.network != network and request.command is not Verb.DEL:
            raise InvalidNetworkConfig(
                f"name: this node's agent serves {network!r}, not {request.network!r}"
            )
        match request.command:
            case Verb.ADD:
                return self._node.add(request, started_at)
            case Verb.DEL:
                self._node.delete(request, started_at)
            case Verb.CHECK:
                self._node.check(request)
            case Verb.GC:
                self._repairs.collect_garbage(request, started_at)
            case Verb.STATUS:
                fault = self._agent.health_fault()
                # Whoever asks has found the plugin, whatever a configuration says by now.
                # containerd 2 asks every five seconds. An error makes the Node NotReady, which
                # evicts all pods after five minutes: pods that fill the node must not cause that.
                if fault and not isinstance(fault, (NodeFull, PluginMissing)):
                    raise fault
        return None


def _started_at(environment: Mapping[str, str]) -> float:
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    text = environment.get(STARTED, "")
    is_number = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    # A spooled request may come from an earlier boot, whose clock had gone further than ours.
    return min(now, int(text) / 1e9) if is_number else now


def _shown(environment: Mapping[str, str], name: str, longest: int) -> str:
    """A variable as a log line takes it: one word, whatever it holds."""
    value = environment.get(name, "-")[:longest]
    return value if value and all("!" <= character <= "~" for character in value) else ascii(value)
