"""A socket for nf_tables: transactions out, listings in."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterable
from dataclasses import replace

from netmgr.dataplane import nft_messages, rtnetlink
from netmgr.dataplane.netlink import Decoded, Netlink
from netmgr.dataplane.rtnetlink import Operation
from netmgr.errors import KernelError

_NLM_F_ACK, _SO_SNDBUFFORCE = 0x4, 32
_SNDBUF_SPARE = 4096


class NftSocket(Netlink):
    """For the namespace it was opened in.

    Raises:
        KernelError: the process may open no more files.
    """

    def __init__(self) -> None:
        super().__init__(nft_messages.NETLINK_NETFILTER)

    def commit(self, operations: Iterable[Operation], generation: int | None = None) -> None:
        """Carry all operations out as one transaction, or none of them.

        Args:
            operations: what to do.
            generation: the number (`generation`) of what they were made from; with another one now nothing is done.

        Raises:
            KernelError: what the kernel said to the first one that it refused.
        """
        with self._lock:
            first = self._sequence + 1
            parts, texts = [], []
            batch = [nft_messages.batch_mark(nft_messages.BATCH_BEGIN, generation), *operations]
            # One acknowledgement is enough; one for each message would not fit into the socket's buffer.
            batch[-1] = replace(batch[-1], flags=batch[-1].flags | _NLM_F_ACK)
            batch.append(nft_messages.batch_mark(nft_messages.BATCH_END))
            for place, operation in enumerate(batch):
                parts.append(rtnetlink.encode(operation, first + place))
                texts.append(operation.text)
            del batch
            self._sequence += len(parts)
            data = b"".join(parts)
            del parts
            self._make_room(len(data) + _SNDBUF_SPARE)
            self._send(data)
            self._await(first, texts)

    def _make_room(self, count: int) -> None:
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, count)
        except OSError as error:
            raise KernelError("nft transaction", error.errno or 0) from None

    def _await(self, first: int, texts: list[str]) -> None:
        """Wait for the acknowledgement of the last operation, or for the first refusal."""
        while True:
            for kind, flags, sequence, body in self._receive():
                if kind != rtnetlink.NLMSG_ERROR or not first <= sequence < first + len(texts):
                    continue
                number, reason = rtnetlink.error_of(flags, body)
                if number:
                    raise KernelError(f"nft {texts[sequence - first]}", number, reason)
                if sequence == first + len(texts) - 2:
                    return

    def list_of(self, request: Operation, decode: Callable[[bytes], Decoded | None]) -> list[Decoded]:
        """What the kernel lists; nothing if there is no such table or set."""
        try:
            return self.dump(request, decode)
        except KernelError as error:
            if error.errno == errno.ENOENT:
                return []
            raise

    def generation(self) -> int:
        """A number that changes with every transaction of anybody in this namespace."""
        return nft_messages.generation_of(self.ask(nft_messages.get_generation()))

    def ask(self, request: Operation) -> bytes:
        """The one message that answers a request.

        Raises:
            KernelError: there is no such thing (ENOENT), or the kernel refused.
        """
        with self._lock:
            self._sequence += 1
            self._send(rtnetlink.encode(request, self._sequence))
            while True:
                for kind, flags, sequence, body in self._receive():
                    if sequence != self._sequence:
                        continue
                    if kind == rtnetlink.NLMSG_ERROR:
                        raise KernelError(f"nft {request.text}", *rtnetlink.error_of(flags, body))
                    return body
