"""A netlink socket, route-netlink's unless told otherwise: batches out, acknowledgements and dumps in (netlink(7))."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Self, TypeVar

from netmgr.dataplane import rtnetlink
from netmgr.dataplane.netns import CLONE_NEWNET, entered
from netmgr.dataplane.rtnetlink import Operation
from netmgr.errors import KernelError

_SOL_NETLINK, _NETLINK_CAP_ACK, _NETLINK_EXT_ACK, _NETLINK_GET_STRICT_CHK = 270, 10, 11, 12
_NS_GET_NSTYPE = 0xB703  # ioctl_ns(2)
_RECEIVE_BYTES = 1 << 17
_RECEIVE_SECONDS = 10

Decoded = TypeVar("Decoded")


class Netlink:
    """One socket, usable from any thread; it stays in the namespace it was opened in."""

    def __init__(self, protocol: int = socket.NETLINK_ROUTE) -> None:
        """Open the socket of a netlink protocol.

        Raises:
            KernelError: the process may open no more files.
        """
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        except OSError as error:
            raise KernelError("open a netlink socket", error.errno or 0) from None
        for option in (_NETLINK_CAP_ACK, _NETLINK_EXT_ACK, _NETLINK_GET_STRICT_CHK):
            self._socket.setsockopt(_SOL_NETLINK, option, 1)
        self._socket.settimeout(_RECEIVE_SECONDS)
        self._lock = threading.Lock()
        self._sequence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def transact(self, operations: Sequence[Operation]) -> None:
        """Send all operations as one batch and wait for every acknowledgement.

        The kernel carries out the rest of a batch after one of its messages failed.

        Raises:
            KernelError: the first operation that failed, by its text.
        """
        failures = self.attempt(operations)
        for operation in operations:
            if operation in failures:
                raise failures[operation]

    def query(self, request: Operation, decode: Callable[[bytes], Decoded]) -> Decoded:
        """The kernel's one answer to `request`, decoded.

        Raises:
            KernelError: there is no such thing, or the kernel refused.
        """
        answer: list[Decoded] = []
        with self._lock:
            for kind, flags, body in self._answers(request):
                if kind != rtnetlink.NLMSG_ERROR:
                    answer.append(_decoded(request, decode, body))
                    continue
                errno, reason = rtnetlink.error_of(flags, body)
                if errno or not answer:
                    raise KernelError(request.text, errno, reason)
                break
        return answer[0]

    def attempt(self, operations: Sequence[Operation]) -> dict[Operation, KernelError]:
        """As `transact`, but returns what failed instead of raising."""
        failures: dict[Operation, KernelError] = {}
        with self._lock:
            pending = {self._sequence + 1 + place: operation for place, operation in enumerate(operations)}
            self._sequence += len(operations)
            if pending:
                self._send(b"".join(rtnetlink.encode(item, number) for number, item in pending.items()))
            while pending:
                for kind, flags, sequence, body in self._receive():
                    if kind != rtnetlink.NLMSG_ERROR or sequence not in pending:
                        continue
                    operation = pending.pop(sequence)
                    errno, reason = rtnetlink.error_of(flags, body)
                    if errno:
                        failures[operation] = KernelError(operation.text, errno, reason)
        return failures

    def dump(self, request: Operation, decode: Callable[[bytes], Decoded | None]) -> list[Decoded]:
        """Everything the kernel lists for `request`, decoded; what `decode` returns None for is left out."""
        return self.dump_once(request, decode)[0]

    def dump_once(self, request: Operation, decode: Callable[[bytes], Decoded | None]) -> tuple[list[Decoded], bool]:
        """As `dump`, and whether something changed while the kernel listed it, so that the list may not be whole."""
        found: list[Decoded] = []
        interrupted = False
        with self._lock:
            for kind, flags, body in self._answers(request):
                if kind == rtnetlink.NLMSG_DONE:
                    break
                if kind == rtnetlink.NLMSG_ERROR:
                    errno, reason = rtnetlink.error_of(flags, body)
                    raise KernelError(request.text, errno, reason)
                # The kernel lists a buffer at a time, each as of one moment; the end of the list has no content.
                interrupted = interrupted or bool(flags & rtnetlink.NLM_F_DUMP_INTR)
                if (item := _decoded(request, decode, body)) is not None:
                    found.append(item)
        return found, interrupted

    def _answers(self, request: Operation) -> Iterator[tuple[int, int, bytes]]:
        """Send a request; type, flags and content of every message that answers it. The caller holds the lock."""
        self._sequence += 1
        self._send(rtnetlink.encode(request, self._sequence))
        while True:
            for kind, flags, sequence, body in self._receive():
                # What another request left behind, that ended before its last answer, is nobody's by now.
                if sequence == self._sequence:
                    yield kind, flags, body

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
        if flags & socket.MSG_TRUNC:
            raise KernelError("receive from netlink", details=f"the answer is longer than {_RECEIVE_BYTES} bytes")
        return rtnetlink.messages(data)


def _decoded(request: Operation, decode: Callable[[bytes], Decoded], body: bytes) -> Decoded:
    try:
        return decode(body)
    except (struct.error, LookupError, ValueError) as error:
        raise KernelError(
            request.text, details=f"an answer of {len(body)} bytes that makes no sense: {error}"
        ) from None


def open_in(descriptor: int, ifname: str) -> tuple[Netlink, int]:
    """A socket inside the namespace open at `descriptor`, and the index `ifname` has there (0: no such link)."""
    with entered(descriptor):
        channel = Netlink()
        return channel, index_of(ifname)


def index_of(ifname: str) -> int:
    """Index of a link in the thread's namespace; 0 if there is none of that name."""
    try:
        return socket.if_nametoindex(ifname)
    except OSError:
        return 0


def open_namespace(path: str) -> int:
    """Open a namespace file.

    Raises:
        KernelError: it does not exist, cannot be opened, or is no network namespace.
    """
    operation = f"open network namespace {path}"
    try:
        # Non-blocking, since what is at the path may be a pipe whose other end never comes.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise KernelError(operation, error.errno or 0) from None
    try:
        kind = fcntl.ioctl(descriptor, _NS_GET_NSTYPE)
    except OSError:
        kind = 0
    if kind != CLONE_NEWNET:
        os.close(descriptor)
        raise KernelError(operation, details="it is no network namespace")
    return descriptor
