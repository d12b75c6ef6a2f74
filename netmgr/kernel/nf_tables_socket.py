"""A socket for nf_tables: transactions out, listings in."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from operator import itemgetter

from netmgr.errors import KernelError, TryAgainLater
from netmgr.kernel import netlink, nf_tables

# It may exceed net.core.wmem_max, and needs CAP_NET_ADMIN (socket(7)).
_SO_SNDBUFFORCE = 32
# netlink_sendmsg keeps 32 bytes of the buffer for itself and refuses longer messages (EMSGSIZE).
_SNDBUF_SPARE = 4096
_ATTEMPTS = 10
_NEVER_WHOLE = "another program changes the rules of nf_tables all the time"

# Of a kernel without nf_tables, or without nfnetlink.
NO_NF_TABLES = frozenset({errno.EOPNOTSUPP, errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT})


class NftSocket(netlink.Netlink):
    """For the namespace it was opened in."""

    def __init__(self) -> None:
        super().__init__(netlink.NETLINK_NETFILTER)
        self._room = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)

    def commit(self, operations: Iterable[netlink.Operation]) -> None:
        """Carry all operations out as one transaction, or none of them."""
        texts: list[str] = []
        with self._lock:
            for position, kind, flags, body in self._exchange(_transaction(operations, texts)):
                if kind != netlink.NLMSG_ERROR:
                    continue
                number, reason = netlink.error_of(flags, body)
                if number:
                    raise KernelError(f"nft {texts[position]}", number, reason)
                # `texts` is complete by now: a batch is encoded as a whole before it is sent. And
                # the kernel holds all answers back until it has carried the batch out or undone it
                # (nfnl_err_deliver), so that the last acknowledgement means that all of it is in
                # effect.
                if position == len(texts) - 1:
                    return

    def list_whole(
        self, request: netlink.Operation, decode: Callable[[bytes], netlink.Decoded | None]
    ) -> list[netlink.Decoded]:
        """A listing that no transaction interrupted; TryAgainLater if there are always some."""
        for _ in range(_ATTEMPTS):
            entries, interrupted = self.dump_once(request, decode)
            if not interrupted:
                return entries
        raise TryAgainLater(_NEVER_WHOLE)

    def counts(self, table: str, name: str) -> list[netlink.Counted]:
        """The counters of a set's elements; none without the set. Raises as `list_whole` does."""
        request = nf_tables.list_elements(table, name)
        for _ in range(_ATTEMPTS):
            parts = self.list_of(
                request,
                lambda body: (netlink.NFGENMSG.unpack_from(body), nf_tables.counts_of(body)),
            )
            # The kernel lists one buffer at a time. What a transaction changes in between may be
            # missing or come twice, and for elements NLM_F_DUMP_INTR does not say so. But each
            # buffer is one message here, with the lower half of the generation's number.
            if len(set(map(itemgetter(0), parts))) <= 1:
                return list(chain.from_iterable(map(itemgetter(1), parts)))
        raise TryAgainLater(_NEVER_WHOLE)

    def table_handle(self, table: str) -> int:
        """A number that no other table of the namespace ever has; 0 if there is no such table."""
        asked = [nf_tables.get_table(table)]
        (handle,) = self.query_each(asked, nf_tables.handle_of, absence=[errno.ENOENT])
        return handle or 0

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
    operations: Iterable[netlink.Operation], texts: list[str]
) -> Iterator[netlink.Operation]:
    """The messages of a transaction; `texts` gets those of all but its end, which has no answer."""
    # The last operation alone asks for an acknowledgement: one for each would not fit into the
    # socket's buffer.
    last = nf_tables.batch_mark(nf_tables.BATCH_BEGIN)
    for operation in operations:
        texts.append(last.text)
        yield last
        last = operation
    texts.append(last.text)
    yield replace(last, flags=last.flags | netlink.NLM_F_ACK)
    yield nf_tables.batch_mark(nf_tables.BATCH_END)
