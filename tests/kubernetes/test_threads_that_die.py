"""What answers in the API server's place may say what nobody foresaw: a process of which a thread
died of it ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from netmgr.errors import Exit
from tests.kubernetes.controllers import Program, write_plan

pytestmark = pytest.mark.kubernetes

GOOD_LIST = {"metadata": {"resourceVersion": "1"}, "items": []}
ODD_NODES = {
    "metadata": {"resourceVersion": "1"},
    "items": [{"metadata": {"name": "without-a-uid"}}],
}
ODD_CLAIMS = {"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {}}]}


class Odd(ThreadingHTTPServer):
    """Takes every Lease, and answers a list with what the test has put there."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, object] = {}


class _Handler(BaseHTTPRequestHandler):
    server: Odd

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        kind = self.path.partition("?")[0].rpartition("/")[2]
        if kind in self.server.answers:
            self._answer(200, self.server.answers[kind])
        else:
            self._answer(404, {"kind": "Status", "code": 404, "message": "not found"})

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self._answer(201, json.loads(self.rfile.read(length)))

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def odd() -> Iterator[Odd]:
    server = Odd()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def kubeconfig(odd: Odd, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "odd", "cluster": {"server": f"http://127.0.0.1:{odd.server_port}"}}],
        "users": [{"name": "somebody", "user": {}}],
        "contexts": [{"name": "odd", "context": {"cluster": "odd", "user": "somebody"}}],
        "current-context": "odd",
    }
    path.write_text(yaml.safe_dump(config))
    return path


def start(folder: Path, kubeconfig: Path, *arguments: str) -> Program:
    log = folder / "program.log"
    with log.open("wb") as stream:
        command = [sys.executable, "-m", "netmgr", *arguments, f"--kubeconfig={kubeconfig}"]
        return Program(subprocess.Popen(command, stdout=stream, stderr=stream), log)


def ends(program: Program) -> None:
    try:
        assert program.process.wait(20) == Exit.FAULT
    finally:
        if program.process.poll() is None:
            program.kill()
    assert " CRITICAL " in program.said
    assert "died action=end" in program.said
    assert "KeyError" in program.said


@pytest.mark.parametrize(
    ("nodes", "claims"),
    [(ODD_NODES, GOOD_LIST), (GOOD_LIST, ODD_CLAIMS)],
    ids=["reflector", "rounds"],
)
def test_a_controller_ends_with_its_threads(
    odd: Odd, kubeconfig: Path, tmp_path: Path, nodes: object, claims: object
) -> None:
    odd.answers = {"nodes": nodes, "configmaps": claims}
    plan = write_plan(tmp_path, "{gpu: {nodes: 3, surge: 0}}")
    options = [f"--plan={plan}", "--cluster=train", "--namespace=netmgr", "--listen=127.0.0.1:0"]
    ends(start(tmp_path, kubeconfig, "controller", *options))
