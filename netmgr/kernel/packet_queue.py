"""Binding a queue for packets (linux/netfilter/nfnetlink_queue.h), which is used as a lock.

A queue is of one network namespace and of one socket: the kernel refuses it to others (EPERM), and
frees it when the socket is closed. Binding it needs CAP_NET_ADMIN, and no rule leads to it.
"""

from __future__ import annotations

from pathlib import Path

from netmgr.kernel.netlink import NFGENMSG, NLM_F_ACK, Operation, encoded

_SUBSYSTEM, _CONFIGURE = 3, 2
_COMMAND, _PARAMETERS = 1, 2
_BIND, _COPY_PACKET = 1, 2
# Of the thread, which may be in another namespace than the process.
_BOUND = Path("/proc/thread-self/net/netfilter/nfnetlink_queue")


def bind(number: int, note: int) -> Operation:
    """Bind a queue. `note`, from 1 to 65,531, is shown to whoever is refused it."""
    # How much of a packet is copied to the socket, which has no other use where none comes. The
    # kernel bounds it by what fits into an attribute (NFQNL_MAX_COPY_RANGE).
    parameters = note.to_bytes(4, "big") + bytes((_COPY_PACKET,))
    body = NFGENMSG.pack(0, 0, number)
    body += encoded({_COMMAND: bytes((_BIND, 0, 0, 0)), _PARAMETERS: parameters})
    return Operation(f"bind queue {number}", _SUBSYSTEM << 8 | _CONFIGURE, NLM_F_ACK, body)


def owner_of(number: int) -> tuple[int, int] | None:
    """The port of the socket that has a queue, and its note; None if nobody has it.

    The port is most often the number of the owner's process (netlink(7)).

    Raises:
        OSError: the kernel does not show it.
    """
    for line in _BOUND.read_text().splitlines():
        queue, port, _, _, note, *_ = map(int, line.split())
        if queue == number:
            return port, note
    return None
