"""The layout of Services in nftables: table `inet netmgr-services`.

    prerouting, output ─► v4, v6
        address . protocol . port  in vip4, which counts the ServicePort's connections,
                                   vmap services4               ─► any4-N, client4-N or refused
        address in a range of VIPs                              ─► refused
    any4-N:     dnat to (address . protocol . port . random number below N)      map endpoints4
    client4-N:  dnat to (address . protocol . port . hash of the client's, < N)  map endpoints4
    refused:    TCP reset, or ICMP port unreachable

and likewise for IPv6. A connection's first packet pays for three look-ups, however many
Services there are; a change of endpoints for the elements that differ. When the number of a
Service's slots changes, the kernel walks all of `services4` for a loop of chains: 10 ms for 10,000
Services. (A number as its data, looked up again for its chain, would spare that; but what comes
out of a map has no length for libnftables 1.0.6, and on looking it up again it ends its process,
an administrator's `nft list ruleset` as well as our agent.) The chains come before kube-proxy's:
where a host has both, the first one to translate has done so.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

from netmgr.kernel.nf_tables import (
    GOTO,
    JUMP,
    TYPE_VERDICT,
    Chain,
    Expression,
    SetSpec,
    goto,
    number,
    plain,
    target_of,
)
from netmgr.prefixes import Address, Family, Prefix
from netmgr.services.model import Endpoint, Frontend, Protocol, ServicePort
from netmgr.services.slots import rearranged, rendezvous, slot_count

TABLE = "netmgr-services"
REFUSED = "refused"
PRIORITY = -110
"""Just before destination translation's usual one (dstnat, -100)."""

_PREROUTING, _OUTPUT = 0, 3
_SOURCE_AT = {Family.V4: 12, Family.V6: 8}
_DESTINATION_AT = {Family.V4: 16, Family.V6: 24}
_TYPE_ADDRESS = {Family.V4: 7, Family.V6: 8}
_TYPE_PROTOCOL, _TYPE_PORT, _TYPE_MARK = 12, 13, 19
_TYPE_BITS = 6
_NETWORK, _TRANSPORT = 1, 2
_META_NFPROTO, _META_L4PROTO = 15, 16
_DNAT, _NAT_FLAGS_ADDRESS_AND_PORT = 1, 3
_REJECT_TCP_RESET, _REJECT_ICMPX, _PORT_UNREACHABLE = 1, 2, 1
_STICKY = 1 << 16
_CLIENT = "client"
_FREE_WORD = 12
"""Of the sixteen that registers have, the first of four that no key needs."""
_HASH_SEED = 0x6E6D
_TAIL = struct.Struct("!B3xH2x")
_SLOT = struct.Struct("=I")
_PORT = struct.Struct("!H2x")
_PROTOCOLS = frozenset(Protocol)

Slots = tuple[Endpoint, ...]


def key(vip: ServicePort) -> bytes:
    """The key of a ServicePort in the sets `vip4`, `vip6` and `services`."""
    return vip.address.packed + _TAIL.pack(vip.protocol, vip.port)


def service_port_of(raw: bytes) -> ServicePort | None:
    """The ServicePort of a key, or of the beginning of an endpoint's.

    None for a protocol that Services do not have: another program put the element there.
    """
    family = Family.V4 if len(raw) < key_length(Family.V6) else Family.V6
    size = family.octets
    protocol, port = _TAIL.unpack_from(raw, size)
    if protocol not in _PROTOCOLS:
        return None
    return ServicePort(Address.unpack(raw[:size]), Protocol(protocol), port)


def key_length(family: Family) -> int:
    """Bytes of a ServicePort's key; an endpoint's has its slot behind."""
    return family.octets + _TAIL.size


def slot_key(service_key: bytes, slot: int) -> bytes:
    """The key of a slot in `endpoints`."""
    return service_key + _SLOT.pack(slot)


def slot_of(raw: bytes) -> int:
    """The slot's number in the key of an endpoint."""
    (slot,) = _SLOT.unpack_from(raw, len(raw) - _SLOT.size)
    return int(slot)


def endpoint_data(endpoint: Endpoint) -> bytes:
    """A slot's data."""
    return plain(endpoint.address.packed + _PORT.pack(endpoint.port))


def endpoint_of(data: bytes) -> Endpoint:
    """The endpoint of a slot's data, as it is listed."""
    value = data[4:]
    family = Family.V4 if len(value) < Family.V6.octets else Family.V6
    size = family.octets
    (port,) = _PORT.unpack_from(value, size)
    return Endpoint(Address.unpack(value[:size]), port)


def vip_set(family: Family) -> str:
    """Name of the set that counts connections."""
    return f"vip{family.value}"


def service_map(family: Family) -> str:
    """Name of the map from a ServicePort to the chain that chooses its slot."""
    return f"services{family.value}"


def endpoint_map(family: Family) -> str:
    """Name of the map from a slot to its endpoint."""
    return f"endpoints{family.value}"


def sets() -> Iterator[SetSpec]:
    """Every set and map."""
    for family in Family:
        address = _TYPE_ADDRESS[family]
        vip = (address << _TYPE_BITS | _TYPE_PROTOCOL) << _TYPE_BITS | _TYPE_PORT
        length = key_length(family)
        yield SetSpec(vip_set(family), vip, length, counts=True)
        yield SetSpec(service_map(family), vip, length, TYPE_VERDICT, 0)
        slot = vip << _TYPE_BITS | _TYPE_MARK
        yield SetSpec(
            endpoint_map(family),
            slot,
            length + _SLOT.size,
            address << _TYPE_BITS | _TYPE_PORT,
            family.octets + _PORT.size,
        )


def slots(frontend: Frontend, held: Sequence[Endpoint]) -> Slots:
    """The slots of a ServicePort, as like `held` as can be."""
    if frontend.sticky:
        return rendezvous(frontend.endpoints, slot_count(len(frontend.endpoints)))
    return rearranged(held, frontend.endpoints)


def elements(vip: ServicePort, held: Slots) -> Iterator[tuple[bytes, bytes]]:
    """All slots of a ServicePort as elements."""
    service_key = key(vip)
    return (
        (slot_key(service_key, slot), endpoint_data(endpoint)) for slot, endpoint in enumerate(held)
    )


def choice(slot_count: int, *, sticky: bool) -> int:
    """How a slot is chosen, as a number: among how many, and whether by the client; 0 refuses."""
    return slot_count | (_STICKY if sticky and slot_count else 0)


def is_sticky(chosen: int) -> bool:
    """Whether that number says that the slot is chosen by the client."""
    return bool(chosen & _STICKY)


def choice_data(family: Family, chosen: int) -> bytes:
    """A ServicePort's data."""
    return goto(chain_name(family, chosen))


def choice_of(data: bytes) -> int:
    """The choice that a ServicePort's data leads to, as it is listed."""
    head, _, count = target_of(data).partition("-")
    if not count.isdecimal():
        return 0
    return choice(int(count), sticky=head.startswith(_CLIENT))


def chain_name(family: Family, chosen: int) -> str:
    """Name of a choice's chain."""
    if not chosen:
        return REFUSED
    return f"{_CLIENT if is_sticky(chosen) else 'any'}{family.value}-{chosen & ~_STICKY}"


def fixed_chains(ranges: Iterable[Prefix]) -> Iterator[Chain]:
    """The chains that are always there; those that others lead to come first."""
    # A jump needs its target, so the chains that others lead to come first.
    yield Chain(REFUSED, _refusals())
    known = tuple(ranges)
    for family in Family:
        yield Chain(
            f"v{family.value}",
            tuple(_lookups(family, [one for one in known if one.family is family])),
        )
    # Output, too, since the host's own connections pass no prerouting.
    into = tuple((*_is_of(family), _verdict(f"v{family.value}", JUMP)) for family in Family)
    yield Chain("prerouting", into, (_PREROUTING, PRIORITY))
    yield Chain("output", into, (_OUTPUT, PRIORITY))


def translating_chain(name: str) -> Chain:
    """The chain of a name that `chain_name` gave."""
    head, _, count = name.partition("-")
    family = Family(int(head[-1]))
    words = family.width // 32
    # The slot is put behind the key that the registers hold, and the endpoint is then loaded over
    # both: the key is no longer needed.
    slot, address, port = _register(words + 2), _register(0), _register(words)
    drawing = _by_client if head.startswith(_CLIENT) else _by_chance
    endpoint = Expression(
        "lookup", {1: endpoint_map(family).encode() + b"\0", 2: number(address), 3: number(address)}
    )
    # NFTA_NAT_TYPE, FAMILY, REG_ADDR_MIN and MAX, REG_PROTO_MIN and MAX, FLAGS.
    values = (_DNAT, family.af, address, address, port, port, _NAT_FLAGS_ADDRESS_AND_PORT)
    nat = Expression("nat", {kind: number(value) for kind, value in enumerate(values, 1)})
    return Chain(
        name, ((*_vip_in_registers(family), *drawing(family, slot, int(count)), endpoint, nat),)
    )


def _by_chance(_: Family, slot: int, count: int) -> Iterator[Expression]:
    # NFTA_NG_DREG, MODULUS, TYPE (random).
    yield Expression("numgen", {1: number(slot), 2: number(count), 3: number(1)})


def _by_client(family: Family, slot: int, count: int) -> Iterator[Expression]:
    source, size = _register(_FREE_WORD), family.octets
    yield _payload(source, _NETWORK, _SOURCE_AT[family], size)
    # NFTA_HASH_SREG, DREG, LEN, MODULUS, SEED.
    # The seed is fixed, so that a client keeps its slot across restarts and on every NAT host.
    values = (source, slot, size, count, _HASH_SEED)
    yield Expression("hash", {kind: number(value) for kind, value in enumerate(values, 1)})


def _lookups(family: Family, ranges: Iterable[Prefix]) -> Iterator[tuple[Expression, ...]]:
    steps = _vip_in_registers(family)
    # The first look-up counts. A nat chain gets the first packet of a connection alone, so
    # connections are counted. The second one leaves the chain.
    counting = Expression("lookup", {1: vip_set(family).encode() + b"\0", 2: number(1)})
    into_verdict = {1: service_map(family).encode() + b"\0", 2: number(1), 3: number(0)}
    yield *steps, counting, Expression("lookup", into_verdict)
    size = family.octets
    for prefix in ranges:
        mask = ((1 << family.width) - prefix.size).to_bytes(size, "big")
        yield (
            *_is_of(family),
            _payload(1, _NETWORK, _DESTINATION_AT[family], size),
            Expression(
                "bitwise",
                {
                    1: number(1),
                    2: number(1),
                    3: number(size),
                    4: plain(mask),
                    5: plain(bytes(size)),
                },
            ),
            _equals(1, prefix.network.packed),
            _verdict(REFUSED),
        )


def _refusals() -> tuple[tuple[Expression, ...], ...]:
    tcp_reset = Expression("reject", {1: number(_REJECT_TCP_RESET)})
    unreachable = Expression("reject", {1: number(_REJECT_ICMPX), 2: bytes([_PORT_UNREACHABLE])})
    # Only TCP has a reset.
    return (_meta(_META_L4PROTO, 1), _equals(1, bytes([Protocol.TCP])), tcp_reset), (unreachable,)


def _is_of(family: Family) -> tuple[Expression, Expression]:
    """A condition on the packet; with it nft can tell which header's fields the rest is about."""
    return _meta(_META_NFPROTO, 1), _equals(1, bytes([family.af]))


def _vip_in_registers(family: Family) -> tuple[Expression, ...]:
    """Load destination address, protocol and destination port as a key."""
    words = family.width // 32
    return (
        *_is_of(family),
        _payload(_register(0), _NETWORK, _DESTINATION_AT[family], family.octets),
        _meta(_META_L4PROTO, _register(words)),
        _payload(_register(words + 1), _TRANSPORT, 2, 2),
    )


def _register(word: int) -> int:
    """The number of a 32-bit register as the kernel lists it."""
    # The kernel has sixteen registers of 32 bits, and lists four of them that begin a 128-bit one
    # under that one's old number (nft_dump_register).
    return 1 + word // 4 if word % 4 == 0 else 8 + word


def _payload(register: int, base: int, offset: int, length: int) -> Expression:
    return Expression(
        "payload", {1: number(register), 2: number(base), 3: number(offset), 4: number(length)}
    )


def _meta(what: int, register: int) -> Expression:
    return Expression("meta", {2: number(what), 1: number(register)})


def _equals(register: int, value: bytes) -> Expression:
    return Expression("cmp", {1: number(register), 2: number(0), 3: plain(value)})


def _verdict(chain: str, code: int = GOTO) -> Expression:
    return Expression("immediate", {1: number(0), 2: goto(chain, code)})
