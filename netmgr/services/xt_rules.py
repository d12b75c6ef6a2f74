"""Services as rules of the legacy tables: what stands in which chain, as bytes, and back.

    nat PREROUTING, OUTPUT ─► NETMGR-SERVICES
        -d 10.200.3.0/24                        -g NETMGR-B-<digest>     256 addresses' ServicePorts
            -d 10.200.3.7 -p tcp --dport 80     -g NETMGR-S-<digest>     counts its connections
                -m statistic 1/3                -j DNAT one endpoint each, the last one without a condition
                -m bpf the client's slots       -j DNAT the same, for a sticky ServicePort
    filter FORWARD, OUTPUT ─► NETMGR-REFUSED
        -d a seen range                         -j REJECT                what was not translated

A sticky rule's program hashes the client's address to one of 256 slots and looks its bit up
among the endpoint's own slots (linux/filter.h, linux/netfilter/xt_bpf.h); nothing is remembered
about clients, as `recent` would.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterator, Sequence

from netmgr.prefixes import Address, Family, Prefix
from netmgr.rules.xt_entries import LAYOUTS, assembled, extension, mask_of
from netmgr.services.model import Endpoint, Frontend, Protocol, ServicePort
from netmgr.services.slots import rendezvous

SERVICES = "NETMGR-SERVICES"
REFUSED = "NETMGR-REFUSED"
BUCKET_PREFIX, SERVICE_PREFIX = "NETMGR-B-", "NETMGR-S-"
JUMPED_FROM = {"nat": ("PREROUTING", "OUTPUT"), "filter": ("FORWARD", "OUTPUT")}
ENTRY_OF = {"nat": SERVICES, "filter": REFUSED}

_SLOTS = 256
_BUCKET_BITS = 8
_DESTINATION_AT = {Family.V4: 4, Family.V6: 16}
_SCTP_DESTINATION_PORTS = 0x02
_PROBABILITY_ONE = 0x80000000
_ADDRESS_AND_PORT = 3
_TCP_RESET = {Family.V4: 7, Family.V6: 6}
_PORT_UNREACHABLE = {Family.V4: 3, Family.V6: 4}
_BPF_INSTRUCTIONS = 64
_LD_ABS, _LD_IMM, _LDX_MEM, _LD_MEM, _ST, _TAX = 0x20, 0x00, 0x61, 0x60, 0x02, 0x07
_MUL_K, _RSH_K, _RSH_X, _AND_K, _XOR_X, _JEQ_K, _JA, _RET_A = 0x24, 0x74, 0x7C, 0x54, 0xAC, 0x15, 0x05, 0x16
_MIX = (0x9E3779B1, 0x85EBCA77)
_SOURCE_AT = {Family.V4: 12, Family.V6: 8}


def service_chain(seen: ServicePort) -> str:
    """Name of the chain that chooses an endpoint."""
    return SERVICE_PREFIX + _digest(str(seen))


def bucket(address: Address) -> Prefix:
    """The 256 addresses whose ServicePorts stand in one chain."""
    return Prefix(address.family, address.value >> _BUCKET_BITS << _BUCKET_BITS, address.family.width - _BUCKET_BITS)


def bucket_chain(prefix: Prefix) -> str:
    """Name of that chain."""
    return BUCKET_PREFIX + _digest(str(prefix))


def to_bucket(prefix: Prefix) -> bytes:
    """The rule that leads there."""
    return _entry(prefix, b"", None, extension(bucket_chain(prefix), bytes(4)), goto=True)


def to_service(seen: ServicePort) -> bytes:
    """The rule that leads to a ServicePort's chain."""
    ports = _ports(seen.protocol, seen.port)
    return _entry(seen.address.prefix, ports, seen.protocol, extension(service_chain(seen), bytes(4)), goto=True)


def endpoint_rules(seen: ServicePort, frontend: Frontend) -> list[bytes]:
    """The rules of a ServicePort's chain; none without endpoints."""
    everywhere = Prefix(seen.family, 0, 0)
    endpoints = sorted(frontend.endpoints)
    choosing = _by_client(seen.family, endpoints) if frontend.sticky else _by_chance(len(endpoints))
    return [
        _entry(everywhere, match, seen.protocol, _dnat(endpoint))
        for endpoint, match in zip(endpoints, choosing, strict=True)
    ]


def refusals(prefix: Prefix) -> list[bytes]:
    """The rules that refuse what goes to a seen range."""
    reset = extension("REJECT", struct.pack("=I", _TCP_RESET[prefix.family]))
    unreachable = extension("REJECT", struct.pack("=I", _PORT_UNREACHABLE[prefix.family]))
    return [_entry(prefix, b"", Protocol.TCP, reset), _entry(prefix, b"", None, unreachable)]


def seen_of(entry: bytes, family: Family, data: bytes) -> ServicePort | None:
    """The ServicePort that a rule of a bucket leads to, `data` being its match's; None if it is another rule."""
    (number,) = struct.unpack_from("=H", entry, LAYOUTS[family].protocol_at)
    try:
        protocol = Protocol(number)
    except ValueError:
        return None
    at = _DESTINATION_AT[family]
    address = Address(family, int.from_bytes(entry[at : at + family.width // 8], "big"))
    (port,) = struct.unpack_from("=H", data, 0 if protocol is Protocol.SCTP else 4)
    return ServicePort(address, protocol, port)


def endpoint_of(data: bytes, family: Family) -> Endpoint:
    """Where a DNAT rule leads, by its target's data."""
    raw, port = struct.unpack_from("!16s16xH", data, 4)
    return Endpoint(Address(family, int.from_bytes(raw[: family.width // 8], "big")), port)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _entry(to: Prefix, matches: bytes, protocol: Protocol | None, target: bytes, *, goto: bool = False) -> bytes:
    family = to.family
    head = bytearray(LAYOUTS[family].size)
    at, size = _DESTINATION_AT[family], family.width // 8
    head[at : at + size] = to.network.packed
    head[at + 2 * size : at + 3 * size] = mask_of(to)
    if protocol is not None:
        struct.pack_into("=H", head, LAYOUTS[family].protocol_at, protocol)
        head[LAYOUTS[family].flags_at] |= LAYOUTS[family].has_protocol
    if goto:
        head[LAYOUTS[family].flags_at] |= LAYOUTS[family].goto
    return assembled(head, matches, target, family)


def _ports(protocol: Protocol, port: int) -> bytes:
    if protocol is Protocol.SCTP:
        # struct xt_sctp_info: the source ports, chunks and chunks' flags after it stay zero, and are not looked at.
        data = struct.pack("=HH276xiII", port, port, 0, _SCTP_DESTINATION_PORTS, 0)
    else:
        data = struct.pack("=HHHH", 0, 0xFFFF, port, port) + bytes(4 if protocol is Protocol.TCP else 2)
    return extension(str(protocol), data)


def _dnat(endpoint: Endpoint) -> bytes:
    # struct nf_nat_range2, of either family since revision 2 (Linux 4.18), which iptables-save can read.
    address, port = endpoint.address.packed.ljust(16, b"\0"), struct.pack("!H", endpoint.port)
    return extension("DNAT", struct.pack("=I", _ADDRESS_AND_PORT) + 2 * address + 2 * port + bytes(4), revision=2)


def _by_chance(count: int) -> Iterator[bytes]:
    """Each rule takes its share of what the rules before it have left (struct xt_statistic_info)."""
    for left in range(count, 1, -1):
        yield extension("statistic", struct.pack("=HHI16x", 0, 0, round(_PROBABILITY_ONE / left)))
    if count:
        yield b""


def _by_client(family: Family, endpoints: Collection[Endpoint]) -> Iterator[bytes]:
    slots = rendezvous(endpoints, _SLOTS)
    bits = dict.fromkeys(endpoints, 0)
    for number, endpoint in enumerate(slots):
        bits[endpoint] |= 1 << number
    for endpoint in endpoints:
        program = _program(family, bits[endpoint])
        raw = b"".join(struct.pack("=HBBI", *step) for step in program).ljust(8 * _BPF_INSTRUCTIONS, b"\0")
        # struct xt_bpf_info_v1; the kernel keeps a pointer behind it.
        yield extension("bpf", struct.pack("=HHi", 0, len(program), 0) + raw + bytes(8), revision=1)


def _program(family: Family, bits: int) -> Sequence[tuple[int, int, int, int]]:
    """Classic BPF: whether the bit of the source address's slot is set."""
    at, words = _SOURCE_AT[family], family.width // 32
    steps = [(_LD_ABS, 0, 0, at)]
    for word in range(1, words):
        # The hash so far waits in X while the next word is loaded.
        steps += [(_MUL_K, 0, 0, _MIX[0]), (_TAX, 0, 0, 0), (_LD_ABS, 0, 0, at + 4 * word), (_XOR_X, 0, 0, 0)]
    for factor in _MIX:
        steps += [(_MUL_K, 0, 0, factor), (_TAX, 0, 0, 0), (_RSH_K, 0, 0, 15), (_XOR_X, 0, 0, 0)]
    # The slot's upper three bits choose one of eight words, its lower five a bit in it.
    steps += [(_AND_K, 0, 0, _SLOTS - 1), (_ST, 0, 0, 0), (_AND_K, 0, 0, 31), (_ST, 0, 0, 1)]
    steps += [(_LD_MEM, 0, 0, 0), (_RSH_K, 0, 0, 5), (_LDX_MEM, 0, 0, 1)]
    for number in range(8):
        left = 3 * (7 - number)
        steps += [(_JEQ_K, 0, 2, number), (_LD_IMM, 0, 0, bits >> 32 * number & 0xFFFFFFFF), (_JA, 0, 0, left)]
    return [*steps, (_RSH_X, 0, 0, 0), (_AND_K, 0, 0, 1), (_RET_A, 0, 0, 0)]
