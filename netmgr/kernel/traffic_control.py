"""Traffic control of a link, as rtnetlink messages: HTB's classes and their queues.

See tc-htb(8) and linux/pkt_sched.h. A link whose root is HTB sends what has no class at once; the
others wait until their class, and the class that it is in, may send.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass, replace

from netmgr.errors import KernelError
from netmgr.kernel import netlink
from netmgr.kernel.netlink import Operation

_NEW_QDISC, _NEW_CLASS, _DELETE_CLASS, _GET_CLASS = 36, 40, 41, 42
_TCMSG = struct.Struct("=BxxxiIII")
_KIND, _OPTIONS, _STATS2 = 1, 2, 7
_STATS_BASIC, _STATS_QUEUE, _STATS_APP = 1, 3, 4
_HTB_PARMS, _HTB_INIT, _HTB_RATE64, _HTB_CEIL64, _HTB_VERSION = 1, 2, 6, 7, 3
_RATE = struct.Struct("=BBHhHI")
_CLASS_OPTIONS = struct.Struct("=IIIII")
_BASIC = struct.Struct("=QI")
_QUEUE = struct.Struct("=IIIII")
# tc_htb_xstats, as far as what is left of the ceiling's burst.
_TOKENS = struct.Struct("=IIIii")
# TC_LINKLAYER_ETHERNET. With it, HTB computes a packet's time and needs no table of them.
_ETHERNET = 1
# The unit of a class's burst: PSCHED_SHIFT is 6.
_TICK_NANOSECONDS = 64
_AT_ROOT = 0xFFFFFFFF
# HTB's handle is 1:, and so is the first half of its classes'.
_MAJOR = 1 << 16

# Bytes that a class sends before its neighbour has its turn. At least the longest packet: HTB
# forgets what a class sent beyond it, so that large packets would get more than their share.
QUANTUM = 65_536

# Of a queue that is not fair: two of the longest packets, or what the class sends in this time.
_LEAST_QUEUE_BYTES, _QUEUE_SECONDS = 131_072, 0.05


@dataclass(frozen=True, slots=True)
class Shape:
    """What a class may send.

    Attributes:
        parent: the number of the class that it is in; 0 for none.
        rate: bytes a second that it always has.
        ceiling: the most bytes a second, if the class that it is in has some left.
        burst: bytes that it may send at once after a pause.
    """

    parent: int
    rate: int
    ceiling: int
    burst: int

    def is_like(self, other: Shape) -> bool:
        """Whether both are the same to the kernel, which keeps bursts in units of 64 ns."""
        tolerance = 1 + self.ceiling * _TICK_NANOSECONDS // 10**9
        is_near = abs(self.burst - other.burst) <= tolerance
        return is_near and replace(self, burst=other.burst) == other


@dataclass(frozen=True, slots=True)
class ClassUsage:
    """What a class has sent since it was made (gen_stats); bytes include Ethernet headers."""

    bytes: int
    packets: int
    dropped: int
    delayed: int
    """How often it had to wait."""
    backlog: int
    """Bytes that wait now."""
    is_over: bool = False
    """Whether its ceiling let it send nothing when it was last looked at by the kernel."""


def make_root(index: int) -> Operation:
    """Put HTB at the root of a link that sends by the system's default (EEXIST if it is there)."""
    # `defcls` 0: what has no class passes at once. 10 is tc's own `r2q`, which no class here uses:
    # each has its quantum.
    options = {_HTB_INIT: struct.pack("=IIIII", _HTB_VERSION, 10, 0, 0, 0)}
    body = _body(index, _MAJOR, _AT_ROOT, "htb", options)
    return Operation(f"qdisc add dev {index} root htb", _NEW_QDISC, netlink.ADD, body)


def put_class(index: int, number: int, shape: Shape) -> Operation:
    """Make a class, or change what it may send."""
    # Older fields of 32 bits; the kernel takes the larger of each and its attribute of 64
    # (psched_ratecfg_precompute).
    rate, ceiling = (min(bytes_, 0xFFFFFFFF) for bytes_ in (shape.rate, shape.ceiling))
    bursts = _ticks(shape.burst, shape.rate), _ticks(shape.burst, shape.ceiling)
    options = {
        _HTB_PARMS: _RATE.pack(0, _ETHERNET, 0, 0, 0, rate)
        + _RATE.pack(0, _ETHERNET, 0, 0, 0, ceiling)
        + _CLASS_OPTIONS.pack(*bursts, QUANTUM, 0, 0),
        _HTB_RATE64: struct.pack("=Q", shape.rate),
        _HTB_CEIL64: struct.pack("=Q", shape.ceiling),
    }
    body = _body(index, _MAJOR | number, _MAJOR | shape.parent, "htb", options)
    text = f"class replace dev {index} 1:{number:x} htb ceil {shape.ceiling * 8}"
    return Operation(text, _NEW_CLASS, netlink.REPLACE, body)


def delete_class(index: int, number: int) -> Operation:
    """Delete a class and what waits in it; EBUSY while others are in it."""
    body = _TCMSG.pack(0, index, _MAJOR | number, 0, 0)
    text = f"class delete dev {index} 1:{number:x}"
    return Operation(text, _DELETE_CLASS, netlink.NLM_F_ACK, body)


def add_queue(channel: netlink.Netlink, index: int, number: int, shape: Shape) -> None:
    """Give a class a queue that is fair to its connections, or a short one without such a kind."""
    # HTB's own queue has as many packets as the link's, 32 for an IFB, at any rate.
    try:
        channel.transact([_queue(index, number, "fq_codel", None)])
    except KernelError as error:
        if error.errno == errno.EINVAL:
            # It has a queue of another kind already.
            return
        if error.errno != errno.ENOENT:
            raise
        limit = max(_LEAST_QUEUE_BYTES, int(shape.ceiling * _QUEUE_SECONDS))
        channel.transact([_queue(index, number, "bfifo", struct.pack("=I", limit))])


def _queue(index: int, number: int, kind: str, options: bytes | None) -> Operation:
    body = _body(index, number << 16, _MAJOR | number, kind, options)
    text = f"qdisc replace dev {index} parent 1:{number:x} {kind}"
    return Operation(text, _NEW_QDISC, netlink.REPLACE, body)


def _body(index: int, handle: int, parent: int, kind: str, options: netlink.Value) -> bytes:
    head = _TCMSG.pack(0, index, handle, parent, 0)
    return head + netlink.encoded({_KIND: kind, _OPTIONS: options})


def read_classes(channel: netlink.Netlink, index: int) -> dict[int, tuple[Shape, ClassUsage]]:
    """The classes of a link by number; none if it has no HTB."""
    body = _TCMSG.pack(0, index, 0, 0, 0)
    request = Operation(f"class show dev {index}", _GET_CLASS, netlink.NLM_F_DUMP, body)
    return dict(channel.dump(request, _class_of))


def _class_of(body: bytes) -> tuple[int, tuple[Shape, ClassUsage]] | None:
    _, _, handle, parent, _ = _TCMSG.unpack_from(body)
    attributes = netlink.attributes(body, _TCMSG.size)
    options = netlink.attributes(attributes.get(_OPTIONS, b""))
    if netlink.string_of(attributes.get(_KIND, b"")) != "htb" or _HTB_PARMS not in options:
        return None
    parameters = options[_HTB_PARMS]
    *_, rate = _RATE.unpack_from(parameters)
    *_, ceiling = _RATE.unpack_from(parameters, _RATE.size)
    _, ticks, *_ = _CLASS_OPTIONS.unpack_from(parameters, 2 * _RATE.size)
    rate, ceiling = (
        struct.unpack("=Q", options[key])[0] if key in options else plain
        for key, plain in ((_HTB_RATE64, rate), (_HTB_CEIL64, ceiling))
    )
    # 0 for a class below the root, whose number is HTB's own handle.
    inside = 0 if parent == _AT_ROOT else parent & 0xFFFF
    shape = Shape(inside, rate, ceiling, ticks * _TICK_NANOSECONDS * ceiling // 10**9)
    statistics = netlink.attributes(attributes.get(_STATS2, b""))
    size, packets = _BASIC.unpack_from(statistics[_STATS_BASIC])
    _, backlog, dropped, _, delayed = _QUEUE.unpack_from(statistics[_STATS_QUEUE])
    *_, left = _TOKENS.unpack_from(statistics[_STATS_APP])
    usage = ClassUsage(size, packets, dropped, delayed, backlog, left < 0)
    return handle & 0xFFFF, (shape, usage)


def _ticks(size: int, rate: int) -> int:
    return min(0xFFFFFFFF, size * 10**9 // rate // _TICK_NANOSECONDS)
