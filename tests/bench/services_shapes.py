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
from netmgr.prefixes import Address, Prefix

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
                {"addresses": [endpoint_address(number, one)], "conditions": conditions}
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


def kube_proxy_nftables(vips: Prefix, count: int) -> str:
    """What kube-proxy's nftables mode writes for Services at these addresses, for `nft -f`.

    The form is that of its release 1.37, for a client outside of the cluster (`SPOKE`).
    """
    lines = [line.strip() for line in _KUBE_PROXY_BASE.strip().splitlines()]
    for number in range(count):
        vip = Address(vips.family, vips.value + number)
        chain = f"service-{_digest(f's{number}')[:8]}-bench/s{number}/tcp/http"
        endpoints = [endpoint_address(number, one) for one in range(ENDPOINTS)]
        choices = " , ".join(f"{one} : {ip} . 8080" for one, ip in enumerate(endpoints))
        drawn = f"numgen random mod {ENDPOINTS} map {{ {choices} }}"
        lines += [
            f"add chain ip kube-proxy {chain}",
            f"add rule ip kube-proxy {chain} meta l4proto tcp dnat ip addr . port to {drawn}",
            f"add element ip kube-proxy cluster-ips {{ {vip} }}",
            f"add element ip kube-proxy service-ips {{ {vip} . tcp . 80 : goto {chain} }}",
        ]
    for chain, rules in _kube_proxy_rules(vips).items():
        lines += [f"add rule ip kube-proxy {chain} {rule}" for rule in rules]
    return "\n".join([*lines, ""])


_PORT = "inet_proto . inet_service"
_KUBE_PROXY_BASE = f"""
    add table ip kube-proxy
    add set ip kube-proxy cluster-ips {{ type ipv4_addr ; }}
    add set ip kube-proxy nodeport-ips {{ type ipv4_addr ; }}
    add set ip kube-proxy hairpin-connections {{ type ipv4_addr . ipv4_addr . {_PORT} ; }}
    add map ip kube-proxy firewall-ips {{ type ipv4_addr . {_PORT} : verdict ; }}
    add map ip kube-proxy no-endpoint-services {{ type ipv4_addr . {_PORT} : verdict ; }}
    add map ip kube-proxy service-ips {{ type ipv4_addr . {_PORT} : verdict ; }}
    add map ip kube-proxy service-nodeports {{ type {_PORT} : verdict ; }}
    add chain ip kube-proxy cluster-ips-check
    add chain ip kube-proxy firewall-check
    add chain ip kube-proxy masquerading
    add chain ip kube-proxy services
    add chain ip kube-proxy service-endpoints-check
    add chain ip kube-proxy pre-dnat {{ type filter hook prerouting priority -110 ; }}
    add chain ip kube-proxy filter-forward {{ type filter hook forward priority 0 ; }}
    add chain ip kube-proxy nat-prerouting {{ type nat hook prerouting priority -100 ; }}
    add chain ip kube-proxy nat-postrouting {{ type nat hook postrouting priority 100 ; }}
"""
"""Of what it always writes, what forwarded packets meet."""


def _kube_proxy_rules(vips: Prefix) -> dict[str, list[str]]:
    """The rules that are the same whatever Services there are, by chain."""
    port = "meta l4proto . th dport"
    outsiders = f"ip daddr @cluster-ips ip saddr != {SPOKE}"
    hairpin = f"ip saddr . ip daddr . {port} @hairpin-connections"
    return {
        "pre-dnat": ["ct state new jump firewall-check"],
        "firewall-check": [f"ip daddr . {port} vmap @firewall-ips"],
        "nat-prerouting": ["jump services"],
        "services": [
            f"{outsiders} mark set mark or 0x4000",
            f"ip daddr . {port} vmap @service-ips",
            f"ip daddr @nodeport-ips {port} vmap @service-nodeports",
        ],
        "filter-forward": [
            "ct state new jump service-endpoints-check",
            "ct state new jump cluster-ips-check",
        ],
        "service-endpoints-check": [f"ip daddr . {port} vmap @no-endpoint-services"],
        "cluster-ips-check": ["ip daddr @cluster-ips reject", f"ip daddr {{ {vips} }} drop"],
        "nat-postrouting": ["jump masquerading"],
        "masquerading": [
            "mark and 0x4000 != 0 mark set mark xor 0x4000 masquerade fully-random",
            f"ct status dnat {hairpin} masquerade fully-random",
        ],
    }


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
        chain, address, left = (
            _endpoint_chain(number, one),
            endpoint_address(number, one),
            endpoints - one,
        )
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
    return f"KUBE-SEP-{_digest(f'bench/s{number}:httptcp{endpoint_address(number, one)}:8080')}"


def _digest(text: str) -> str:
    return base64.b32encode(hashlib.sha256(text.encode()).digest()).decode()[:16]


def _service_address(number: int) -> str:
    return f"10.96.{number >> 8}.{number & 255}"


def endpoint_address(number: int, one: int) -> str:
    """The address of one endpoint of a Service."""
    return f"10.{64 + number % 50}.{number // 50}.{one + 1}"
