"""Sends many probes at once, and reports what the far end of each saw.

All sockets are in one loop of one process: a probe that should arrive is answered and the answer
awaited; one that should not gets a moment in which it would have arrived. Each carries
its number, so that no answer is taken for another's.
"""

from __future__ import annotations

import errno
import selectors
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from netmgr.prefixes import Address
from tests.lab.exchange import End, open_socket
from tests.lab.matrix import Probe
from tests.lab.services import TARGET_PORT
from tests.lab.traffic import Protocol

PATIENCE = 5.0
"""Seconds until a probe that should arrive counts as lost."""

MOMENT = 0.4
"""Seconds in which a probe that should not arrive would have arrived."""

_NUMBER = struct.Struct("!I")
_KIND = {Protocol.TCP: socket.SOCK_STREAM, Protocol.UDP: socket.SOCK_DGRAM}
_TOTAL_RETRANSMITS = 100  # offset of tcpi_total_retrans in struct tcp_info, linux/tcp.h
_UNDER_WAY = (0, errno.EINPROGRESS)
_BACKLOG = 512


@dataclass
class Outcome:
    """What became of a probe.

    Attributes:
        source: the client's address as the far end saw it; None while nothing arrived.
        answered: whether the answer came back.
        packets: how many the client sent, retransmissions included, while nothing came back.
        error: what the client's kernel said.
    """

    probe: Probe
    source: Address | None = None
    answered: bool = False
    packets: int = 1
    error: str = ""


@dataclass
class _Client:
    outcome: Outcome
    number: int
    handle: socket.socket

    def start(self) -> None:
        probe = self.outcome.probe
        # A stream's connect returns before the handshake; `writable` learns how that ended.
        failed = self.handle.connect_ex((str(probe.target), probe.port))
        if failed not in _UNDER_WAY:
            self.outcome.error = errno.errorcode[failed]
        elif probe.protocol is Protocol.UDP:
            self._send()

    def writable(self) -> None:
        """A stream is connected, or failed to."""
        if failed := self.handle.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.outcome.error = errno.errorcode[failed]
        else:
            self._send()

    def _send(self) -> None:
        try:
            self.handle.send(_NUMBER.pack(self.number))
        except OSError as error:  # a rule at the output hook drops it: EPERM
            self.outcome.error = errno.errorcode[error.errno or 0]

    def readable(self) -> None:
        try:
            self.outcome.answered = self.handle.recv(_NUMBER.size) == _NUMBER.pack(self.number)
            self.outcome.error = "" if self.outcome.answered else "another answer"
        except OSError as error:
            self.outcome.error = errno.errorcode[error.errno or 0]

    def finish(self) -> None:
        """Ask how often the first packet was sent, and stop retransmissions."""
        if self.outcome.probe.protocol is Protocol.TCP:
            # The counters of drops count retransmissions, too, so the expectation has to.
            info = self.handle.getsockopt(
                socket.IPPROTO_TCP, socket.TCP_INFO, _TOTAL_RETRANSMITS + 4
            )
            self.outcome.packets += struct.unpack_from("=I", info, _TOTAL_RETRANSMITS)[0]
        self.handle.close()


@dataclass
class _Run:
    outcomes: Sequence[Outcome]
    selector: selectors.BaseSelector
    closing: ExitStack
    clients: list[_Client] = field(default_factory=list)

    def listen(self, end: End, protocol: Protocol) -> None:
        opened = self._open(end, protocol)
        # Connections of an earlier run keep the port in TIME_WAIT.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((str(end.address), TARGET_PORT))
        if protocol is Protocol.TCP:
            opened.listen(_BACKLOG)
        hear = self._accept if protocol is Protocol.TCP else self._datagram
        self.selector.register(opened, selectors.EVENT_READ, hear)

    def _open(self, end: End, protocol: Protocol) -> socket.socket:
        opened = self.closing.enter_context(
            open_socket(end.namespace, end.address.family, _KIND[protocol])
        )
        opened.settimeout(0)
        return opened

    def _accept(self, listener: socket.socket, _: int) -> None:
        accepted = self.closing.enter_context(listener.accept()[0])
        accepted.settimeout(0)
        self.selector.register(accepted, selectors.EVENT_READ, self._stream)

    def _stream(self, accepted: socket.socket, _: int) -> None:
        with suppress(OSError):
            # A reset of the client is its own outcome, not the listener's.
            if data := accepted.recv(_NUMBER.size):
                self._heard(data, accepted.getpeername()[0])
                accepted.send(data)
                return
        self.selector.unregister(accepted)

    def _datagram(self, far: socket.socket, _: int) -> None:
        with suppress(OSError):
            data, peer = far.recvfrom(_NUMBER.size)
            self._heard(data, peer[0])
            far.sendto(data, peer)

    def _heard(self, data: bytes, peer: str) -> None:
        if len(data) == _NUMBER.size and (number := _NUMBER.unpack(data)[0]) < len(self.outcomes):
            self.outcomes[number].source = Address.parse(peer)

    def send(self) -> None:
        for number, outcome in enumerate(self.outcomes):
            client = _Client(
                outcome, number, self._open(outcome.probe.near, outcome.probe.protocol)
            )
            client.handle.bind((str(outcome.probe.near.address), 0))
            self.clients.append(client)
            client.start()
            waits_for = selectors.EVENT_READ
            if outcome.probe.protocol is Protocol.TCP:
                waits_for |= selectors.EVENT_WRITE
            self.selector.register(client.handle, waits_for, client)

    def pump(self) -> None:
        """Serve every socket until all expected probes arrived and the moment for others passed."""
        began, ready = time.monotonic(), []
        # What is there is served first, however late: a process that was stopped finds it so.
        while ready or (
            (passed := time.monotonic() - began) < PATIENCE
            # Both: expected probes may take long under load, and the others must get their whole
            # moment.
            and (passed < MOMENT or self._missing())
        ):
            ready = self.selector.select(0.05)
            for key, events in ready:
                if isinstance(key.data, _Client):
                    self._serve(key.data, events)
                else:
                    key.data(key.fileobj, events)
        for client in self.clients:
            client.finish()

    def _serve(self, client: _Client, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            # A connected socket stays writable, and would be reported in every round.
            self.selector.modify(client.handle, selectors.EVENT_READ, client)
            client.writable()
        if events & selectors.EVENT_READ:
            client.readable()
        if client.outcome.answered or client.outcome.error:
            self.selector.unregister(client.handle)

    def _missing(self) -> bool:
        return any(
            each.probe.expected_source and not each.answered and not each.error
            for each in self.outcomes
        )


def send(probes: Iterable[Probe]) -> list[Outcome]:
    """Send every probe at once; returns what became of each, in order."""
    outcomes = [Outcome(probe) for probe in probes]
    # A set: many probes share a listener, and an address can be bound only once.
    listening = {(end, each.probe.protocol) for each in outcomes for end in each.probe.listeners}
    with ExitStack() as closing, selectors.DefaultSelector() as selector:
        run = _Run(outcomes, selector, closing)
        for end, protocol in listening:
            run.listen(end, protocol)
        run.send()
        run.pump()
    return outcomes
