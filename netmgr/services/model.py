"""What a NAT host opens: addresses and ports that the hub sees, and the endpoints behind each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from netmgr.prefixes import Address, Family


class Protocol(IntEnum):
    """A transport protocol that a Service may have; the value is its number in the IP header."""

    TCP = 6
    UDP = 17
    SCTP = 132

    def __str__(self) -> str:
        return self.name.lower()


class ServicePort(NamedTuple):
    """Where the hub's clients connect to."""

    address: Address
    """As the hub sees it."""
    protocol: Protocol
    port: int

    @property
    def family(self) -> Family:
        """The IP version, the endpoints' too."""
        return self.address.family

    def __str__(self) -> str:
        return f"{_with_port(self.address, self.port)}/{self.protocol}"


class Endpoint(NamedTuple):
    """Where a connection goes on to."""

    address: Address
    port: int

    def __str__(self) -> str:
        return _with_port(self.address, self.port)


@dataclass(frozen=True, slots=True)
class Frontend:
    """What is behind a ServicePort; without endpoints connections are refused.

    `sticky`: a client, known by its address, always reaches the same endpoint while that endpoint
    is there (Kubernetes' `sessionAffinity: ClientIP`).
    """

    endpoints: frozenset[Endpoint]
    sticky: bool = False


@dataclass(frozen=True, slots=True, order=True)
class ServiceName:
    """Namespace and name of a Kubernetes Service."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """One ServicePort as it is exposed now.

    `hits` are connections that clients began, None if not counted.
    """

    service: ServiceName
    vip: ServicePort
    ready: tuple[Endpoint, ...]
    """Those that new connections go to; terminating ones when nothing else serves."""
    draining: tuple[Endpoint, ...]
    """Those that only keep the connections they have."""
    sticky: bool
    hits: int | None = None


def _with_port(address: Address, port: int) -> str:
    return f"{address}:{port}" if address.family is Family.V4 else f"[{address}]:{port}"
