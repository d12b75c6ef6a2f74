"""A counter in tc-BPF: what accounting costs when nothing but counting has to be done.

It is attached to both directions of a pod's link (tcx, Linux 6.6). A packet whose other end is in
a trie of internal prefixes is not counted; any other raises the bytes and packets of its pod's
address in a hash with values for each processor. The program is assembled here, so that no compiler
is needed.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple, Self

from netmgr.prefixes import Address, Family, Prefix

_SYSCALL = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _PROG_LOAD, _LINK_CREATE = 0, 1, 2, 5, 28
_PERCPU_HASH, _LPM_TRIE, _NO_PREALLOC, _SCHED_CLS = 5, 11, 1, 3
_CAPACITY = 4096
_LOG_BYTES = 1 << 16
_ATTACH_INGRESS, _ATTACH_EGRESS = 46, 47

_LENGTH, _PROTOCOL, _DATA, _DATA_END = 0, 16, 76, 80
"""Offsets in struct __sk_buff (<linux/bpf.h>)."""
_ETHERNET, _IP_HEADER, _SOURCE, _DESTINATION = 14, 20, 12, 16
_IPV4 = int.from_bytes(b"\x08\x00", "little")
_NEXT = -1
"""TCX_NEXT: the packet goes on."""
_OUT, _IN, _VALUE_BYTES = 0, 16, 32
"""Where in a value the bytes and packets of each direction are, and its size."""


class Code(IntEnum):
    """Instructions (<linux/bpf_common.h>, <linux/bpf.h>); X is with a register, K a constant."""

    LOAD32, LOAD64, LOAD_MAP = 0x61, 0x79, 0x18
    STORE32_X, STORE64_X, STORE32_K = 0x63, 0x7B, 0x62
    MOVE_X, MOVE_K, ADD_X, ADD_K = 0xBF, 0xB7, 0x0F, 0x07
    IF_EQUAL_K, IF_UNEQUAL_K, IF_GREATER_X = 0x15, 0x55, 0x2D
    CALL, EXIT = 0x85, 0x95


_LOOKUP = 1
"""Number of the helper bpf_map_lookup_elem."""
_CONTEXT, _FRAME = 6, 10
"""Registers: where the packet's structure is kept, and the end of the stack."""
_MAP_DESCRIPTOR = 1
"""In the second register's place of LOAD_MAP: the constant is a map's descriptor."""
_END = 0x7FFF
"""Offset of a jump to the program's last two instructions, until it is known."""

Instruction = tuple[Code, int, int, int, int]
"""Code, destination and source registers, offset, constant."""


class Counted(NamedTuple):
    """Of IP packets, headers included."""

    bytes_out: int
    packets_out: int
    bytes_in: int
    packets_in: int


class TcCounter:
    """The counter on one link, in the network namespace of the calling thread, until it is closed.

    Raises:
        OSError: the kernel cannot do this.
    """

    def __init__(self, link: int, pods: Iterable[Address], internal: Iterable[Prefix]) -> None:
        with ExitStack() as stack:
            self._hash = _kept(stack, _map(_PERCPU_HASH, 4, _VALUE_BYTES, 0))
            trie = _kept(stack, _map(_LPM_TRIE, 8, 4, _NO_PREALLOC))
            blank = bytes(_VALUE_BYTES * _processors())
            for pod in pods:
                if pod.family is Family.V4:
                    _update(self._hash, _octets(pod), blank)
            for prefix in internal:
                if prefix.family is Family.V4:
                    key = struct.pack("=I", prefix.length) + _octets(prefix.network)
                    _update(trie, key, bytes(4))
            for own, other, attach, offset in (
                (_SOURCE, _DESTINATION, _ATTACH_INGRESS, _OUT),
                (_DESTINATION, _SOURCE, _ATTACH_EGRESS, _IN),
            ):
                program = _kept(stack, _load(_program(self._hash, trie, own, other, offset)))
                attr = struct.pack("=IIIIIIQ", program, link, attach, 0, 0, 0, 0)
                _kept(stack, _bpf(_LINK_CREATE, attr))
            self._closing = stack.pop_all()

    def read(self, pod: Address) -> Counted:
        """What the pod exchanged with the internet."""
        value = ctypes.create_string_buffer(_VALUE_BYTES * _processors())
        key = ctypes.create_string_buffer(_octets(pod))
        addresses = ctypes.addressof(key), ctypes.addressof(value)
        _bpf(_MAP_LOOKUP, struct.pack("=IIQQQ", self._hash, 0, *addresses, 0))
        parts = struct.iter_unpack("=4Q", value.raw)
        return Counted(*map(sum, zip(*parts, strict=True)))

    def close(self) -> None:
        """Detach it."""
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _program(counters: int, internal: int, own: int, other: int, offset: int) -> bytes:
    """For the direction whose packets have the pod's address at `own` in the IP header."""
    body: list[Instruction] = [
        (Code.MOVE_X, _CONTEXT, 1, 0, 0),
        (Code.LOAD32, 2, _CONTEXT, _PROTOCOL, 0),
        (Code.IF_UNEQUAL_K, 2, 0, _END, _IPV4),
        # The verifier wants to see that the packet is as long as what is read of it.
        (Code.LOAD32, 7, _CONTEXT, _DATA, 0),
        (Code.LOAD32, 8, _CONTEXT, _DATA_END, 0),
        (Code.MOVE_X, 2, 7, 0, 0),
        (Code.ADD_K, 2, 0, 0, _ETHERNET + _IP_HEADER),
        (Code.IF_GREATER_X, 2, 8, _END, 0),
        # On the stack: the pod's address at -12, length and address for the trie at -8.
        (Code.LOAD32, 2, 7, _ETHERNET + own, 0),
        (Code.STORE32_X, _FRAME, 2, -12, 0),
        (Code.LOAD32, 2, 7, _ETHERNET + other, 0),
        (Code.STORE32_X, _FRAME, 2, -4, 0),
        (Code.STORE32_K, _FRAME, 0, -8, 32),
        (Code.LOAD_MAP, 1, _MAP_DESCRIPTOR, 0, internal),
        (Code.MOVE_X, 2, _FRAME, 0, 0),
        (Code.ADD_K, 2, 0, 0, -8),
        (Code.CALL, 0, 0, 0, _LOOKUP),
        (Code.IF_UNEQUAL_K, 0, 0, _END, 0),
        (Code.LOAD_MAP, 1, _MAP_DESCRIPTOR, 0, counters),
        (Code.MOVE_X, 2, _FRAME, 0, 0),
        (Code.ADD_K, 2, 0, 0, -12),
        (Code.CALL, 0, 0, 0, _LOOKUP),
        (Code.IF_EQUAL_K, 0, 0, _END, 0),
        # Bytes are those of the IP packet, as netmgr counts them.
        (Code.LOAD64, 1, 0, offset, 0),
        (Code.LOAD32, 2, _CONTEXT, _LENGTH, 0),
        (Code.ADD_X, 1, 2, 0, 0),
        (Code.ADD_K, 1, 0, 0, -_ETHERNET),
        (Code.STORE64_X, 0, 1, offset, 0),
        (Code.LOAD64, 1, 0, offset + 8, 0),
        (Code.ADD_K, 1, 0, 0, 1),
        (Code.STORE64_X, 0, 1, offset + 8, 0),
    ]
    return _assembled(body) + _assembled([(Code.MOVE_K, 0, 0, 0, _NEXT), (Code.EXIT, 0, 0, 0, 0)])


def _assembled(body: Sequence[Instruction]) -> bytes:
    # The constant of LOAD_MAP has 64 bits, the upper half of which is an instruction of its own.
    sizes = [2 if code is Code.LOAD_MAP else 1 for code, *_ in body]
    end, code_bytes = sum(sizes), b""
    for (code, destination, source, offset, constant), size in zip(body, sizes, strict=True):
        at = len(code_bytes) // 8
        jump = end - at - 1 if offset == _END else offset
        code_bytes += struct.pack("=BBhi", code, destination | source << 4, jump, constant)
        code_bytes += bytes(8 * (size - 1))
    return code_bytes


def _load(program: bytes) -> int:
    code, license_ = ctypes.create_string_buffer(program), ctypes.create_string_buffer(b"GPL")
    log = ctypes.create_string_buffer(_LOG_BYTES)
    attr = struct.pack(
        "=IIQQIIQ",
        _SCHED_CLS,
        len(program) // 8,
        ctypes.addressof(code),
        ctypes.addressof(license_),
        1,
        _LOG_BYTES,
        ctypes.addressof(log),
    )
    try:
        return _bpf(_PROG_LOAD, attr)
    except OSError as error:
        error.add_note(log.value.decode())
        raise


def _map(kind: int, key_size: int, value_size: int, flags: int) -> int:
    return _bpf(_MAP_CREATE, struct.pack("=IIIII", kind, key_size, value_size, _CAPACITY, flags))


def _update(table: int, key: bytes, value: bytes) -> None:
    holding = [ctypes.create_string_buffer(one, len(one)) for one in (key, value)]
    _bpf(_MAP_UPDATE, struct.pack("=IIQQQ", table, 0, *map(ctypes.addressof, holding), 0))


def _bpf(command: int, attributes: bytes) -> int:
    """The bpf(2) system call.

    Raises:
        OSError: the kernel refused.
    """
    library = ctypes.CDLL(None, use_errno=True)
    held = ctypes.create_string_buffer(attributes, len(attributes))
    number = _SYSCALL[platform.machine()]
    answer: int = library.syscall(number, command, held, len(attributes))
    if answer < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"bpf({command}): {os.strerror(errno)}")
    return answer


def _kept(stack: ExitStack, descriptor: int) -> int:
    """Have the stack close a descriptor; with the last one of a link, its program is detached."""
    stack.callback(os.close, descriptor)
    return descriptor


def _octets(address: Address) -> bytes:
    return address.value.to_bytes(4, "big")


def _processors() -> int:
    """How many processors there may be: a per-CPU value has a part for each."""
    last = Path("/sys/devices/system/cpu/possible").read_text().split("-")[-1]
    return int(last) + 1
