"""Whoever may read the ledger's socket can neither make the agent stumble nor fill its log."""

import json
import socket

import pytest

from netmgr.documents.node import Backend
from tests.kernel.conforming import one_node
from tests.lab.topology import cluster

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def node():
    with one_node(cluster(nodes=1, pods=0), backend=Backend.NFTABLES) as caller:
        yield caller.node


def ask(node, line):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(node.run_dir / "ledger.sock"))
        connection.sendall(line + b"\n")
        return json.loads(b"".join(iter(lambda: connection.recv(1 << 16), b"")))


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 4000,
        b'{"version":' * 360,
        b'{"version": 1, "query": ' + b"[" * 3900,
        b"9" * 4000,
        b"\xff",
        b"",
        b'{"version": 1e999}',
        b'{"version": "\\ud800"}',
    ],
    ids=["arrays", "objects", "deep query", "digits", "bytes", "empty", "infinite", "surrogate"],
)
def test_what_is_no_query_gets_an_answer_and_leaves_no_traceback(node, line):
    assert "error" in ask(node, line)
    assert "Traceback" not in (node.directory / "agent.log").read_text()
    assert node.snapshot()["ready"]
