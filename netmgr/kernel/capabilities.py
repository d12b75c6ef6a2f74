"""Gives up capabilities for good (capabilities(7)).

They belong to threads, and a new thread has those of the one that starts it. So a process gives
them up while it has one thread.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Collection
from enum import IntEnum

from netmgr.errors import KernelError


class Capability(IntEnum):
    """Numbers of capabilities (linux/capability.h)."""

    CHOWN = 0
    DAC_OVERRIDE = 1
    NET_BIND_SERVICE = 10
    NET_ADMIN = 12
    NET_RAW = 13
    SYS_MODULE = 16
    SYS_PTRACE = 19
    SYS_ADMIN = 21


# struct __user_cap_header_struct: _LINUX_CAPABILITY_VERSION_3, and a thread's number or 0.
_THIS_THREAD = struct.pack("=Ii", 0x20080522, 0)
# Effective, permitted and inheritable, of the first 32 capabilities and of the others.
_SETS = struct.Struct("=6I")
_SETPCAP = 8

_PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 23, 24, 38

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)  # the kernel looks at all 64 bits


def keep(kept: Collection[Capability]) -> None:
    """Keep these of the calling thread's capabilities, if it has them, and give up all others."""
    mask = sum(1 << capability for capability in kept)
    data = ctypes.create_string_buffer(_SETS.size)
    _succeed("capget", _libc.capget(_THIS_THREAD, data))
    held = _SETS.unpack(data.raw)
    if held[0] >> _SETPCAP & 1:
        number = 0
        # The kernel refuses the first number that it has no capability for.
        while _libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0) >= 0:
            if not mask >> number & 1:
                _prctl(_PR_CAPBSET_DROP, number)
            number += 1
    left = [bits & mask for bits in held[:3]] + [bits & mask >> 32 for bits in held[3:]]
    # Where there is nothing to give up, a filter of system calls may forbid to do so.
    if left != list(held):
        _succeed("capset", _libc.capset(_THIS_THREAD, _SETS.pack(*left)))
    # Programs that it starts get none of them back, whatever their owner and their files say, also
    # where the bounding set may not be changed.
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def _prctl(option: int, value: int) -> None:
    _succeed(f"prctl {option}", _libc.prctl(option, value, 0, 0, 0))


def _succeed(operation: str, result: int) -> None:
    if result != 0:
        raise KernelError(operation, ctypes.get_errno())
