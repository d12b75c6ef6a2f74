"""The server of budgets: nodes' reports over HTTPS, one thread for all of them.

Only a leader has a `BudgetAllocator`, which decides everything; others name the leader, with 421.
A report is answered at once: nothing here waits for another node, a file or an API server.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
import time
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from aiohttp import web

from netmgr import descriptors
from netmgr.budgets import messages
from netmgr.budgets.allocator import BudgetAllocator, Ceilings, ReportRefused
from netmgr.budgets.identity import IdentityRefused, TokenVerifier, certified_node
from netmgr.budgets.messages import Budget
from netmgr.budgets.overview import MOST_NODES, largest, statuses
from netmgr.budgets.terms import LEASE
from netmgr.clock import DAY_SECONDS
from netmgr.errors import SetupError
from netmgr.logs import caused_by

FIRST_SECONDS = 10.0
"""A connection without an acceptable report by then is closed: anybody may open some."""

IDLE_SECONDS = LEASE
BACKLOG = 4096

# asyncio keeps a buffer of this size for each connection: 256 KiB are 2 GB of 7,500 nodes.
SSLProtocol.max_size = 16 * 1024

log = logging.getLogger(__name__)


class Leading(NamedTuple):
    """What a leader has: `lost` is set when it leads no more."""

    allocator: BudgetAllocator
    budgets: Sequence[Budget]
    lost: threading.Event


class BudgetServer:
    """Listens when made, answers once started.

    Args:
        tls: asked for each connection, so that renewed certificates take effect.
        identify: the node that a request is of; IdentityRefused.

    Attributes:
        leader: says at which address the leader answers; empty while unknown.
        leading: None while another leads. Its allocator is the server's thread's alone: others
            `run` there what changes it.
        statuses: how budgets stand, a second old at most; empty while another leads.
        silent: nodes that are not heard.
        ceilings: what has to be kept durably before more bytes can be lent.
        counted: reports by what became of them.
    """

    def __init__(
        self,
        address: tuple[str, int],
        tls: Callable[[], ssl.SSLContext] | None,
        identify: Callable[[web.BaseRequest], str],
    ) -> None:
        """Raises SetupError if the address cannot be bound."""
        self.leading: Leading | None = None
        self.statuses: list[dict[str, Any]] = []
        self.silent: list[str] = []
        self.ceilings: Ceilings = {}
        self.counted: Counter[str] = Counter()
        self._shown: dict[str, object] = {}
        self.leader: Callable[[], str] = str
        self._tls, self._identify = tls, identify
        # Connections that have yet to bring a report.
        self._unknown: set[asyncio.BaseProtocol | None] = set()
        host, port = address
        is_ipv6 = ":" in host if host else socket.has_dualstack_ipv6()
        try:
            self._socket = socket.create_server(
                address,
                family=socket.AF_INET6 if is_ipv6 else socket.AF_INET,
                backlog=BACKLOG,
                dualstack_ipv6=is_ipv6 and not host,
            )
        except (OSError, OverflowError) as error:
            raise SetupError(f"cannot listen at {host or '*'}:{port}: {error}") from None
        self.port = int(self._socket.getsockname()[1])
        self._loop = asyncio.new_event_loop()

    def start(self) -> None:
        """Serve in a thread of its own until the process ends."""
        # A connection for each node.
        descriptors.allow_most()
        serve = self._serve()
        threading.Thread(
            target=self._loop.run_until_complete, args=[serve], name="budgets", daemon=True
        ).start()

    def run(self, work: Callable[[], object]) -> None:
        """Do this between two requests."""
        self._loop.call_soon_threadsafe(work)

    async def _serve(self) -> None:
        http = web.Server(
            self._handle,
            access_log=None,
            keepalive_timeout=IDLE_SECONDS,
            # For what is left of a refused body.
            lingering_time=1,
        )

        def connected() -> asyncio.Protocol:
            protocol = http()
            self._unknown.add(protocol)
            self._loop.call_later(FIRST_SECONDS, self._close_unknown, protocol)
            return protocol

        tls = self._renewing()
        # Before TLS is agreed on there is nothing yet that could be closed.
        patience = FIRST_SECONDS if tls else None
        await self._loop.create_server(
            connected, sock=self._socket, ssl=tls, ssl_handshake_timeout=patience
        )
        while True:
            await asyncio.sleep(1)
            self.look()

    def look(self) -> None:
        """Let time pass for the allocator; each second, and in the server's thread alone."""
        self._shown = {}
        leading = self.leading
        if leading is None or leading.lost.is_set():
            self.statuses, self.silent, self.ceilings = [], [], {}
            return
        allocator, budgets, _ = leading
        allocator.tick(time.monotonic(), int(time.time() // DAY_SECONDS))
        self.statuses = statuses(allocator, budgets, time.time())
        self.silent, self.ceilings = allocator.silent(time.monotonic()), allocator.ceilings()

    def _renewing(self) -> ssl.SSLContext | None:
        if self._tls is None:
            return None
        context, tls = self._tls(), self._tls

        def renew(connection: ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
            connection.context = tls()

        context.sni_callback = renew
        return context

    def _close_unknown(self, protocol: web.RequestHandler) -> None:
        if protocol in self._unknown:
            self._unknown.discard(protocol)
            protocol.force_close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            # Another thread may end it meanwhile.
            leading = self.leading
            if leading is None or leading.lost.is_set():
                self.counted["follower"] += 1
                content = {"error": "another one leads", "leader": self.leader()}
                return web.json_response(content, status=HTTPStatus.MISDIRECTED_REQUEST)
            return await self._answer(request, leading.allocator)
        except IdentityRefused as error:
            return self._refuse(HTTPStatus.UNAUTHORIZED, error.reason, error.message)
        except ReportRefused as error:
            return self._refuse(HTTPStatus.CONFLICT, str(error), f"refused: {error}")
        except ValueError as error:
            return self._refuse(HTTPStatus.BAD_REQUEST, "malformed", str(error))

    async def _answer(self, request: web.BaseRequest, allocator: BudgetAllocator) -> web.Response:
        if (request.method, request.path) == ("POST", messages.PATH):
            return await self._report(request, allocator)
        if (request.method, request.path) == ("GET", messages.SHOWN):
            return web.json_response(self._overview(allocator))
        there = f"there are GET {messages.SHOWN} and POST {messages.PATH}"
        return _refusal(HTTPStatus.NOT_FOUND, there)

    async def _report(self, request: web.BaseRequest, allocator: BudgetAllocator) -> web.Response:
        node = self._identify(request)
        report = messages.decode(await request.read(), messages.BudgetReport)
        answer = allocator.answer(node, report, time.monotonic())
        self._unknown.discard(request.protocol)
        self.counted["answered"] += 1
        return web.Response(body=messages.encode(answer), content_type="application/json")

    def _overview(self, allocator: BudgetAllocator) -> dict[str, object]:
        # Once for each look: anybody may ask, as often as they like.
        self._shown = self._shown or {
            "epoch": allocator.epoch,
            "silent": self.silent[:MOST_NODES],
            "budgets": [
                status | {"nodes": largest(allocator, status["name"])} for status in self.statuses
            ],
        }
        return self._shown

    def _refuse(self, status: HTTPStatus, reason: str, message: str) -> web.Response:
        self.counted[reason] += 1
        log.info("report-refused reason=%s error=%s", reason, message, extra=caused_by(reason))
        return _refusal(status, message)


def by_token(verifier: TokenVerifier) -> Callable[[web.BaseRequest], str]:
    """Nodes are known by the tokens of agents' pods."""

    def identify(request: web.BaseRequest) -> str:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            raise IdentityRefused("anonymous", "the report has no token: Authorization: Bearer")
        return verifier.node(token)

    return identify


def by_certificate(nodes: Callable[[], Mapping[str, object]]) -> Callable[[web.BaseRequest], str]:
    """Nodes are known by the certificates that TLS has asked them for."""

    def identify(request: web.BaseRequest) -> str:
        return certified_node(request.get_extra_info("peercert") or {}, nodes())

    return identify


def _refusal(status: HTTPStatus, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)
