"""Netlink: messages as bytes, and the socket that carries them (netlink(7)).

Why not pyroute2: wiring one pod is fifteen small messages. Encoding them takes 4 ms with it, here
0.1 ms, and that difference is most of an ADD.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from errno import ENOENT
from functools import cache
from typing import Self, TypeVar

from netmgr.errors import Ignoring, KernelError

NETLINK_NETFILTER = 12
NFGENMSG = struct.Struct(">BBH")
"""What every message of NETLINK_NETFILTER begins with: family, version, resource."""

SOL_NETLINK = 270
_NETLINK_CAP_ACK, _NETLINK_EXT_ACK, _NETLINK_GET_STRICT_CHK = 10, 11, 12
_SO_RCVBUFFORCE = 33

NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP_INTR, NLM_F_DUMP = 0x1, 0x4, 0x10, 0x300
# The same bits mean something else in each kind of message: in a request to add they modify it, in
# one to get they are NLM_F_DUMP, and in an acknowledgement they announce attributes (netlink(7)).
NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 0x100, 0x200, 0x400
NLM_F_ACK_TLVS = 0x200
ADD = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
REPLACE = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE
_NLMSG_NOOP, NLMSG_ERROR, NLMSG_DONE = 1, 2, 3

_NLA_F_NESTED = 0x8000
# The two upper bits of an attribute's type are flags: nested, and network byte order.
NLA_TYPE_MASK = 0x3FFF
_NLMSGERR_ATTR_MSG = 1
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_PADDING = (b"", b"\0\0\0", b"\0\0", b"\0")
_NUMBER = struct.Struct("=I")

# The kernel lists in buffers of at most 32 KiB, however much room there is (netlink_recvmsg).
_RECEIVE_BYTES = 1 << 17
_RECEIVE_SECONDS = 10
# Half of what may wait to be read, as the kernel doubles it (socket(7)). An answer about a link of
# many alternative names, which its pod chooses, takes 128 KiB.
_QUEUED_BYTES = 1 << 22
_MOST_REPEATS = 4
# Requests that are sent at once, to change something and to ask: the kernel answers all of them
# before one answer is read, and what finds no room is lost (ENOBUFS). An error takes some 800 bytes
# of the receive buffer, 208 KiB without CAP_NET_ADMIN, and most links 4 KiB.
_BATCH, _QUESTIONS = 100, 40

Decoded = TypeVar("Decoded")


@dataclass(frozen=True, slots=True)
class Operation:
    """One request to the kernel; `text` is how it reads in logs and errors."""

    text: str
    type: int
    flags: int
    body: bytes


def encode(operation: Operation, sequence: int, without: int = 0) -> bytes:
    """The operation as one netlink message, without these flags."""
    length = _HEADER.size + len(operation.body)
    flags = (operation.flags | NLM_F_REQUEST) & ~without
    return _HEADER.pack(length, operation.type, flags, sequence, 0) + operation.body


def messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Type, flags, sequence, body of each message in a datagram; KernelError if one is cut off."""
    offset = 0
    while offset < len(data):
        if offset + _HEADER.size > len(data):
            raise KernelError("read a netlink message", details="its header is cut off")
        length, kind, flags, sequence, _ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size or offset + length > len(data):
            left = len(data) - offset
            raise KernelError("read a netlink message", details=f"{length} bytes of {left}")
        yield kind, flags, sequence, data[offset + _HEADER.size : offset + length]
        # The length in a header leaves out the padding to the next multiple of four (NLMSG_ALIGN).
        offset += (length + 3) & ~3


def error_of(flags: int, body: bytes) -> tuple[int, str]:
    """(errno, the kernel's explanation) of an NLMSG_ERROR body; errno 0 is an acknowledgement."""
    if len(body) < struct.calcsize("=i"):
        raise KernelError("read a netlink acknowledgement", details="it is cut off")
    (negative,) = struct.unpack_from("=i", body)
    reason = b""
    if flags & NLM_F_ACK_TLVS:
        # NETLINK_CAP_ACK: of the refused request the kernel repeats the header alone.
        reason = attributes(body, 4 + _HEADER.size).get(_NLMSGERR_ATTR_MSG, b"")
    return -negative, string_of(reason)


def attributes(data: bytes, offset: int = 0) -> dict[int, bytes]:
    """Attributes by type from `offset` on; of a repeated type the last one."""
    return dict(each_attribute(data, offset))


def each_attribute(data: bytes, offset: int = 0) -> list[tuple[int, bytes]]:
    """Type and value of each attribute from `offset` on; KernelError if one is cut off."""
    # No generator: a link has forty attributes, and a node hundreds of links.
    pairs: list[tuple[int, bytes]] = []
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        # Half an address would be another one.
        if length < _ATTRIBUTE.size or offset + length > len(data):
            left = len(data) - offset
            raise KernelError("read a netlink attribute", details=f"{length} bytes of {left}")
        pairs.append((kind & NLA_TYPE_MASK, data[offset + _ATTRIBUTE.size : offset + length]))
        offset += (length + 3) & ~3
    return pairs


Counted = tuple[bytes, int, int]
"""One counter of a listing: its key, packets, bytes."""


def read_counters(listed: bytes, template: bytes, key_length: int) -> list[Counted] | None:
    """The counters in a list of items, if all are laid out as `template`; else None."""
    # An item has its key behind three headers, and at its end bytes and packets, 64 bits each. By
    # position, a listing takes a twentieth of the time.
    shape, expected = _shape(template, key_length)
    if len(listed) % shape.size:
        return None
    counters = [
        (key, packets, octets)
        for head, key, between, octets, last, packets in shape.iter_unpack(listed)
        if (head, between, last) == expected
    ]
    return counters if len(counters) * shape.size == len(listed) else None


@cache
def _shape(template: bytes, key_length: int) -> tuple[struct.Struct, tuple[bytes, bytes, bytes]]:
    """How to unpack an item, and what is the same in all: what is neither key nor number."""
    between = len(template) - 12 - key_length - 20
    shape = struct.Struct(f">12s{key_length}s{between}sQ4sQ")
    head, _, middle, _, last, _ = shape.unpack(template)
    return shape, (head, middle, last)


def number(value: int) -> bytes:
    """A number of nfnetlink: 32 bits in network order, unlike those of rtnetlink."""
    return value.to_bytes(4, "big")


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded to four bytes."""
    # The length leaves the padding out, or the kernel would take it for a part of the value.
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + _PADDING[length & 3]


def nested(kind: int, *inner: bytes) -> bytes:
    return attribute(kind | _NLA_F_NESTED, b"".join(inner))


Value = int | str | bytes | Mapping[int, "Value"] | None
Values = Mapping[int, Value]


def encoded(values: Values) -> bytes:
    """Attributes by type, as rtnetlink has them; those that are None are left out.

    Numbers have 32 bits in the machine's order, strings end with NUL, and mappings are nested.
    """
    pairs = values.items()
    return b"".join(_encoded(kind, value) for kind, value in pairs if value is not None)


def _encoded(kind: int, value: int | str | bytes | Values) -> bytes:
    # The most frequent first, since an ADD encodes a hundred: asking for a Mapping is slow.
    if isinstance(value, int):
        return attribute(kind, _NUMBER.pack(value))
    if isinstance(value, bytes):
        return attribute(kind, value)
    if isinstance(value, str):
        return attribute(kind, value.encode() + b"\0")
    return nested(kind, encoded(value))


def u32_of(value: bytes | None) -> int:
    """The number in an attribute's value; 0 without one."""
    return int.from_bytes(value or b"", sys.byteorder)


def string_of(value: bytes) -> str:
    return value.rstrip(b"\0").decode(errors="replace")


class Reader:
    """A socket of the namespace it was opened in, for questions. Usable from any thread."""

    def __init__(self, protocol: int = socket.NETLINK_ROUTE) -> None:
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
        try:
            self._socket = socket.socket(socket.AF_NETLINK, kind, protocol)
        except OSError as error:
            raise KernelError("open a netlink socket", error.errno or 0) from None
        # With the strict check the kernel filters a dump by what the request's header says;
        # without it, it ignores that and lists everything (Linux 4.20).
        for option in (_NETLINK_CAP_ACK, _NETLINK_EXT_ACK, _NETLINK_GET_STRICT_CHK):
            self._socket.setsockopt(SOL_NETLINK, option, 1)
        # Not `settimeout`, which has Python poll before each call.
        seconds = struct.pack("@ll", _RECEIVE_SECONDS, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
        with suppress(PermissionError):
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _QUEUED_BYTES)
        self._lock = threading.Lock()
        self._sequence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def query(self, request: Operation, decode: Callable[[bytes], Decoded]) -> Decoded:
        """The kernel's one answer to a request, decoded."""
        with self._lock:
            (answer,) = self._answers([request], decode)
        if isinstance(answer, KernelError):
            raise answer
        return answer

    def query_each(
        self,
        requests: Sequence[Operation],
        decode: Callable[[bytes], Decoded],
        absence: Collection[int] = (),
    ) -> list[Decoded | None]:
        """The kernel's answers to requests sent in batches, None where it refused.

        Raises a refusal whose error number is not in `absence`, if any is given.
        """
        answers: list[Decoded | None] = []
        with self._lock:
            for start in range(0, len(requests), _QUESTIONS):
                for answer in self._answers(requests[start : start + _QUESTIONS], decode):
                    if not isinstance(answer, KernelError):
                        answers.append(answer)
                    elif absence and answer.errno not in absence:
                        raise answer
                    else:
                        answers.append(None)
        return answers

    def _answers(
        self, requests: Sequence[Operation], decode: Callable[[bytes], Decoded]
    ) -> list[Decoded | KernelError]:
        """The one message that the kernel answers each request with, or its refusal."""
        answers: dict[int, Decoded | KernelError] = {}
        for position, kind, flags, body in self._exchange(requests, silent=len(requests)):
            request = requests[position]
            # A failure is reported even to a request without NLM_F_ACK (netlink_rcv_skb).
            if kind == NLMSG_ERROR:
                answers[position] = KernelError(request.text, *error_of(flags, body))
            else:
                answers[position] = _decoded(request, decode, body)
            if len(answers) == len(requests):
                break
        return [answers[position] for position in range(len(requests))]

    def dump(self, request: Operation, decode: Callable[[bytes], Decoded | None]) -> list[Decoded]:
        """Everything the kernel lists for a request; `decode` returns None to leave one out."""
        # What a change interrupts is listed again, unless changes do not end. And routes of IPv6
        # may be missing without notice. So what removes something looks at it again (`suspects`).
        for _ in range(_MOST_REPEATS):
            entries, interrupted = self.dump_once(request, decode)
            if not interrupted:
                return entries
        return self.dump_once(request, decode)[0]

    def list_of(
        self, request: Operation, decode: Callable[[bytes], Decoded | None]
    ) -> list[Decoded]:
        """As `dump`; nothing if there is no such table or set."""
        with Ignoring(ENOENT):
            return self.dump(request, decode)
        return []

    def dump_once(
        self, request: Operation, decode: Callable[[bytes], Decoded | None]
    ) -> tuple[list[Decoded], bool]:
        """As `dump`, and whether it was interrupted by a change, so that it may be incomplete."""
        entries: list[Decoded] = []
        interrupted = False
        with self._lock:
            if not self._sequence:
                # Until a socket has received something, the kernel lists in buffers of a page, and
                # stops without notice before what does not fit into one (netlink_dump).
                next(self._exchange([Operation("no operation", _NLMSG_NOOP, NLM_F_ACK, b"")]))
            for _, kind, flags, body in self._exchange([request]):
                if kind == NLMSG_DONE:
                    break
                if kind == NLMSG_ERROR:
                    raise KernelError(request.text, *error_of(flags, body))
                # The kernel lists one buffer at a time, each as of one moment.
                interrupted = interrupted or bool(flags & NLM_F_DUMP_INTR)
                decoded = _decoded(request, decode, body)
                if decoded is not None:
                    entries.append(decoded)
        return entries, interrupted

    def _exchange(
        self, operations: Iterable[Operation], silent: int = 0
    ) -> Iterator[tuple[int, int, int, bytes]]:
        """Send a batch; (position of the operation, type, flags, body) of every answer to it.

        The first `silent` operations ask for no acknowledgement. The caller holds the lock.
        """
        # Of 32 bits; a batch takes fewer than half of them.
        first = self._sequence % (1 << 31) + 1
        parts = [
            encode(operation, place, NLM_F_ACK if place < first + silent else 0)
            for place, operation in enumerate(operations, first)
        ]
        count, data = len(parts), b"".join(parts)
        # A transaction may be a hundred megabytes: let go of the parts before the kernel copies it.
        del parts
        self._sequence = first + count - 1
        self._send(data)
        del data
        try:
            # Without an end: the caller knows its last answer.
            while True:
                for kind, flags, sequence, body in self._receive():
                    # An earlier exchange may have ended before its last answer: skip what it left.
                    if first <= sequence < first + count:
                        yield sequence - first, kind, flags, body
        except KernelError:
            # Until all that waits is read, an overflown socket gets no answer at all.
            with suppress(OSError):
                while self._socket.recv(1, socket.MSG_DONTWAIT):
                    pass
            raise

    def _send(self, data: bytes) -> None:
        try:
            self._socket.send(data)
        except OSError as error:
            raise KernelError("send to netlink", error.errno or 0, str(error)) from None

    def _receive(self) -> Iterator[tuple[int, int, int, bytes]]:
        try:
            data, _, flags, _ = self._socket.recvmsg(_RECEIVE_BYTES)
        except OSError as error:
            raise KernelError("receive from netlink", error.errno or 0, str(error)) from None
        # The rest of such a datagram is lost, and a listing would lack items without notice.
        if flags & socket.MSG_TRUNC:
            excess = f"the answer is longer than {_RECEIVE_BYTES} bytes"
            raise KernelError("receive from netlink", details=excess)
        return messages(data)


class Netlink(Reader):
    """A socket that changes things, too."""

    def transact(self, operations: Sequence[Operation]) -> None:
        """Have all operations carried out, also behind one that fails; raises the first failure."""
        if failures := self.attempt(operations):
            raise next(iter(failures.values()))

    def attempt(self, operations: Sequence[Operation]) -> dict[Operation, KernelError]:
        """As `transact`, but returns what failed instead of raising."""
        failures: dict[Operation, KernelError] = {}
        with self._lock:
            for start in range(0, len(operations), _BATCH):
                failures |= self._attempt_batch(operations[start : start + _BATCH])
        return failures

    def _attempt_batch(self, operations: Sequence[Operation]) -> dict[Operation, KernelError]:
        failures: dict[Operation, KernelError] = {}
        # The kernel carries messages out in order, goes on after one failed, and reports failures
        # without being asked (netlink_rcv_skb). So one acknowledgement, the last, is enough.
        last = len(operations) - 1
        for position, kind, flags, body in self._exchange(operations, silent=last):
            if kind != NLMSG_ERROR:
                continue
            errno, reason = error_of(flags, body)
            if errno:
                operation = operations[position]
                failures[operation] = KernelError(operation.text, errno, reason)
            if position == last:
                break
        return failures


def _decoded(request: Operation, decode: Callable[[bytes], Decoded], body: bytes) -> Decoded:
    try:
        return decode(body)
    except (struct.error, LookupError, ValueError) as error:
        details = f"an answer of {len(body)} bytes that makes no sense: {error}"
        raise KernelError(request.text, details=details) from None


def index_of(ifname: str) -> int:
    """Index of a link in the thread's namespace; 0 if no link has that name."""
    try:
        return socket.if_nametoindex(ifname)
    except OSError:
        return 0


def name_of(link: int) -> str:
    """Name of a link in the thread's namespace; its number if there is none any more."""
    try:
        return socket.if_indextoname(link)
    except OSError:
        return str(link)
