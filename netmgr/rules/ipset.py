"""ipsets through netlink: the iptables backend's sets and the pods' counters.

pyroute2 speaks the protocol. It keeps one socket for every thread that ever used it, so one
thread of our own does all the speaking, and is asked once for everything about a pod. The
elements of a listing are read from the message's bytes, because turning 250 of them into
pyroute2's objects takes 5 ms.
"""

from __future__ import annotations

import errno
import hashlib
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyroute2 import IPSet
from pyroute2.netlink.exceptions import IPSetError
from pyroute2.netlink.nfnetlink.ipset import (
    IPSET_ERR_BUSY,
    IPSET_ERR_EXIST,
    IPSET_FLAG_LIST_SETNAME,
    IPSET_FLAG_WITH_COUNTERS,
)

from netmgr.errors import KernelError
from netmgr.prefixes import Address, Prefix
from netmgr.rules.model import SET_CAPACITY, Element, SetSpec

Batch = tuple[SetSpec, Iterable[Element]]
"""A set and elements of it."""

_IPSET_ERR_PRIVATE = 4096
"""From here on error numbers are ipset's own, not errno (<linux/netfilter/ipset/ip_set.h>)."""

# A set that a rule looks into cannot be destroyed; ipset has a number of its own for that.
_ERRNO_OF = {IPSET_ERR_BUSY: errno.EBUSY}

_BUSY_SECONDS, _BUSY_POLL_SECONDS = 2.0, 0.005
"""How long a set may be looked into after the last rule was deleted that did."""

_ATTRIBUTE = struct.Struct("=HH")
_MESSAGE_HEADER = 20
"""struct nlmsghdr and struct nfgenmsg."""
_TYPE_MASK = 0x3FFF
# IPSET_ATTR_* of <linux/netfilter/ipset/ip_set.h>.
_IP, _CIDR, _DATA, _ADT, _BYTES, _PACKETS = 1, 3, 7, 8, 24, 25


PREFIX = "netmgr-"
"""Every set of ours is called so, and no other."""

NAME_LENGTH = 31
"""The most characters a set's name has (IPSET_MAXNAMELEN, less the final zero)."""

_DIGEST_LENGTH = 8


@dataclass(frozen=True, slots=True)
class Member:
    """One element of a set with its counter, which is zero where the set keeps none."""

    element: Element
    bytes: int
    packets: int


@dataclass(frozen=True, slots=True)
class HeldSet:
    """A set as the kernel has it.

    The number rules know it by, and whether it is made as it should be.
    """

    index: int
    is_sound: bool
    members: tuple[Member, ...]


class IpSets:
    """The sets of ours. Thread-safe; all methods raise KernelError when the kernel refuses."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "ipset")
        self._socket = self._thread.submit(_call, "open an ipset socket", IPSet).result()

    def create(self, spec: SetSpec) -> None:
        """Make an empty set."""
        create = partial(
            self._socket.create,
            stype=_kind(spec),
            family=spec.family.af,
            counters=spec.counts is not None,
            maxelem=SET_CAPACITY,
        )
        name = kernel_name(spec.name)
        self._thread.submit(_call, f"ipset create {name}", create, name).result()

    def destroy(self, names: Iterable[str]) -> None:
        """Remove sets that no rule uses; one that is not there is no error."""
        self.destroy_orphans(map(kernel_name, names))

    def destroy_orphans(self, kernel_names: Iterable[str]) -> None:
        """What `destroy` does, for sets called by the kernel's names."""
        deadline = time.monotonic() + _BUSY_SECONDS
        for name in kernel_names:
            while True:
                try:
                    self._thread.submit(
                        _call,
                        f"ipset destroy {name}",
                        self._socket.destroy,
                        name,
                        fine=errno.ENOENT,
                    ).result()
                    break
                except KernelError as error:
                    # nf_tables lets go of what a deleted rule looked into in a work queue, a grace
                    # period later.
                    if error.errno != errno.EBUSY or time.monotonic() >= deadline:
                        raise
                    time.sleep(_BUSY_POLL_SECONDS)

    def add(self, batches: Iterable[Batch]) -> None:
        """Put elements in; one that is there keeps its counter."""

        def add_all() -> None:
            for spec, elements in batches:
                # Asked to overwrite, the kernel would zero a counter; refused, it keeps it. And
                # given no number, it gives a newcomer the count of whoever had its place in the
                # hash before.
                zero = {"packets": 0, "bytes": 0} if spec.counts is not None else {}
                self._change(spec, elements, "add", partial(self._socket.add, **zero))

        self._thread.submit(add_all).result()

    def delete(self, batches: Iterable[Batch]) -> None:
        """Take elements out; one that is not there is no error."""

        def delete_all() -> None:
            for spec, elements in batches:
                self._change(spec, elements, "del", self._socket.delete)

        self._thread.submit(delete_all).result()

    def look(self, specs: Iterable[SetSpec]) -> dict[str, HeldSet]:
        """Those of the sets that there are, with everything in them, by the model's name."""

        def look_at_all() -> dict[str, HeldSet]:
            listed = {spec: self._list(spec.name) for spec in specs}
            return {
                spec.name: _held(messages, spec) for spec, messages in listed.items() if messages
            }

        return self._thread.submit(look_at_all).result()

    def orphans(self, specs: Iterable[SetSpec]) -> frozenset[str]:
        """The kernel's names of the sets of ours that are none of these."""

        def names() -> list[str]:
            listed = _call(
                "ipset list", lambda: list(self._socket.list(flags=IPSET_FLAG_LIST_SETNAME))
            )
            return [message.get_attr("IPSET_ATTR_SETNAME") for message in listed]

        ours = [name for name in self._thread.submit(names).result() if name.startswith(PREFIX)]
        return frozenset(ours) - {kernel_name(spec.name) for spec in specs}

    def indexes(self, names: Iterable[str]) -> dict[str, int]:
        """The numbers rules know sets by, of those sets that there are."""

        def index_all() -> dict[str, int]:
            answers = {name: self._index(kernel_name(name)) for name in names}
            return {
                name: answer[0].get_attr("IPSET_ATTR_INDEX")
                for name, answer in answers.items()
                if answer
            }

        return self._thread.submit(index_all).result()

    def find(self, wanted: Iterable[tuple[SetSpec, Element]]) -> list[tuple[SetSpec, Member]]:
        """The elements asked for, as far as they exist.

        The kernel cannot be asked for one element, but finding it among the bytes is cheap.
        """

        def find_all() -> list[tuple[SetSpec, Member]]:
            found: list[tuple[SetSpec, Member]] = []
            for spec, element in wanted:
                for message in self._list(spec.name):
                    members = _members(_bytes(message), spec, element)
                    found += [(spec, member) for member in members]
            return found

        return self._thread.submit(find_all).result()

    def close(self) -> None:
        """Close the socket and end the thread."""
        self._thread.submit(self._socket.close).result()
        self._thread.shutdown()

    def _list(self, name: str) -> list[Any]:
        kernel = kernel_name(name)
        return (
            _call(
                f"ipset list {kernel}", lambda: list(self._socket.list(kernel)), fine=errno.ENOENT
            )
            or []
        )

    def _index(self, kernel: str) -> Any:  # noqa: ANN401 - pyroute2's messages
        ask = self._socket.get_set_byname
        return _call(f"ipset index of {kernel}", lambda: list(ask(kernel)), fine=errno.ENOENT)

    def _change(
        self, spec: SetSpec, elements: Iterable[Element], verb: str, change: Callable[..., object]
    ) -> None:
        name = kernel_name(spec.name)
        to_set = partial(
            change, name, family=spec.family.af, etype=_kind(spec).removeprefix("hash:")
        )
        for element in sorted(elements):
            _call(
                f"ipset {verb} {name} {element}",
                lambda one=element: to_set(str(one)),
                # The same number says that an element to add is there, and that one to delete is
                # not.
                fine=IPSET_ERR_EXIST,
            )


def _call(what: str, call: Callable[..., Any], *arguments: object, fine: int = 0) -> Any:  # noqa: ANN401 - as pyroute2
    """What `call` returns, or None if the kernel refuses it with the error that is `fine`."""
    try:
        return call(*arguments)
    except IPSetError as error:
        if error.code == fine:
            return None
        known = error.code if error.code < _IPSET_ERR_PRIVATE else _ERRNO_OF.get(error.code, 0)
        raise KernelError(what, known, details=str(error.args[-1])) from None
    except OSError as error:
        raise KernelError(what, error.errno or 0, details=str(error)) from None


def _held(messages: list[Any], spec: SetSpec) -> HeldSet:
    header = messages[0]
    data = header.get_attr("IPSET_ATTR_DATA")
    counting = bool((data.get_attr("IPSET_ATTR_CADT_FLAGS") or 0) & IPSET_FLAG_WITH_COUNTERS)
    kind, family = header.get_attr("IPSET_ATTR_TYPENAME"), header.get_attr("IPSET_ATTR_FAMILY")
    size = data.get_attr("IPSET_ATTR_MAXELEM")
    made, wanted = (
        (kind, family, size, counting),
        (_kind(spec), spec.family.af, SET_CAPACITY, spec.counts is not None),
    )
    sound = made == wanted
    members = (
        [member for message in messages for member in _members(_bytes(message), spec)]
        if sound
        else []
    )
    return HeldSet(header.get_attr("IPSET_ATTR_INDEX"), sound, tuple(members))


def _kind(spec: SetSpec) -> str:
    return "hash:net" if spec.counts is None else "hash:ip"


def _bytes(message: Any) -> bytes:  # noqa: ANN401 - a pyroute2 message
    return bytes(message.data[message.offset : message.offset + message.length])


def _members(message: bytes, spec: SetSpec, only: Element | None = None) -> Iterator[Member]:
    # Most elements are ruled out by their bytes, without being taken to pieces.
    packed = only.packed if isinstance(only, Address) else b""
    for start, end in _listed(message):
        if message.find(packed, start, end) >= 0:
            member = _member(message, start, end, spec)
            if only is None or member.element == only:
                yield member


def _listed(message: bytes) -> Iterator[tuple[int, int]]:
    """Where each element of a listing begins and ends."""
    for kind, start, end in _attributes(message, _MESSAGE_HEADER, len(message)):
        if kind == _ADT:
            for _, first, last in _attributes(message, start, end):
                yield first, last


def _member(message: bytes, start: int, end: int, spec: SetSpec) -> Member:
    has = {kind: message[first:last] for kind, first, last in _attributes(message, start, end)}
    octets, packets = (int.from_bytes(has.get(kind, b""), "big") for kind in (_BYTES, _PACKETS))
    # Nested once more: the address is behind its own attribute header.
    value = int.from_bytes(has.get(_IP, b"")[_ATTRIBUTE.size :], "big")
    length = has[_CIDR][0] if _CIDR in has else spec.family.width
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


def kernel_name(name: str) -> str:
    """The ipset's name for a set of the model, for example `netmgr-pod-out4` for `pod_out4`.

    What would be too long, as the set of a site with a long name, ends in a digest instead.
    """
    whole = PREFIX + name.replace("_", "-")
    if len(whole) <= NAME_LENGTH:
        return whole
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{whole[: NAME_LENGTH - _DIGEST_LENGTH - 1]}-{digest}"
