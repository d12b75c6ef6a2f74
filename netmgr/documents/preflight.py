"""What a fresh node probes before its agent starts: `preflight` of a node document."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, NamedTuple

from netmgr.documents.fields import AddressText, Document
from netmgr.documents.limits import BitRate
from netmgr.documents.schema import BeforeValidator, Field, PlainSerializer
from netmgr.prefixes import Address

MOST_ADDRESSES = 256
"""Of each list. A run draws a few of them."""

LARGEST_PORT = 65_535
_LABEL = "[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"


class Unmeasured(StrEnum):
    """What a check that could not be carried out means."""

    PASS = "pass"  # noqa: S105  no password
    FAIL = "fail"


class Endpoint(NamedTuple):
    """A TCP port of one address."""

    address: Address
    port: int

    def __str__(self) -> str:
        shown = f"[{self.address}]" if ":" in str(self.address) else str(self.address)
        return f"{shown}:{self.port}"


def _to_endpoint(value: object) -> Endpoint:
    if isinstance(value, Endpoint):
        return value
    head, _, port = str(value).rpartition(":")
    is_port = port.isascii() and port.isdigit() and 1 <= int(port) <= LARGEST_PORT
    is_bracketed = head.startswith("[") and head.endswith("]")
    if not is_port or (":" in head) is not is_bracketed:
        raise ValueError(
            f"{str(value)[:80]!r} is no ADDRESS:PORT; write 203.0.113.1:443 or [2001:db8::1]:443"
        )
    return Endpoint(Address.parse(head[1:-1] if is_bracketed else head), int(port))


EndpointText = Annotated[Endpoint, BeforeValidator(_to_endpoint), PlainSerializer(str)]
Addresses = Annotated[tuple[AddressText, ...], Field(max_length=MOST_ADDRESSES)]


class Preflight(Document):
    """Where probes go, and what has to come of them. What is not given is not probed."""

    peers: Addresses = ()
    """Machines of the same cluster that are there before its nodes: a few are drawn."""
    hub: Addresses = ()
    """The hub's routers."""
    egress: Annotated[tuple[EndpointText, ...], Field(max_length=8)] = ()
    """TCP ports in the internet; one of each family has to accept a connection."""
    dns_name: Annotated[
        str | None, Field(max_length=253, pattern=rf"^{_LABEL}(\.{_LABEL})*\.?$")
    ] = None
    """A name of which the machine's nameservers have to know an address."""
    least_throughput: BitRate | None = None
    """Bits a second that a peer's exporter has to be able to send (`--throughput-test` there)."""
    most_loss: Annotated[float, Field(ge=0, lt=1)] = 0.02
    """The share of echoes that may stay unanswered."""
    exporter_port: Annotated[int, Field(ge=1, le=LARGEST_PORT)] = 9119
    """The peers' and the hub's exporters': asked for throughput, and by TCP where no echo comes."""
    unmeasured: Unmeasured = Unmeasured.PASS
    """Whether a check passes that could not be carried out."""
    answer_seconds: Annotated[float, Field(gt=0, le=30)] = 2
    """How long an answer is waited for."""
    throughput_seconds: Annotated[float, Field(ge=0, le=600)] = 30
    """How long peers are asked that are busy with other nodes' tests."""
