"""Maps and programs of eBPF by bpf(2), without a library or a compiler.

A descriptor keeps a map or a program alive; so does what uses it: a filter holds its program, and a
program its maps. Each has a number, by which it is found again (CAP_SYS_ADMIN).
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from netmgr.errors import Ignoring, KernelError, SetupError
from netmgr.kernel.bpf_code import assembled

HASH, ARRAY = 1, 2
"""Kinds of maps."""

# Numbers of bpf(2), which libc has no function for.
_CALLS = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "s390x": 351, "ppc64le": 361}
_CREATE, _LOOK_UP, _UPDATE, _DELETE, _LOAD = 0, 1, 2, 3, 5
_PROGRAM_BY_ID, _MAP_BY_ID, _DESCRIBE, _LOOK_UP_BATCH = 13, 14, 15, 24
_SCHED_CLS, _NO_PREALLOC, _NO_EXIST = 3, 1, 1
_DESCRIPTION_BYTES, _MOST_MAPS, _BATCH = 232, 16, 4096

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class MapShape:
    """What a map is made as; keys and elements of so many bytes."""

    name: str
    kind: int
    key: int
    element: int
    capacity: int


@dataclass(frozen=True, slots=True)
class BpfMap:
    """A map that is open here, and the number by which it is found again."""

    shape: MapShape
    number: int
    descriptor: int

    def put(self, key: bytes, element: bytes) -> None:
        """Write an element, or overwrite it."""
        self._call(_UPDATE, key, _buffer(element))

    def add(self, key: bytes, element: bytes) -> None:
        """Write an element, unless there is one."""
        with Ignoring(errno.EEXIST):
            self._call(_UPDATE, key, _buffer(element), _NO_EXIST)

    def get(self, key: bytes) -> bytes | None:
        element = _buffer(bytes(self.shape.element))
        with Ignoring(errno.ENOENT):
            self._call(_LOOK_UP, key, element)
            return element.raw
        return None

    def delete(self, key: bytes) -> None:
        """Delete an element; one that is not there is no error."""
        with Ignoring(errno.ENOENT):
            self._call(_DELETE, key, None)

    def _call(
        self, command: int, key: bytes, element: ctypes.Array[ctypes.c_char] | None, flags: int = 0
    ) -> None:
        held = _buffer(key)
        at = ctypes.addressof(held), ctypes.addressof(element) if element else 0
        _bpf(command, f"use map {self.shape.name}", "IxxxxQQQ", self.descriptor, *at, flags)

    def listed(self) -> Iterator[tuple[bytes, bytes]]:
        """Every key and element, in batches of one call each."""
        sizes = self.shape.key, self.shape.element
        buffers = [_buffer(bytes(size * _BATCH)) for size in sizes]
        # The number of the bucket where the next batch begins.
        cursor = _buffer(bytes(4))
        beginning, is_last = 0, False
        while not is_last:
            at = [ctypes.addressof(buffer) for buffer in (cursor, *buffers)]
            request = bytearray(
                struct.pack("=QQQQIIQQ", beginning, *at, _BATCH, self.descriptor, 0, 0)
            )
            is_last = True
            with Ignoring(errno.ENOENT):
                _bpf_in(_LOOK_UP_BATCH, f"list map {self.shape.name}", request)
                is_last = False
            (count,) = struct.unpack_from("=I", request, 32)
            keys, elements = (
                struct.iter_unpack(f"{size}s", memoryview(buffer)[: size * count])
                for size, buffer in zip(sizes, buffers, strict=True)
            )
            yield from ((key, element) for (key,), (element,) in zip(keys, elements, strict=True))
            beginning = at[0]


@dataclass(frozen=True, slots=True)
class BpfProgram:
    """A loaded program. `tag` is a digest of its code, and `maps` has the numbers of its maps."""

    name: str
    tag: bytes
    maps: tuple[int, ...]
    descriptor: int


def create_map(shape: MapShape) -> BpfMap:
    flags = 0 if shape.kind == ARRAY else _NO_PREALLOC
    made = (shape.kind, shape.key, shape.element, shape.capacity, flags, 0, 0)
    text = f"make map {shape.name}"
    return _opened(_bpf(_CREATE, text, "7I16s", *made, shape.name.encode()))


def load(name: str, text: str, maps: Iterable[BpfMap]) -> BpfProgram:
    """Load a program of traffic control."""
    code = _buffer(assembled(text, {held.shape.name: held.descriptor for held in maps}))
    # No function is called that the kernel keeps for programs under the GPL.
    licence = _buffer(b"Apache-2.0\0")
    at = ctypes.addressof(code), ctypes.addressof(licence)
    program = (_SCHED_CLS, len(code) // 8, *at, 0, 0, 0, 0, 0, name.encode())
    return _described(_bpf(_LOAD, f"load program {name}", "IIQQIIQII16s", *program))


def open_program(number: int) -> BpfProgram:
    """A program by its number; KernelError (ENOENT) if there is none any more."""
    return _described(_bpf(_PROGRAM_BY_ID, f"open program {number}", "III", number, 0, 0))


def _described(descriptor: int) -> BpfProgram:
    numbers = (ctypes.c_uint32 * _MOST_MAPS)()
    # `nr_map_ids` and `map_ids` of struct bpf_prog_info: where the numbers go.
    asked = struct.pack("=52xIQ", _MOST_MAPS, ctypes.addressof(numbers))
    description = _describe(descriptor, asked)
    tag, count, name = struct.unpack_from("=8x8s36xI8x16s", description)
    text = name.rstrip(b"\0").decode()
    return BpfProgram(text, tag, tuple(numbers[:count]), descriptor)


def open_map(number: int) -> BpfMap:
    return _opened(_bpf(_MAP_BY_ID, f"open map {number}", "III", number, 0, 0))


def _opened(descriptor: int) -> BpfMap:
    kind, number, *sizes, name = struct.unpack_from("=5I4x16s", _describe(descriptor))
    shape = MapShape(name.rstrip(b"\0").decode(), kind, *sizes)
    return BpfMap(shape, number, descriptor)


def _describe(descriptor: int, asked: bytes = b"") -> bytes:
    description = _buffer(asked.ljust(_DESCRIPTION_BYTES, b"\0"))
    wanted = descriptor, len(description), ctypes.addressof(description)
    _bpf(_DESCRIBE, "describe a program or map", "IIQ", *wanted)
    return description.raw


def _buffer(content: bytes) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(content, max(len(content), 1))


def _bpf(command: int, text: str, form: str, *fields: int | bytes) -> int:
    return _bpf_in(command, text, bytearray(struct.pack(f"={form}", *fields)))


def _bpf_in(command: int, text: str, request: bytearray) -> int:
    """One call, which may answer within the request."""
    machine = platform.machine()
    if machine not in _CALLS:
        raise SetupError(f"accounting.at: links is not known to work on {machine}; use rules")
    held = (ctypes.c_char * len(request)).from_buffer(request)
    made = int(_libc.syscall(_CALLS[machine], command, ctypes.byref(held), len(request)))
    if made < 0:
        number = ctypes.get_errno()
        # By seccomp, or for want of a capability (docs/accounting.md, "Counting at links").
        remedy = " (allow the agent bpf(2), or count by rules)" if number == errno.EPERM else ""
        raise KernelError(f"{text}{remedy}", number)
    return made
