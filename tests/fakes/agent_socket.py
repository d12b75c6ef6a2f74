"""An agent's read-only socket without the agent: service_cidr protocol, canned answers."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from netmgr.api.snapshot import (
    LATENCY_BUCKETS,
    AuditRatio,
    ChainSize,
    DroppedTotals,
    LimitState,
    NamespaceTotals,
    NatState,
    OriginTotals,
    PodTotals,
    PoolState,
    QuotaState,
    RangesState,
    RefusedTotals,
    RemotePod,
    RuleReading,
    Snapshot,
    WithdrawnAddress,
)
from netmgr.errors import NetmgrError
from netmgr.ledger.tables import Gap
from netmgr.model import Traffic
from netmgr.observer.cached_results import Reason
from netmgr.observer.reconcile_plan import ResultState

COMMANDS = ("ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION", "invalid")
HOOKS = (
    ("input", Traffic.INTERNET_IN),
    ("output", Traffic.INTERNET_OUT),
    ("forward", Traffic.INTERNET_IN),
    ("forward", Traffic.INTERNET_OUT),
)


def cni_codes() -> list[int]:
    """Success, and every code that an error of ours can have."""
    codes, pending = {0}, [NetmgrError]
    while pending:
        kind = pending.pop()
        codes.add(kind.cni_code)
        pending += kind.__subclasses__()
    return sorted(codes)


AREAS = ("rules", "wiring", "forwarding", "routes", "files", "limits")
SPOKES = 20
BYTES, PACKETS = 123_456_789_012, 87_654_321


def snapshot(pods: int = 250, namespaces: int = 20) -> Snapshot:
    """A busy dual-stack node's snapshot, in which everything that can occur has occurred."""
    return {
        "version": 1,
        "node": "node-1",
        "netmgr_version": "0.1.0",
        "backend": "nftables",
        "ready": True,
        "reason": "",
        "taken_at": 1_700_000_000.0,
        "started_at": 1_600_000_000.0,
        "pods": _pods(pods, namespaces),
        "namespaces": _namespaces(namespaces),
        "node_totals": [
            {"traffic": traffic, "bytes": BYTES, "packets": PACKETS} for traffic in Traffic
        ],
        "rules": _rules(),
        "chain_sizes": _chain_sizes(),
        "pool": _pool(),
        "ranges": _ranges(),
        "flowtable": {"links": 31, "off": "", "others": []},
        "limits": _limits(),
        "quotas": _quotas(),
        "connection_limits": [
            {"namespace": f"team-{number}", "pod": f"pod-{number}" if number else "", "dropped": 7}
            for number in range(12)
        ],
        "problems": [{"reason": "DriftReturns", "message": "rules were changed"}],
        "tracking": {
            "connections": 20_100,
            "most": 262_144,
            "pods": [
                {"namespace": "team-0", "pod": f"pod-{number}", "connections": 2000 - number}
                for number in range(10)
            ],
        },
        "longest_delay": 0.25,
        "result_files": [{"state": state, "count": 1} for state in (*Reason, *ResultState)],
        "cni_requests": [
            {"command": command, "code": str(code), "count": 5}
            for command in COMMANDS
            for code in cni_codes()
        ],
        "cni_latency": [
            {"command": command, "buckets": _buckets(), "sum": 0.0625} for command in COMMANDS
        ],
        "gaps": [{"reason": gap, "count": 0, "seconds": 0.5} for gap in Gap],
        "unattributed": [
            {"traffic": traffic, "bytes": 512, "packets": 4, "forwarded": BYTES}
            for traffic in Traffic
        ],
        "origins": _origins(),
        "remote_pods": _remote_pods(),
        "audit": _audit(),
        "drift_repaired": [{"reason": area, "count": 2} for area in AREAS],
        "state_rebuilds": 0,
        "durable": True,
        "role": "node",
        "isolation": _isolation(),
        "drops": _drops(),
        "undelivered": {"bytes": 528, "packets": 1},
        "protected": [
            one for one in _namespaces(namespaces) if one["traffic"] == Traffic.INTERNET_OUT
        ],
        "nat": _nat(),
    }


def _limits() -> list[LimitState]:
    pods = [("team-1", f"pod-{number}") for number in range(10)]
    return [
        {
            "namespace": namespace,
            "pod": pod,
            "traffic": traffic,
            "rate": 100_000_000,
            "bytes": BYTES,
            "packets": PACKETS,
            "delays": 70,
            "dropped_packets": 3,
            "backlog": 1514,
        }
        for namespace, pod in (*pods, ("team-1", ""), ("team-2", ""))
        for traffic in Traffic
    ]


def _quotas() -> list[QuotaState]:
    return [
        {
            "namespace": one["namespace"],
            "pod": one["pod"],
            "traffic": one["traffic"],
            "period": "month",
            "budget": 2 * BYTES,
            "used": BYTES,
            "until": 1_701_388_800,
            "spent": False,
            "forecast": BYTES + PACKETS,
        }
        for one in _limits()
    ]


def _ranges() -> RangesState:
    withdrawn: WithdrawnAddress = {"address": "10.0.0.9", "namespace": "research", "pod": "pod-1"}
    return {"source": "azure", "failing": "", "withdrawn": [withdrawn]}


def _pool(family: str, free: int) -> PoolState:
    return {"family": family, "allocated": 250, "cooldown": 3, "free": free}


def _pool() -> list[PoolState]:
    return [
        {"family": "ipv4", "allocated": 250, "cooldown": 3, "free": 253, "withdrawn": 1},
        {"family": "ipv6", "allocated": 250, "cooldown": 3, "free": 2**64, "withdrawn": 0},
    ]


def _origins() -> list[OriginTotals]:
    return [
        {"origin": origin, "traffic": traffic, "bytes": BYTES, "packets": PACKETS}
        for origin in ("pods", "host-pods", "node", "remote-pods", "unattributed")
        for traffic in Traffic
    ]


def _remote_pods() -> list[RemotePod]:
    return [
        {"address": f"10.9.0.{number}", "traffic": traffic, "bytes": BYTES, "packets": PACKETS}
        for number in range(100)
        for traffic in Traffic
    ]


def _audit() -> list[AuditRatio]:
    sides = ("forward", "links")
    return [
        {"against": against, "traffic": traffic, "ratio": 0.875}
        for against in sides
        for traffic in Traffic
    ]


def _drops() -> list[RefusedTotals]:
    reasons = ("spoofed", "forged", "link-local", "router", "redirect", "dhcp", "protected")
    return [{"reason": reason, "bytes": 7_200, "packets": 100} for reason in reasons]


def _isolation() -> list[DroppedTotals]:
    others = [f"spoke-{number}" for number in range(2, SPOKES + 1)]
    pairs = [pair for other in others for pair in (("spoke-1", other), (other, "spoke-1"))]
    return [
        {"origin": origin, "destination": to, "bytes": BYTES, "packets": PACKETS}
        for origin, to in pairs
    ]


def _nat() -> NatState:
    ranges = (("10.100.0.0/20", "10.96.0.0/20"), ("fd00:100::/112", "fd00:96::/112"))
    return {
        "source": "snat",
        "ranges": [
            {
                "vip_range": vip_range,
                "service_cidr": service_cidr,
                "bytes": BYTES,
                "packets": PACKETS,
            }
            for vip_range, service_cidr in ranges
        ],
        "ports": [
            {
                "family": family,
                "protocol": protocol,
                "budget": 64_512,
                "used": 16_128,
                "endpoint": "10.1.0.10:80",
            }
            for family in ("ipv4", "ipv6")
            for protocol in ("tcp", "udp", "sctp")
        ],
    }


def _pods(pods: int, namespaces: int) -> list[PodTotals]:
    return [
        {
            "namespace": f"team-{number % namespaces}",
            "pod": f"training-worker-{number}",
            "traffic": traffic,
            "bytes": BYTES + number,
            "packets": PACKETS + number,
            "live": True,
        }
        for number in range(pods)
        for traffic in Traffic
    ]


def _namespaces(namespaces: int) -> list[NamespaceTotals]:
    return [
        {
            "namespace": f"team-{number}",
            "traffic": traffic,
            "bytes": BYTES * 13,
            "packets": PACKETS * 13,
        }
        for number in range(namespaces)
        for traffic in Traffic
    ]


def _rules() -> list[RuleReading]:
    return [
        {
            "ip_version": version,
            "table": "mangle",
            "chain": chain,
            "rule": f"openai traffic={traffic}",
            "bytes": BYTES,
            "packets": PACKETS,
        }
        for version in "46"
        for chain, traffic in HOOKS
    ]


def _chain_sizes() -> list[ChainSize]:
    chains = [
        ("raw", "prerouting"),
        *(("mangle", chain) for chain in ("input", "forward", "output")),
    ]
    chains += [("mangle", "netmgr-forward"), ("nat", "postrouting")]
    return [
        {"ip_version": version, "table": table, "chain": chain, "rules": 2}
        for version in "46"
        for table, chain in chains
    ]


def _buckets() -> list[tuple[str, int]]:
    return [(str(bound), count) for count, bound in enumerate(LATENCY_BUCKETS)] + [
        ("+Inf", len(LATENCY_BUCKETS))
    ]


def canned(answer: object) -> Callable[[bytes], bytes]:
    """The same document, whatever is asked."""
    encoded = json.dumps(answer).encode()
    return lambda _question: encoded


@contextmanager
def agent(path: Path, answer: Callable[[bytes], bytes]) -> Iterator[None]:
    """Have `answer` answer lines at `path` for the length of the block."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(answer(self.rfile.readline()))

    with socketserver.ThreadingUnixStreamServer(str(path), Handler) as server:
        server.block_on_close = False
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            path.unlink()
