"""What the server of budgets costs at the size of a large cluster: a connection for each node.

`python -m tests.bench.budgets FOLDER NODES TLS` is that server: it prints its port, and serves
until its standard input ends.
"""

from __future__ import annotations

import json
import resource
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from socket import IPPROTO_TCP, TCP_NODELAY, create_connection, socket
from tempfile import TemporaryDirectory

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from exporter import access
from netmgr.budgets import messages
from netmgr.budgets.identity import AUDIENCE, ClusterKeys, TokenVerifier
from netmgr.budgets.keeping import BudgetsInForce, Keeper
from netmgr.budgets.messages import Budget, BudgetReport, BudgetUse
from netmgr.budgets.server import BudgetServer, by_token
from netmgr.budgets.terms import PERIOD
from netmgr.model import Traffic
from tests.bench.processor import processor_seconds
from tests.bench.report import Effort, Figure
from tests.fakes.authority import Authority
from tests.fakes.budgets_server import NowhereKept

ACCOUNT, ISSUER = "system:serviceaccount:netmgr:netmgr-node", "https://kubernetes.default.svc"
BUDGETS = 9
SHARE = 30.0
"""Percent of a core, at a report of each of 7,500 nodes every 5 s."""

LARGEST_BATCH = 32
PATIENCE = 60.0


def said() -> BudgetsInForce:
    own = Budget("everyone", "", ("*",), Traffic.INTERNET_IN, 10**11)
    parts = (
        Budget(f"part-{n}", "everyone", (f"team-{n}-*",), Traffic.INTERNET_IN, 10**10, 10**13)
        for n in range(BUDGETS - 1)
    )
    return BudgetsInForce((own, *parts), "0123456789abcdef", enforce=True)


def serve(folder: Path, nodes: int, *, tls: bool) -> None:
    """Run the server whose keys and certificate are in a folder."""
    jwks = json.loads((folder / "jwks.json").read_text())
    verifier = TokenVerifier(lambda: ClusterKeys.of(ISSUER, jwks), ACCOUNT)
    verifier.renew()
    context = access.folder_tls("--tls", folder / "server").value if tls else None
    server = BudgetServer(("127.0.0.1", 0), context, by_token(verifier))
    server.start()
    keeper = Keeper(server, NowhereKept(), threading.Event())
    names = {f"node-{number}": 30 for number in range(nodes)}
    threading.Thread(target=sys.stdin.read).start()
    keeper.look(said(), names)
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    while threading.active_count() > 2:
        keeper.look(said(), names)
        time.sleep(1)


@dataclass
class Process:
    pid: int
    port: int

    @property
    def bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
        return int(line.split()[1]) * 1024


@contextmanager
def serving(folder: Path, nodes: int, *, tls: bool) -> Iterator[Process]:
    arguments = [str(folder), str(nodes), str(int(tls))]
    command = [sys.executable, "-m", "tests.bench.budgets", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        yield Process(process.pid, int(process.stdout.readline()))


class Nodes:
    """All nodes of a cluster, with a connection and a token each."""

    def __init__(self, port: int, tokens: list[str], context: ssl.SSLContext | None) -> None:
        self._tokens = tokens
        self._sequence = 0
        self._connections: list[socket] = []
        use = BudgetUse(2 * 10**7, 10**7, 3, 10**6, 0, 0, 0)
        uses = {budget.name: use for budget in said().budgets}
        report = BudgetReport(0, "0d4f0d2e-boot", 0, said().version, uses)
        self._body = messages.encode(report)
        for node in range(len(tokens)):
            self._connections.append(self._connect(port, context))
            # At once: the server closes those that do not.
            self._send(node)
            self._receive(node)
        self._sequence = len(tokens)

    def _connect(self, port: int, context: ssl.SSLContext | None) -> socket:
        connection = create_connection(("127.0.0.1", port), PATIENCE)
        connection.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        if context:
            return context.wrap_socket(connection, server_hostname=messages.SERVER_NAME)
        return connection

    def report(self, rate: float, number: int) -> float:
        """Send so many reports, so many a second at most; the seconds that it took."""
        began, sent = time.monotonic(), 0
        while sent < number:
            due = min(number, int((time.monotonic() - began) * rate), sent + LARGEST_BATCH)
            due = min(due, sent + len(self._connections))
            if due <= sent:
                time.sleep(0.002)
                continue
            batch = range(self._sequence, self._sequence + due - sent)
            for sequence in batch:
                self._send(sequence)
            for sequence in batch:
                self._receive(sequence)
            self._sequence += len(batch)
            sent = due
        return time.monotonic() - began

    def _send(self, sequence: int) -> None:
        node = sequence % len(self._tokens)
        body = self._body.replace(b'"sequence":0', b'"sequence":%d' % sequence)
        head = (
            f"POST {messages.PATH} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {self._tokens[node]}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._connections[node].sendall(head.encode() + body)

    def _receive(self, sequence: int) -> None:
        connection, answer = self._connections[sequence % len(self._tokens)], b""
        while not answer.endswith(b"}}}"):
            piece = connection.recv(1 << 16)
            assert piece, f"the server hung up after {answer[:300]!r}"
            answer += piece
        assert answer.split(b" ", 2)[1] == str(HTTPStatus.OK.value).encode(), answer[:300]

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


def credentials(folder: Path, nodes: int) -> tuple[Authority, list[str]]:
    """Keys and a certificate for the server, and a token for each node."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    jwk = jwt.get_algorithm_by_name("RS256").to_jwk(key.public_key(), as_dict=True)
    keys = [jwk | {"kid": "key", "alg": "RS256", "use": "sig"}]
    (folder / "jwks.json").write_text(json.dumps({"keys": keys}))
    authority = Authority(folder)
    authority.certify(messages.SERVER_NAME, folder="server")
    return authority, [_token(key, f"node-{number}") for number in range(nodes)]


def _token(key: rsa.RSAPrivateKey, node: str) -> str:
    now = int(time.time())
    names = {"namespace": "netmgr", "node": {"name": node, "uid": "0" * 36}}
    names |= {"pod": {"name": "netmgr-abcde", "uid": "0" * 36}, "warnafter": now + 3607}
    names["serviceaccount"] = {"name": "netmgr-node", "uid": "0" * 36}
    own = {"aud": [AUDIENCE], "iss": ISSUER, "sub": ACCOUNT, "jti": "0" * 36}
    times = {"iat": now, "nbf": now, "exp": now + 3600}
    return jwt.encode(own | times | {"kubernetes.io": names}, key, "RS256", {"kid": "key"})


def measure(effort: Effort) -> Iterator[Figure]:
    """Cost of a report, with TLS and without, while every node keeps a connection."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    nodes = effort.shape[1] if effort.shape[1] >= 7500 else 20
    with TemporaryDirectory() as name:
        authority, tokens = credentials(Path(name), nodes)
        for tls in (False, True):
            with serving(Path(name), nodes, tls=tls) as server:
                yield from _figures(server, tokens, authority.client() if tls else None)


def _figures(
    server: Process, tokens: list[str], context: ssl.SSLContext | None
) -> Iterator[Figure]:
    how = "TLS" if context else "plain"
    alone = server.bytes
    before = processor_seconds(server.pid)
    crowd = Nodes(server.port, tokens, context)
    rate = len(tokens) / PERIOD
    # A token is verified once.
    first = (processor_seconds(server.pid) - before) / len(tokens)
    yield Figure(f"{how}: a connection and its first report", first * 1e6, "us")
    usual = _cost(server, crowd, rate, 4 * len(tokens))
    budget = SHARE / 100 * PERIOD / 7500 * 1e6
    yield Figure(f"{how}: a report, processor time", usual * 1e6, "us", budget=budget)
    yield Figure(f"{how}: share of a core at 1,500 reports a second", usual * 1500 * 100, "%")
    number = 2 * len(tokens)
    yield Figure(f"{how}: reports a second at most", number / crowd.report(1e9, number), "1/s")
    each = (server.bytes - alone) / len(tokens)
    yield Figure(f"{how}: memory for each node", each / 1024, "KiB")
    yield Figure(f"{how}: memory", server.bytes / 2**20, "MiB")
    crowd.close()


def _cost(server: Process, crowd: Nodes, rate: float, number: int) -> float:
    before = processor_seconds(server.pid)
    crowd.report(rate, number)
    return (processor_seconds(server.pid) - before) / number


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]), tls=sys.argv[3] == "1")
