"""ICMP echoes, with the size and the source that are asked for (RFC 792, RFC 4443).

The machine's kernel answers with the packet it got, so that an answer is as large as its request
and comes to the request's source. Whole packets are sent, never fragments.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import NamedTuple

from netmgr.errors import SetupError
from netmgr.prefixes import Address, Family
from netmgr.preflight import waiting

_HEADER = struct.Struct("!BBHHH")
_REQUEST = {Family.V4: 8, Family.V6: 128}
_ANSWER = {Family.V4: 0, Family.V6: 129}
_IP_HEADER = {Family.V4: 20, Family.V6: 40}
_PROTOCOL = {Family.V4: socket.IPPROTO_ICMP, Family.V6: socket.IPPROTO_ICMPV6}

# Bytes of an echo whose size does not matter, as ping(8) sends.
SMALL = 84

# linux/in.h, linux/in6.h, linux/icmp.h, linux/icmpv6.h.
_SOL_RAW, _ICMP_FILTER = 255, 1
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PROBE = 10, 23, 3
_ICMPV6_FILTER = 1
# IPv4's answers may be fragmented on their way back: the kernel says how large the fragments were.
_RECEIVED_FRAGMENTS = {Family.V4: (socket.IPPROTO_IP, 25), Family.V6: (socket.IPPROTO_IPV6, 77)}
_LARGEST = 65_535
# Packets that are taken from one socket before another's turn.
_AT_ONCE = 64


class Echo(NamedTuple):
    """One request: where to, how large (bytes of the IP packet), and with which source."""

    target: Address
    size: int = SMALL
    source: Address | None = None
    """Without one, the kernel chooses this machine's address."""


@dataclass(slots=True)
class EchoAnswer:
    is_back: bool = False
    """Whether it was answered."""
    fragment: int = 0
    """Size of the largest fragment that the answer came in; 0 where it came whole."""
    fault: str = ""
    """Why the kernel did not even send it."""


def exchange(echoes: Iterable[Echo], seconds: float, apart: float = 0.0) -> list[EchoAnswer]:
    """Send echoes `apart` seconds apart, and wait `seconds` for the last answers."""
    asked = list(echoes)
    answers = [EchoAnswer() for _ in asked]
    with ExitStack() as stack:
        conversations: dict[tuple[Address, Address | None], _Conversation] = {}
        for echo, answer in zip(asked, answers, strict=True):
            key = (echo.target, echo.source)
            if key not in conversations:
                conversations[key] = _Conversation(*key)
                stack.enter_context(conversations[key].socket)
            conversations[key].add(echo.size, answer)
        listening = {
            conversation.socket: conversation.receive for conversation in conversations.values()
        }
        begin = time.monotonic()
        for number, echo in enumerate(asked, start=1):
            conversations[echo.target, echo.source].send()
            if apart:
                waiting.serve(listening, selectors.EVENT_READ, begin + number * apart)
                # All may be answered by now, and the next one is not due yet.
                time.sleep(max(0.0, begin + number * apart - time.monotonic()))
        waiting.serve(listening, selectors.EVENT_READ, time.monotonic() + seconds)
    return answers


class _Conversation:
    """One socket: requests from one source to one machine, and their answers."""

    def __init__(self, target: Address, source: Address | None) -> None:
        self._family = target.family
        # Beside other programs' pings, and so that nobody can answer who did not see the request.
        self._identifier = int.from_bytes(os.urandom(2), "big")
        self._secret = os.urandom(16)
        self._requests: list[bytes] = []
        self._answers: list[EchoAnswer] = []
        self._sent = 0
        self._fault = ""
        try:
            # Raw: the kernel's own ping sockets are closed to root by default
            # (net.ipv4.ping_group_range).
            self.socket = socket.socket(
                socket.AddressFamily(self._family.af), socket.SOCK_RAW, _PROTOCOL[self._family]
            )
        except PermissionError:
            raise SetupError("echoes cannot be sent: be root (CAP_NET_RAW is needed)") from None
        self._set_options()
        try:
            if source is not None:
                self.socket.bind((str(source), 0))
            # So that only the machine that is asked can answer.
            self.socket.connect((str(target), 0))
        except OSError as error:
            self._fault = error.strerror or str(error)

    def _set_options(self) -> None:
        self.socket.settimeout(0)
        if self._family is Family.V4:
            # Never fragmented, whatever path MTU the kernel remembers. A type whose bit is set in
            # the filter is not received, in either family.
            self.socket.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PROBE)
            all_but = ~(1 << _ANSWER[self._family]) & 0xFFFFFFFF
            self.socket.setsockopt(_SOL_RAW, _ICMP_FILTER, struct.pack("=I", all_but))
        else:
            self.socket.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PROBE)
            number = _ANSWER[self._family]
            words = [0xFFFFFFFF] * 8
            words[number >> 5] &= ~(1 << (number & 31)) & 0xFFFFFFFF
            self.socket.setsockopt(
                socket.IPPROTO_ICMPV6, _ICMPV6_FILTER, struct.pack("=8I", *words)
            )
        with suppress(OSError):  # Linux 4.11; without it fragments are not noticed
            self.socket.setsockopt(*_RECEIVED_FRAGMENTS[self._family], 1)

    def add(self, size: int, answer: EchoAnswer) -> None:
        room = max(len(self._secret), size - _IP_HEADER[self._family] - _HEADER.size)
        payload = self._secret.ljust(room, b"\0")
        self._requests.append(self._packet(len(self._requests), payload))
        self._answers.append(answer)

    def send(self) -> None:
        answer, request = self._answers[self._sent], self._requests[self._sent]
        self._sent += 1
        answer.fault = self._fault or self._try_to_send(request)

    def _try_to_send(self, request: bytes) -> str:
        fault = ""
        # The first failure may be an ICMP error about an earlier request.
        for _ in range(2):
            try:
                self.socket.send(request)
            except OSError as error:
                fault = error.strerror or str(error)
            else:
                return ""
        return fault

    def receive(self) -> bool:
        """Take what has come; whether every request that was sent is answered."""
        for _ in range(_AT_ONCE):
            try:
                packet, notes, _, _ = self.socket.recvmsg(_LARGEST, socket.CMSG_SPACE(4))
            except BlockingIOError:
                break
            except OSError:
                # An ICMP error from a router: what counts is that no echo comes.
                continue
            self._take(packet, notes)
        return self._sent == len(self._answers) and all(
            answer.is_back or answer.fault for answer in self._answers
        )

    def _take(self, packet: bytes, notes: Sequence[tuple[int, int, bytes]]) -> None:
        if self._family is Family.V4:
            # A raw socket of IPv4 gets the IP header, too.
            packet = packet[(packet[0] & 0xF) * 4 :] if packet else b""
        if len(packet) < _HEADER.size:
            return
        number = _HEADER.unpack_from(packet)[4]
        # An answer equals its request but for type and checksum. Other types are filtered.
        if number < self._sent and packet[4:] == self._requests[number][4:]:
            answer = self._answers[number]
            answer.is_back = True
            for _, _, data in notes:
                (answer.fragment,) = struct.unpack_from("=i", data)

    def _packet(self, number: int, payload: bytes) -> bytes:
        kind = _REQUEST[self._family]
        packet = _HEADER.pack(kind, 0, 0, self._identifier, number) + payload
        # The kernel fills in ICMPv6's, which covers the addresses.
        checksum = _checksum(packet) if self._family is Family.V4 else 0
        return _HEADER.pack(kind, 0, checksum, self._identifier, number) + payload


def _checksum(packet: bytes) -> int:
    """RFC 1071."""
    padded = packet + b"\0" * (len(packet) % 2)
    total: int = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total > 0xFFFF:  # noqa: PLR2004  what fits 16 bits
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
