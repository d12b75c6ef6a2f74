"""Services for the benchmark: as documents, and as rules of the form that kube-proxy's iptables
mode writes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from netmgr.documents.sites import ServiceRange

ENDPOINTS = 10
RANGE = ServiceRange(vip_range="10.96.0.0/16", service_cidr="10.96.0.0/16")
SPOKE = "10.64.0.0/10"


def write_documents(directory: Path, count: int) -> None:
    """One file for each Service and each EndpointSlice, as an informer leaves them."""
    for number in range(count):
        (directory / f"service-{number}.json").write_text(service_file(number), encoding="ascii")
        (directory / f"slice-{number}.json").write_text(
            slice_file(number, ENDPOINTS), encoding="ascii"
        )


def service_file(number: int) -> str:
    """A Service of one TCP port."""
    ports = [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}]
    metadata = {"name": f"s{number}", "namespace": "bench"}
    spec = {
        "clusterIP": _service_address(number),
        "clusterIPs": [_service_address(number)],
        "ports": ports,
    }
    return json.dumps({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})


def slice_file(number: int, endpoints: int) -> str:
    """The Service's EndpointSlice."""
    labels = {"kubernetes.io/service-name": f"s{number}"}
    conditions = {"ready": True, "serving": True, "terminating": False}
    return json.dumps(
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": f"s{number}-x", "namespace": "bench", "labels": labels},
            "addressType": "IPv4",
            "endpoints": [
                {"addresses": [_endpoint(number, one)], "conditions": conditions}
                for one in range(endpoints)
            ],
            "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        }
    )


def kube_proxy_rules(count: int) -> str:
    """All of it for `iptables-restore --noflush`."""
    chains = ["KUBE-SERVICES", "KUBE-MARK-MASQ"]
    rules = list(_entry_rules(count))
    for number in range(count):
        own, inner = _service_rules(number, ENDPOINTS)
        chains += own
        rules += inner
    head = ["-A PREROUTING -j KUBE-SERVICES", "-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000"]
    return _table(chains, [*head, *rules])


def kube_proxy_change(count: int, number: int) -> str:
    """One endpoint less of one Service: KUBE-SERVICES is written whole, of the other chains those
    that changed.
    """
    chains, rules = _service_rules(number, ENDPOINTS - 1)
    gone = _endpoint_chain(number, ENDPOINTS - 1)
    return _table(["KUBE-SERVICES", *chains, gone], [*_entry_rules(count), *rules, f"-X {gone}"])


def _entry_rules(count: int) -> Iterator[str]:
    return (
        f"-A KUBE-SERVICES -m comment --comment {_comment(number, ' cluster IP')} -m tcp -p tcp "
        f"-d {_service_address(number)} --dport 80 -j {_service_chain(number)}"
        for number in range(count)
    )


def _service_rules(number: int, endpoints: int) -> tuple[list[str], list[str]]:
    service, comment = _service_chain(number), _comment(number)
    chains = [service]
    rules = [
        (
            f"-A {service} -m comment --comment {_comment(number, ' cluster IP')} -m tcp -p tcp "
            f"-d {_service_address(number)} --dport 80 ! -s {SPOKE} -j KUBE-MARK-MASQ"
        )
    ]
    for one in range(endpoints):
        chain, address, left = _endpoint_chain(number, one), _endpoint(number, one), endpoints - one
        chains.append(chain)
        chance = f"-m statistic --mode random --probability {1 / left:.10f} " if left > 1 else ""
        rules += [
            (
                f"-A {service} -m comment --comment {_comment(number, f' -> {address}:8080')} "
                f"{chance}-j {chain}"
            ),
            f"-A {chain} -m comment --comment {comment} -s {address} -j KUBE-MARK-MASQ",
            (
                f"-A {chain} -m comment --comment {comment} -m tcp -p tcp -j DNAT "
                f"--to-destination {address}:8080"
            ),
        ]
    return chains, rules


def _table(chains: list[str], rules: list[str]) -> str:
    declared = [f":{chain} - [0:0]" for chain in chains]
    return "\n".join(["*nat", *declared, *rules, "COMMIT", ""])


def _comment(number: int, more: str = "") -> str:
    return f'"bench/s{number}:http{more}"'


def _service_chain(number: int) -> str:
    return f"KUBE-SVC-{_digest(f'bench/s{number}:httptcp')}"


def _endpoint_chain(number: int, one: int) -> str:
    return f"KUBE-SEP-{_digest(f'bench/s{number}:httptcp{_endpoint(number, one)}:8080')}"


def _digest(text: str) -> str:
    return base64.b32encode(hashlib.sha256(text.encode()).digest()).decode()[:16]


def _service_address(number: int) -> str:
    return f"10.96.{number >> 8}.{number & 255}"


def _endpoint(number: int, one: int) -> str:
    return f"10.{64 + number % 50}.{number // 50}.{one + 1}"
