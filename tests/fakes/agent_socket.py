"""An agent's read-only socket without the agent: its protocol, canned answers."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import permutations, product
from pathlib import Path

from netmgr.api.snapshot import LATENCY_BUCKETS, LimitState, NamespaceTotals, Snapshot
from netmgr.errors import NetmgrError
from netmgr.ledger.tables import Gap
from netmgr.model import Traffic
from netmgr.observer.cached_results import IgnoreReason
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


AREAS = (
    "rules",
    "wiring",
    "deleted-links",
    "forwarding",
    "routes",
    "files",
    "limits",
    "connection-limits",
)
SPOKES = 20
CHAINS = (
    ("raw", "prerouting"),
    *(("mangle", chain) for chain in ("input", "forward", "output", "netmgr-forward")),
    ("nat", "postrouting"),
)
_OF_LINKS = ("spoofed", "forged", "fragments", "loopback", "link-local")
REFUSED = (*_OF_LINKS, "router", "redirect", "dhcp", "icmp", "protected")
MAPPED = (("10.100.0.0/20", "10.96.0.0/20"), ("fd00:100::/112", "fd00:96::/112"))
BUCKETS = [(str(bound), count) for count, bound in enumerate((*LATENCY_BUCKETS, "+Inf"))]
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
        "pods": [
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
        ],
        "namespaces": _namespaces(namespaces),
        "node_totals": [
            {"traffic": traffic, "bytes": BYTES, "packets": PACKETS} for traffic in Traffic
        ],
        "rules": [
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
        ],
        "chain_sizes": [
            {"ip_version": version, "table": table, "chain": chain, "rules": 2}
            for version in "46"
            for table, chain in CHAINS
        ],
        "pool": [
            {"family": "ipv4", "allocated": 250, "cooldown": 3, "free": 253, "withdrawn": 1},
            {"family": "ipv6", "allocated": 250, "cooldown": 3, "free": 2**64, "withdrawn": 0},
        ],
        "ranges": {
            "source": "azure",
            "failing": "",
            "withdrawn": [{"address": "10.0.0.9", "namespace": "research", "pod": "pod-1"}],
        },
        "flowtable": {"links": 31, "off": "", "others": []},
        "limits": _limits(),
        "quotas": [
            {
                "namespace": limit["namespace"],
                "pod": limit["pod"],
                "traffic": limit["traffic"],
                "period": "month",
                "budget": 2 * BYTES,
                "used": BYTES,
                "until": 1_701_388_800,
                "spent": False,
                "forecast": BYTES + PACKETS,
            }
            for limit in _limits()
        ],
        "budgets": {
            "epoch": 7,
            "enforced": True,
            "age": 3.5,
            "uses": [
                {
                    "budget": f"budget-{number}",
                    "traffic": "internet-in",
                    "limit": 8 * BYTES,
                    "sent": BYTES,
                    "is_quota": True,
                    "use": {"held": BYTES, "waiting": 3, "allowance": BYTES, "bytes": PACKETS},
                }
                for number in range(9)
            ],
            "throttled": [
                {"namespace": f"team-{number}", "budget": f"budget-{budget}", "seconds": 1.5}
                for number, budget in product(range(20), range(9))
            ],
        },
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
        "result_files": [{"state": state, "count": 1} for state in (*IgnoreReason, *ResultState)],
        "cni_requests": [
            {"command": command, "code": str(code), "count": 5}
            for command in COMMANDS
            for code in cni_codes()
        ],
        "cni_latency": [
            {"command": command, "buckets": BUCKETS, "sum": 0.0625} for command in COMMANDS
        ],
        "gaps": [{"reason": gap, "count": 0, "seconds": 0.5} for gap in Gap],
        "unattributed": [
            {"traffic": traffic, "bytes": 512, "packets": 4, "forwarded": BYTES}
            for traffic in Traffic
        ],
        "origins": [
            {"origin": origin, "traffic": traffic, "bytes": BYTES, "packets": PACKETS}
            for origin in ("pods", "host-pods", "node", "remote-pods", "unattributed")
            for traffic in Traffic
        ],
        "remote_pods": [
            {"address": f"10.9.0.{number}", "traffic": traffic, "bytes": BYTES, "packets": PACKETS}
            for number in range(100)
            for traffic in Traffic
        ],
        "audit": [
            {"against": against, "traffic": traffic, "ratio": 0.875}
            for against in ("forward", "links", "uplinks")
            for traffic in Traffic
        ],
        "drift_repaired": [{"reason": area, "count": 2} for area in AREAS],
        "state_rebuilds": 0,
        "durable": True,
        "role": "node",
        "isolation": [
            {"origin": origin, "destination": to, "bytes": BYTES, "packets": PACKETS}
            for number in range(2, SPOKES + 1)
            for origin, to in permutations(("spoke-1", f"spoke-{number}"))
        ],
        "drops": [{"reason": reason, "bytes": 7_200, "packets": 100} for reason in REFUSED],
        "protected": [
            total for total in _namespaces(namespaces) if total["traffic"] == Traffic.INTERNET_OUT
        ],
        "nat": {
            "source": "snat",
            "ranges": [
                {
                    "vip_range": vip_range,
                    "service_cidr": service_cidr,
                    "bytes": BYTES,
                    "packets": PACKETS,
                }
                for vip_range, service_cidr in MAPPED
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
        },
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
