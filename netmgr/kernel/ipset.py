"""ipset's messages as bytes, and back (linux/netfilter/ipset/ip_set.h)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from netmgr.kernel import netlink
from netmgr.prefixes import Address, Family, Prefix

# The most characters a set's name has (IPSET_MAXNAMELEN, less the final zero).
NAME_LENGTH = 31

# From here on the kernel's numbers are ipset's own, and no errno.
PRIVATE_ERRORS = 4096
# A set is in use; an element to add is there, or one to delete is not.
ERROR_BUSY, ERROR_EXIST = 4100, 4103

_SUBSYSTEM = 6
# The kernel has it since 4.20.
_PROTOCOL = 7
_CREATE, _DESTROY, _LIST, _ADD, _DELETE = 2, 3, 7, 9, 10
_TYPE = 13

_PROTOCOL_VERSION, _NAME, _TYPE_NAME, _REVISION, _FAMILY, _FLAGS, _DATA, _ELEMENTS = range(1, 9)
_IP, _CIDR, _CADT_FLAGS, _MAXELEM = 1, 3, 8, 19
_BYTES, _PACKETS = 24, 25
_ADDRESS = {Family.V4: 1, Family.V6: 2}
_LIST_NAMES, _WITH_COUNTERS = 1 << 1, 1 << 3
# NLA_F_NET_BYTEORDER, which the kernel insists on for numbers and addresses.
_BIG_ENDIAN = 0x4000
_HEADER_BYTES = 4


def _count(packets: int) -> dict[int, netlink.Value]:
    """A counter that has so many packets and no bytes."""
    return {_BYTES | _BIG_ENDIAN: bytes(8), _PACKETS | _BIG_ENDIAN: packets.to_bytes(8, "big")}


# What lists an element of a counting set of addresses.
_COUNTING_ELEMENT = {
    family: netlink.encoded({_DATA: {_IP: {kind: bytes(family.octets)}, **_count(0)}})
    for family, kind in _ADDRESS.items()
}


@dataclass(frozen=True, slots=True)
class SetKind:
    """What a set is made as; `type_name` as ipset(8) has it, `size` the most elements."""

    type_name: str
    family: Family
    size: int
    counts: bool


@dataclass(frozen=True, slots=True)
class Listed:
    """An element of a listing with its counter, which is zero where the set keeps none."""

    element: Prefix
    bytes: int
    packets: int


def _request(kind: int, text: str, values: netlink.Values, flags: int = 0) -> netlink.Operation:
    body = netlink.NFGENMSG.pack(0, 0, 0)
    body += netlink.encoded({_PROTOCOL_VERSION: bytes([_PROTOCOL]), **values})
    flags |= netlink.NLM_F_ACK
    return netlink.Operation(f"ipset {text}", _SUBSYSTEM << 8 | kind, flags, body)


def ask_revision(kind: SetKind) -> netlink.Operation:
    """Ask for the newest revision of a type of sets, which `revision_of` decodes."""
    values: netlink.Values = {_TYPE_NAME: kind.type_name, _FAMILY: bytes([kind.family.af])}
    return _request(_TYPE, f"revisions of {kind.type_name}", values)


def revision_of(body: bytes) -> int:
    return netlink.attributes(body, netlink.NFGENMSG.size)[_REVISION][0]


def create(name: str, kind: SetKind, revision: int) -> netlink.Operation:
    values: netlink.Values = {
        _NAME: name,
        _TYPE_NAME: kind.type_name,
        _REVISION: bytes([revision]),
        _FAMILY: bytes([kind.family.af]),
        _DATA: {
            _CADT_FLAGS | _BIG_ENDIAN: netlink.number(_WITH_COUNTERS) if kind.counts else None,
            _MAXELEM | _BIG_ENDIAN: netlink.number(kind.size),
        },
    }
    return _request(_CREATE, f"create {name}", values, netlink.NLM_F_EXCL)


def destroy(name: str) -> netlink.Operation:
    """Remove a set that nothing uses."""
    return _request(_DESTROY, f"destroy {name}", {_NAME: name})


def add(name: str, element: Address | Prefix, packets: int | None) -> netlink.Operation:
    """Put an element in, with a counter at `packets`; one that is there keeps its (ERROR_EXIST)."""
    # Without NLM_F_EXCL the kernel would zero the counter of one that is there. And given no
    # number, it gives a newcomer the count of whoever had its room in the hash before.
    data = {**_element(element), **({} if packets is None else _count(packets))}
    text = f"add {name} {element}"
    return _request(_ADD, text, {_NAME: name, _DATA: data}, netlink.NLM_F_EXCL)


def delete(name: str, element: Address | Prefix) -> netlink.Operation:
    """Take an element out; one that is not there is refused (ERROR_EXIST)."""
    values: netlink.Values = {_NAME: name, _DATA: _element(element)}
    return _request(_DELETE, f"del {name} {element}", values, netlink.NLM_F_EXCL)


def _element(element: Address | Prefix) -> dict[int, netlink.Value]:
    address = element if isinstance(element, Address) else element.network
    return {
        _IP: {_ADDRESS[element.family] | _BIG_ENDIAN: address.packed},
        _CIDR: bytes([element.length]) if isinstance(element, Prefix) else None,
    }


def list_set(name: str) -> netlink.Operation:
    """List a set with all its elements; `kind_of` and `listed` decode the messages."""
    return _request(_LIST, f"list {name}", {_NAME: name}, netlink.NLM_F_DUMP)


def list_names() -> netlink.Operation:
    """List all sets' names, which `name_of` decodes."""
    asked = {_FLAGS | _BIG_ENDIAN: netlink.number(_LIST_NAMES)}
    return _request(_LIST, "list", asked, netlink.NLM_F_DUMP)


def name_of(body: bytes) -> str:
    return netlink.string_of(netlink.attributes(body, netlink.NFGENMSG.size)[_NAME])


def kind_of(body: bytes) -> SetKind | None:
    """What a set was made as, by the first message of its listing; None for an odd family."""
    attributes = netlink.attributes(body, netlink.NFGENMSG.size)
    options = netlink.attributes(attributes.get(_DATA, b""))
    family = Family.of_af(attributes.get(_FAMILY, b"\0")[0])
    if family is None:
        return None
    return SetKind(
        netlink.string_of(attributes.get(_TYPE_NAME, b"")),
        family,
        int.from_bytes(options.get(_MAXELEM, b""), "big"),
        bool(int.from_bytes(options.get(_CADT_FLAGS, b""), "big") & _WITH_COUNTERS),
    )


def listed(body: bytes, only: bytes = b"") -> Iterator[Listed]:
    """The elements in a message of a listing; with `only`, those that contain these bytes."""
    for kind, elements in netlink.each_attribute(body, netlink.NFGENMSG.size):
        if kind != _ELEMENTS:
            continue
        for _, element in netlink.each_attribute(elements):
            # Most are ruled out by their bytes, without being taken to pieces.
            if only in element:
                yield _listed(element)


def counts_of(body: bytes, family: Family) -> list[netlink.Counted]:
    """The counters in a message of a listing; keys are addresses in network byte order."""
    elements = netlink.attributes(body, netlink.NFGENMSG.size).get(_ELEMENTS, b"")
    counters = netlink.read_counters(elements, _COUNTING_ELEMENT[family], family.octets)
    if counters is not None:
        return counters
    members = listed(body)
    return [(member.element.network.packed, member.packets, member.bytes) for member in members]


def _listed(element: bytes) -> Listed:
    attributes = netlink.attributes(element)
    # Nested once more: the address is behind its own attribute header.
    address = Address.unpack(attributes[_IP][_HEADER_BYTES:])
    length = attributes[_CIDR][0] if _CIDR in attributes else address.family.width
    counts = (int.from_bytes(attributes.get(kind, b""), "big") for kind in (_BYTES, _PACKETS))
    return Listed(Prefix(address.family, address.value, length), *counts)
