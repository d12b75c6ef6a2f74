"""A socket for nf_tables: transactions out, listings in."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from netmgr.errors import KernelError
from netmgr.kernel import nf_tables
from netmgr.kernel.netlink import (
    NETLINK_NETFILTER,
    NLM_F_ACK,
    NLMSG_ERROR,
    Decoded,
    Netlink,
    Operation,
    error_of,
)

# It may exceed net.core.wmem_max; needs CAP_NET_ADMIN (socket(7)).
_SO_SNDBUFFORCE = 32
# netlink_sendmsg keeps 32 bytes of the buffer for itself and refuses longer messages (EMSGSIZE).
_SNDBUF_SPARE = 4096

NO_NF_TABLES = frozenset({errno.EOPNOTSUPP, errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT})
"""Error numbers of a kernel without nf_tables, or without nfnetlink."""


class NftSocket(Netlink):
    """For the namespace it was opened in.

    Raises:
        KernelError: the process may open no more files.
    """

    def __init__(self) -> None:
        super().__init__(NETLINK_NETFILTER)
        self._room = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)

    def commit(self, operations: Iterable[Operation], generation: int | None = None) -> None:
        """Carry all operations out as one transaction, or none of them.

        Args:
            operations: what to do.
            generation: the number (`generation`) of what they were made from; the kernel refuses
                the transaction if it has another one by now.

        Raises:
            KernelError: what the kernel said to the first one that it refused.
        """
        texts: list[str] = []
        with self._lock:
            for position, kind, flags, body in self._exchange(
                _transaction(operations, generation, texts)
            ):
                if kind != NLMSG_ERROR:
                    continue
                number, reason = error_of(flags, body)
                if number:
                    raise KernelError(f"nft {texts[position]}", number, reason)
                # `texts` is complete by now: a batch is encoded as a whole before it is sent. And
                # the kernel holds all answers back until it has carried the batch out or undone it
                # (nfnl_err_deliver), so that the last acknowledgement means that all of it is in
                # effect.
                if position == len(texts) - 1:
                    return

    def list_of(
        self, request: Operation, decode: Callable[[bytes], Decoded | None]
    ) -> list[Decoded]:
        """What the kernel lists; nothing if there is no such table or set."""
        try:
            return self.dump(request, decode)
        except KernelError as error:
            if error.errno == errno.ENOENT:
                return []
            raise

    def generation(self) -> int:
        """A number that changes with every transaction of any program in this namespace."""
        return self.query(nf_tables.get_generation(), nf_tables.generation_of)

    def _send(self, data: bytes) -> None:
        # The kernel takes a transaction as one datagram or not at all.
        if len(data) + _SNDBUF_SPARE > self._room:
            self._room = len(data) + _SNDBUF_SPARE
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, self._room)
            except OSError as error:
                raise KernelError("nft transaction", error.errno or 0) from None
        super()._send(data)


def _transaction(
    operations: Iterable[Operation], generation: int | None, texts: list[str]
) -> Iterator[Operation]:
    """The messages of a transaction; `texts` gets those of all but its end, which has no answer.

    The last one asks for an acknowledgement: one for each would not fit into the socket's buffer.
    """
    last = nf_tables.batch_mark(nf_tables.BATCH_BEGIN, generation)
    for operation in operations:
        texts.append(last.text)
        yield last
        last = operation
    texts.append(last.text)
    yield replace(last, flags=last.flags | NLM_F_ACK)
    yield nf_tables.batch_mark(nf_tables.BATCH_END)
