"""A real server of budgets for the length of a block, which takes the names of nodes for tokens."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from exporter import access
from netmgr.budgets import messages
from netmgr.budgets.identity import IdentityRefused, TokenVerifier
from netmgr.budgets.keeping import BudgetsInForce, Keeper, ServerState
from netmgr.budgets.messages import Budget
from netmgr.budgets.server import BudgetServer, by_certificate, by_token
from netmgr.model import Traffic
from tests.fakes.authority import Authority
from tests.waiting import eventually

SAID = BudgetsInForce((Budget("all", "", ("*",), Traffic.INTERNET_IN, 10**9),), "v1", enforce=True)
NESTED = BudgetsInForce(
    (
        Budget("everyone", "", ("*",), Traffic.INTERNET_IN, 10**9),
        Budget("some", "everyone", ("a*",), Traffic.INTERNET_IN, 10**8, per_day=10**12),
    ),
    "v1",
    enforce=True,
)
NODES = {"node-1": 10, "node-2": 10}


class Tokens(TokenVerifier):
    def __init__(self) -> None:
        """Ask nobody for keys."""

    def node(self, token: str) -> str:
        if not token.startswith("node-"):
            raise IdentityRefused("token", "no node")
        return token


class NowhereKept:
    def read(self) -> ServerState | None:
        # Not the first leader, which would lend at once.
        return ServerState(1, {})

    def write(self, state: ServerState) -> None:
        """Keep it nowhere."""


def start(folder: Path, nodes: Mapping[str, int] | None = None) -> BudgetServer:
    """One with the certificate of a folder, that does not lead yet; `nodes` have certificates."""
    tls = access.folder_tls("--tls", folder, clients=bool(nodes)).value
    known = by_certificate(lambda: nodes) if nodes else by_token(Tokens())
    made = BudgetServer(("127.0.0.1", 0), tls, known)
    made.start()
    return made


def lead(server: BudgetServer, lost: threading.Event, said: BudgetsInForce = SAID) -> Keeper:
    """Have it lead until `lost` is set."""
    keeper = Keeper(server, NowhereKept(), lost)
    keeper.look(said, NODES)
    eventually(lambda: server.leading)
    return keeper


class Leader(NamedTuple):
    address: str
    authority: Authority

    @property
    def credentials(self) -> Path:
        """Of an operator, who trusts it."""
        return self.authority.file.parent


@contextmanager
def leading(folder: Path, said: BudgetsInForce = SAID) -> Iterator[Leader]:
    authority, lost = Authority(folder), threading.Event()
    server = start(authority.certify(messages.SERVER_NAME))
    lead(server, lost, said)
    try:
        yield Leader(f"127.0.0.1:{server.port}", authority)
    finally:
        lost.set()
