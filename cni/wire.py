r"""The bytes between launcher and agent, and in the spool of DELs the launcher keeps.

A request is `netmgr-cni 1`, every CNI_* variable and NETMGR_STARTED as `NAME=value`, and an empty
string, each with a NUL after it; then standard input up to the end. A reply is the exit code in
decimal, a line feed, and standard output up to the end.
"""

from __future__ import annotations

from collections.abc import Mapping

from netmgr.errors import IoFailure

_PROTOCOL = b"netmgr-cni "
GREETING = _PROTOCOL + b"1"
"""Name and version of the protocol. A launcher of another version is refused, never guessed at."""

# Variables need not be text: other bytes survive a round trip, and fail validation later.
CODING = ("utf-8", "surrogateescape")

STARTED = "NETMGR_STARTED"
"""Variable with the time the launcher began: nanoseconds since boot (CLOCK_BOOTTIME)."""

# More bytes than the launcher ever sends: 256 KiB of variables and 1 MiB of standard input.
MAX_MESSAGE = 2 * 1024 * 1024


# Looked for in the bytes: whoever reads a request asks this of each, before any is decoded.
_LOOKS = (b"\0CNI_COMMAND=STATUS\0", b"\0CNI_COMMAND=CHECK\0")


def only_looks(request: bytes) -> bool:
    """Whether a request changes nothing, and is soon over."""
    return any(verb in request for verb in _LOOKS)


def encode_request(environment: Mapping[str, str], stdin: bytes) -> bytes:
    """The request the launcher would send for this environment."""
    variables = []
    for name, value in environment.items():
        if name == STARTED or name.startswith("CNI_"):
            variables.append(f"{name}={value}".encode(*CODING))
    return b"\0".join((GREETING, *variables, b"", stdin))


def decode_request(message: bytes) -> tuple[dict[str, str], bytes]:
    """The CNI_* variables and standard input; IoFailure for another protocol or half a request."""
    greeting, _, rest = message.partition(b"\0")
    if greeting != GREETING:
        raise IoFailure(
            f"the launcher speaks {greeting[:32]!r}, this agent {GREETING!r}: install the launcher "
            "again"
        )
    environment: dict[str, str] = {}
    while True:
        entry, end, rest = rest.partition(b"\0")
        if not end:
            raise IoFailure("the launcher's request ended before its variables did")
        if not entry:
            return environment, rest
        name, _, value = entry.partition(b"=")
        # Of a variable that comes twice the first one counts, as for the launcher's getenv(3).
        environment.setdefault(name.decode(*CODING), value.decode(*CODING))


def is_of_another_version(message: bytes) -> bool:
    """Whether a launcher made this request that speaks another version of the protocol."""
    greeting, end, _ = message.partition(b"\0")
    return bool(end) and greeting.startswith(_PROTOCOL) and greeting != GREETING


def encode_reply(exit_code: int, stdout: bytes) -> bytes:
    """What the agent answers: the launcher's exit code and what it prints."""
    return b"%d\n%s" % (exit_code, stdout)
