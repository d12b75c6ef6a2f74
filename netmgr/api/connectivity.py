"""What the pods of `netmgr connectivity-test` are asked to probe, and what they print.

A client gets its task as an argument and prints one line; both are JSON. Whoever controls a node
decides what its pods print, so an answer is parsed strictly.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

PORT = 20007
"""Of the servers, TCP and UDP."""

STREAM_BYTES = 256 * 1024
"""What is sent over TCP, and comes back: packets of full size, both ways."""

TRY_SECONDS, PATIENCE_SECONDS = 4.0, 12.0
"""How long one attempt lasts, and how long attempts go on."""

CLIENT_SECONDS = 8 * PATIENCE_SECONDS
"""A client ends within this time, whatever it gets for answers."""

MOST_TARGETS = 4
"""In the internet, and as many inside, and as many that should be unreachable."""

LONGEST_ANSWER = 256 * 1024

MOST_PROBES = 256
LARGEST_PORT = 65_535


class ProbeTarget(NamedTuple):
    """A port of an address or of a name."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> ProbeTarget:
        """Read `HOST:PORT` or `[IPv6]:PORT`; ValueError for anything else."""
        head, _, port = text.rpartition(":")
        is_bracketed = head.startswith("[") and head.endswith("]")
        host = head[1:-1] if is_bracketed else head
        is_port = port.isascii() and port.isdigit() and 1 <= int(port) <= LARGEST_PORT
        if not host or not is_port or (":" in head) is not is_bracketed:
            raise ValueError(
                f"{text!r} is no HOST:PORT; write example.com:443 or [2001:db8::1]:443"
            )
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Result(StrEnum):
    OK = "ok"
    NO_ANSWER = "no-answer"
    REFUSED = "refused"
    STALLED = "stalled"
    """Small packets came through, and large ones did not."""
    NO_NAME = "no-name"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Probe(_Part):
    """An echo, a connection, any answer at all (a refusal too), or a name's address."""

    by: Literal["tcp", "udp", "connect", "reach", "dns"]
    host: str
    port: int = PORT


class ProbeTask(_Part):
    """What a client probes.

    Attributes:
        probes: tried until they succeed, or the patience is over.
        internet: TCP connections, in a phase of their own whose bytes are reported.
        unreachable: TCP connections that should get no answer; tried once.
    """

    probes: Annotated[tuple[Probe, ...], Field(max_length=MOST_PROBES)]
    internet: Annotated[tuple[ProbeTarget, ...], Field(max_length=MOST_TARGETS)] = ()
    unreachable: Annotated[tuple[ProbeTarget, ...], Field(max_length=MOST_TARGETS)] = ()


# What an answer says goes to terminals and into findings: addresses and nothing else.
_Text = Annotated[str, Field(max_length=64, pattern=r"^[0-9a-f.:]*$")]
_Bytes = Annotated[int, Field(ge=0, le=10**15)]


class Ending(_Part):
    """What came of a probe.

    `seen` is the client's address as the server saw it, or a name's; `reason` is the system's.
    """

    result: Result
    seen: Annotated[tuple[_Text, ...], Field(max_length=16)] = ()
    reason: Annotated[str, Field(max_length=200)] = ""


class Sent(_Part):
    """IP bytes of a phase, as the pod's own kernel counted them; without what was sent to many.

    `icmpv6_…` are messages: neighbour discovery is among them, which no router forwards.
    """

    bytes_out: _Bytes = 0
    bytes_in: _Bytes = 0
    icmpv6_out: _Bytes = 0
    icmpv6_in: _Bytes = 0


class ProbeAnswer(_Part):
    """What a client prints: endings in the order of its task, and two phases' bytes."""

    probes: Annotated[tuple[Ending, ...], Field(max_length=MOST_PROBES)]
    internet: Annotated[tuple[Ending, ...], Field(max_length=MOST_PROBES)] = ()
    unreachable: Annotated[tuple[Ending, ...], Field(max_length=MOST_PROBES)] = ()
    to_internet: Sent = Sent()
    to_unreachable: Sent = Sent()
