"""Deletes elements of nftables sets of cgroups, which libnftables can name only while the cgroup exists.

nft(8) writes a cgroup by its path and looks the number up; of one that is gone it shows the
number and does not take it back. So these messages are encoded here (linux/netfilter/nf_tables.h,
linux/netfilter/nfnetlink.h): a batch of one deletion, the key being the cgroup's 64-bit number.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterable

from netmgr.errors import KernelError

_NETLINK_NETFILTER = 12
_NFPROTO_INET = 1
_SUBSYSTEM = 10
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_DELETE_ELEMENT = (_SUBSYSTEM << 8) | 14
_REQUEST, _ACKNOWLEDGE = 1, 4
_ERROR = 2
_TABLE, _SET, _ELEMENTS = 1, 2, 3
_ELEMENT, _KEY, _VALUE = 1, 1, 1
_NESTED = 1 << 15
_HEADER = struct.Struct("=IHHII")
_FAMILY = struct.Struct("=BBH")
_ATTRIBUTE = struct.Struct("=HH")
_CODE = struct.Struct("=i")
_RECEIVE_BYTES = 1 << 16


def delete(table: str, set_name: str, cgroups: Iterable[int]) -> None:
    """Delete the elements of these cgroup numbers; one that is not there is no error.

    Raises:
        KernelError: the kernel refused.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_NETFILTER) as channel:
        channel.bind((0, 0))
        for number in cgroups:
            channel.send(_batch(table, set_name, number))
            code = _answer(channel)
            if code not in (0, errno.ENOENT):
                raise KernelError(f"delete cgroup {number} of nft set {set_name}", code)


def _batch(table: str, set_name: str, number: int) -> bytes:
    key = _attribute(_KEY | _NESTED, _attribute(_VALUE, struct.pack("=Q", number)))
    elements = _attribute(_ELEMENTS | _NESTED, _attribute(_ELEMENT | _NESTED, key))
    names = _attribute(_TABLE, table.encode() + b"\0") + _attribute(_SET, set_name.encode() + b"\0")
    return (
        _message(_BATCH_BEGIN, 0, 0, socket.htons(_SUBSYSTEM), b"")
        + _message(_DELETE_ELEMENT, _ACKNOWLEDGE, _NFPROTO_INET, 0, names + elements)
        + _message(_BATCH_END, 0, 0, socket.htons(_SUBSYSTEM), b"")
    )


def _message(kind: int, flags: int, family: int, resource: int, body: bytes) -> bytes:
    content = _FAMILY.pack(family, 0, resource) + body
    return _HEADER.pack(_HEADER.size + len(content), kind, _REQUEST | flags, kind, 0) + content


def _attribute(kind: int, value: bytes) -> bytes:
    padding = b"\0" * (-len(value) % 4)
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + padding


def _answer(channel: socket.socket) -> int:
    """The error number of the deletion, 0 for none."""
    while True:
        data = channel.recv(_RECEIVE_BYTES)
        while data:
            length, kind, _, sequence, _ = _HEADER.unpack_from(data)
            if kind == _ERROR and sequence in (_DELETE_ELEMENT, _BATCH_BEGIN):
                (code,) = _CODE.unpack_from(data, _HEADER.size)
                return -int(code)
            data = data[(length + 3) & ~3 :]


def number_of(path: str | os.PathLike[str]) -> int:
    """The number that the kernel has for the cgroup of this directory: its inode's (kernfs).

    Raises:
        FileNotFoundError: there is no such cgroup any more.
    """
    return os.stat(path).st_ino  # noqa: PTH116  a plain call: there may be thousands
