"""ipsets through netlink: the iptables backend's sets and the pods' counters.

pyroute2 speaks the protocol; it keeps one socket for every thread that ever used it, so one
thread of our own does all the speaking. The elements of a listing are read from the
message's bytes, because turning 250 of them into pyroute2's objects takes 5 ms.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pyroute2 import IPSet
from pyroute2.netlink.exceptions import IPSetError
from pyroute2.netlink.nfnetlink.ipset import IPSET_ERR_EXIST, IPSET_FLAG_WITH_COUNTERS

from netmgr.errors import KernelError
from netmgr.prefixes import Address, Family, Prefix
from netmgr.rules.ipset_names import kernel_name
from netmgr.rules.model import SET_CAPACITY, Element, SetSpec

Result = TypeVar("Result")

_ENOENT = 2
_IPSET_ERR_PRIVATE = 4096
"""From here on error numbers are ipset's own, not errno (<linux/netfilter/ipset/ip_set.h>)."""

_AF = {Family.V4: socket.AF_INET, Family.V6: socket.AF_INET6}
_ATTRIBUTE = struct.Struct("=HH")
_MESSAGE_HEADER = 20
"""struct nlmsghdr and struct nfgenmsg."""
_TYPE_MASK = 0x3FFF
# IPSET_ATTR_* of <linux/netfilter/ipset/ip_set.h>.
_IP, _CIDR, _DATA, _ADT, _BYTES, _PACKETS = 1, 3, 7, 8, 24, 25


@dataclass(frozen=True, slots=True)
class Member:
    """One element of a set with its counter, which is zero where the set keeps none."""

    element: Element
    bytes: int
    packets: int


class IpSets:
    """The sets of ours. Thread-safe; all methods raise KernelError when the kernel refuses."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "ipset")
        self._socket = self._run("open an ipset socket", IPSet)

    def create(self, spec: SetSpec) -> None:
        """Make an empty set."""
        counting = spec.counts is not None
        self._run(
            f"ipset create {kernel_name(spec.name)}",
            self._socket.create,
            kernel_name(spec.name),
            stype=_kind(spec),
            family=_AF[spec.family],
            counters=counting,
            maxelem=SET_CAPACITY,
        )

    def destroy(self, name: str) -> None:
        """Remove a set that no rule uses; one that is not there is no error."""
        self._run(f"ipset destroy {kernel_name(name)}", self._socket.destroy, kernel_name(name), ignore=(_ENOENT,))

    def add(self, spec: SetSpec, elements: Iterable[Element]) -> None:
        """Put elements in; one that is there keeps its counter."""
        # Told to overwrite, the kernel would zero the counter; refused, it keeps it. And told no
        # number, it would give a newcomer the count of whoever had its place in the hash before.
        zero = {"packets": 0, "bytes": 0} if spec.counts is not None else {}
        self._each("add", spec, elements, partial(self._socket.add, **zero))

    def delete(self, spec: SetSpec, elements: Iterable[Element]) -> None:
        """Take elements out; one that is not there is no error."""
        self._each("del", spec, elements, self._socket.delete)

    def index(self, name: str) -> int | None:
        """The number rules know the set by, or None if there is no such set."""
        answer = self._run(
            f"ipset index of {kernel_name(name)}",
            lambda: list(self._socket.get_set_byname(kernel_name(name))),
            ignore=(_ENOENT,),
        )
        return int(answer[0].get_attr("IPSET_ATTR_INDEX")) if answer else None

    def is_made_as(self, spec: SetSpec) -> bool:
        """Whether the set, which is there, has the type, family and size that `spec` means."""
        header = self._list(spec.name)[0]
        data = header.get_attr("IPSET_ATTR_DATA")
        counting = bool((data.get_attr("IPSET_ATTR_CADT_FLAGS") or 0) & IPSET_FLAG_WITH_COUNTERS)
        made = (
            header.get_attr("IPSET_ATTR_TYPENAME"),
            header.get_attr("IPSET_ATTR_FAMILY"),
            data.get_attr("IPSET_ATTR_MAXELEM"),
            counting,
        )
        return made == (_kind(spec), _AF[spec.family], SET_CAPACITY, spec.counts is not None)

    def members(self, spec: SetSpec, only: Address | None = None) -> list[Member]:
        """The set's elements, or the one asked for; none if there is no such set.

        The kernel cannot be asked for one element, but finding it among the bytes is cheap.
        """
        return [member for message in self._list(spec.name) for member in _members(_bytes(message), spec, only)]

    def close(self) -> None:
        """Close the socket and end the thread."""
        self._thread.submit(self._socket.close).result()
        self._thread.shutdown()

    def _list(self, name: str) -> list[Any]:
        return (
            self._run(
                f"ipset list {kernel_name(name)}",
                lambda: list(self._socket.list(kernel_name(name))),
                ignore=(_ENOENT,),
            )
            or []
        )

    def _each(self, verb: str, spec: SetSpec, elements: Iterable[Element], change: Callable[..., Any]) -> None:
        name, kind = kernel_name(spec.name), _kind(spec).removeprefix("hash:")
        for element in sorted(elements):
            self._run(
                f"ipset {verb} {name} {element}",
                change,
                name,
                str(element),
                family=_AF[spec.family],
                etype=kind,
                ignore=(IPSET_ERR_EXIST,),
            )

    def _run(
        self,
        what: str,
        call: Callable[..., Result],
        *arguments: object,
        ignore: tuple[int, ...] = (),
        **options: object,
    ) -> Any:  # noqa: ANN401 - pyroute2 is untyped; callers name the type
        try:
            return self._thread.submit(call, *arguments, **options).result()
        except IPSetError as error:
            if error.code in ignore:
                return None
            known = error.code if error.code < _IPSET_ERR_PRIVATE else 0
            raise KernelError(what, known, details=str(error.args[-1])) from None
        except OSError as error:
            raise KernelError(what, error.errno or 0, details=str(error)) from None


def _kind(spec: SetSpec) -> str:
    return "hash:net" if spec.counts is None else "hash:ip"


def _bytes(message: Any) -> bytes:  # noqa: ANN401 - a pyroute2 message
    return bytes(message.data[message.offset : message.offset + message.length])


def _members(message: bytes, spec: SetSpec, only: Address | None) -> Iterator[Member]:
    for kind, start, end in _attributes(message, _MESSAGE_HEADER, len(message)):
        if kind == _ADT:
            for _, first, last in _attributes(message, start, end):
                if only is None or message.find(only.packed, first, last) >= 0:
                    member = _member(message, first, last, spec)
                    if only is None or member.element == only:
                        yield member


def _member(message: bytes, start: int, end: int, spec: SetSpec) -> Member:
    value, length, octets, packets = 0, spec.family.width, 0, 0
    for kind, first, last in _attributes(message, start, end):
        if kind == _IP:
            # Nested once more: the address stands behind its own attribute header.
            value = int.from_bytes(message[first + _ATTRIBUTE.size : last], "big")
        elif kind == _CIDR:
            length = message[first]
        elif kind == _BYTES:
            octets = int.from_bytes(message[first:last], "big")
        elif kind == _PACKETS:
            packets = int.from_bytes(message[first:last], "big")
    if spec.counts is None:
        return Member(Prefix(spec.family, value, length), octets, packets)
    return Member(Address(spec.family, value), octets, packets)


def _attributes(message: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Netlink attributes between two offsets: type, and where the payload begins and ends."""
    while start + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(message, start)
        if length < _ATTRIBUTE.size:
            return
        yield kind & _TYPE_MASK, start + _ATTRIBUTE.size, start + length
        start += -(-length // 4) * 4
