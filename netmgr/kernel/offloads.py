"""Switching offloads of a link off (linux/ethtool.h), as `ethtool --features` does."""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
from collections.abc import Iterable

_SIOCETHTOOL = 0x8946
_GET_STRINGS, _GET_STRING_SETS, _SET_FEATURES = 0x1B, 0x37, 0x3B
_FEATURES = 4  # ETH_SS_FEATURES
_NAME_BYTES = 32
_REQUEST, _STRINGS = struct.Struct("=II"), struct.Struct("=III")
_SETS = struct.Struct("=IIQI")


def switch_off(link: str, names: Iterable[str]) -> None:
    """Switch off a link's offloads, but for unknown names; OSError where the kernel refuses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        # By their names: which bit is whose differs from kernel to kernel (netdev_features.h).
        sets = _asked(channel, link, _SETS.pack(_GET_STRING_SETS, 0, 1 << _FEATURES, 0))
        (many,) = struct.unpack_from("=I", sets, _SETS.size - 4)
        request = _STRINGS.pack(_GET_STRINGS, _FEATURES, many) + bytes(many * _NAME_BYTES)
        listed = _asked(channel, link, request)[_STRINGS.size :]
        wanted = {name.encode().ljust(_NAME_BYTES, b"\0") for name in names}
        # Blocks of 32 offloads: those that are to change, and which of them are to be on.
        blocks = [0] * (2 * -(-many // 32))
        for number in range(many):
            if listed[number * _NAME_BYTES : (number + 1) * _NAME_BYTES] in wanted:
                blocks[number // 32 * 2] |= 1 << number % 32
        request = _REQUEST.pack(_SET_FEATURES, len(blocks) // 2)
        _asked(channel, link, request + struct.pack(f"={len(blocks)}I", *blocks))


def _asked(channel: socket.socket, link: str, request: bytes) -> bytes:
    data = ctypes.create_string_buffer(request, len(request))
    fcntl.ioctl(
        channel, _SIOCETHTOOL, struct.pack("16sP16x", link.encode(), ctypes.addressof(data))
    )
    return data.raw
