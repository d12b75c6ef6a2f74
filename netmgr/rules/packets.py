"""Matches on what a packet is, beside its addresses and links: its way back, its type, its ports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Returnable:
    """The route back to the packet's source leads (or, negated, does not lead) out of the link it came in by.

    RFC 3704, strict. A source that the kernel cannot judge, as 0.0.0.0 that asks everybody for an address, is taken.
    """

    negated: bool = False

    def __str__(self) -> str:
        return f"{'not ' if self.negated else ''}returnable by the same link"


@dataclass(frozen=True, slots=True)
class IcmpType:
    """An ICMP or, in a rule of IPv6, ICMPv6 message of this type."""

    number: int

    def __str__(self) -> str:
        return f"ICMP type {self.number}"


@dataclass(frozen=True, slots=True)
class Asking:
    """The packet goes the way its connection was begun, and answers to it come from another port than `besides`.

    The port is that after all translation; the address that answers is the packet's destination, where it is looked at.
    """

    besides: int

    def __str__(self) -> str:
        return f"asking, not port {self.besides}"


@dataclass(frozen=True, slots=True)
class UdpTo:
    """A datagram to this port."""

    port: int

    def __str__(self) -> str:
        return f"UDP to {self.port}"
