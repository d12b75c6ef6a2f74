"""A real control plane: etcd and kube-apiserver with RBAC, in a folder of their own, on the
loopback or on another address.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

from tests.kubernetes import programs
from tests.waiting import PATIENCE, eventually

SECONDS_TO_START = 90
SERVICE_RANGE = "10.96.0.0/12"
REQUESTS = "apiserver_request_total"
Object = dict[str, Any]


@dataclass
class ControlPlane:
    """Both programs, and an administrator's way to ask the server."""

    folder: Path
    address: str = "127.0.0.1"
    etcd_port: int = 0
    port: int = 0
    admin: str = field(default_factory=secrets.token_hex)
    etcd: subprocess.Popen[bytes] | None = None
    server: subprocess.Popen[bytes] | None = None
    _kept: threading.local = field(default_factory=threading.local)

    def start(self) -> None:
        """Start both; return once the server says that it is ready."""
        self.etcd_port, peers, self.port = self.ports()
        key = self.folder / "service-accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        (self.folder / "tokens.csv").write_text("".join(self.accounts()))
        self.etcd = self._run(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={self._etcd}",
            f"--advertise-client-urls={self._etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peers}",
            "--log-level=error",
            "--unsafe-no-fsync",
        )
        self.start_server()

    def ports(self) -> list[int]:
        """Ports for etcd's clients, etcd's peers and the API server."""
        return free_ports(3)

    def start_server(self) -> None:
        """Start the API server (again)."""
        key = self.folder / "service-accounts.key"
        self.server = self._run(
            "kube-apiserver",
            f"--etcd-servers={self._etcd}",
            f"--bind-address={self.address}",
            f"--advertise-address={self.address}",
            f"--secure-port={self.port}",
            f"--cert-dir={self.folder / 'certificates'}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--allow-privileged",
            "--shutdown-delay-duration=0s",
            *self.server_options(),
        )
        deadline = time.monotonic() + SECONDS_TO_START
        while not self._is_ready():
            if self.server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.folder / "kube-apiserver.log").read_text()[-2000:])
            time.sleep(0.1)

    def server_options(self) -> list[str]:
        """Options of the API server beside those that every control plane has."""
        return [f"--service-cluster-ip-range={SERVICE_RANGE}", "--endpoint-reconciler-type=none"]

    def accounts(self) -> list[str]:
        """Lines of the file of static tokens: token, user, UID, groups."""
        return [f"{self.admin},admin,admin,system:masters\n"]

    def stop_server(self) -> None:
        """Take the API server away, as a crash does; etcd keeps everything."""
        _end(self.server)

    def stop(self) -> None:
        """End both."""
        _end(self.server)
        _end(self.etcd)

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Start both, and end them with the context."""
        try:
            self.start()
            yield self
        finally:
            self.stop()

    def write_kubeconfig(self, to: Path, **tokens: str) -> Path:
        """A kubeconfig with a context for each user, by their tokens; the first is current."""
        cluster = {
            "server": f"https://{self.address}:{self.port}",
            "certificate-authority": str(self.authority),
        }
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": name, "user": {"token": token}} for name, token in tokens.items()],
            "contexts": [
                {"name": name, "context": {"cluster": "test", "user": name}} for name in tokens
            ],
            "current-context": next(iter(tokens)),
        }
        to.write_text(json.dumps(config))
        return to

    @property
    def authority(self) -> Path:
        """The certificate that clients trust."""
        return self.folder / "certificates" / "apiserver.crt"

    @property
    def _etcd(self) -> str:
        return f"http://127.0.0.1:{self.etcd_port}"

    def ask(
        self, method: str, path: str, body: object = None, *, token: str = "", kind: str = "json"
    ) -> Object:
        """One request, by the administrator unless a token is given; raises Refused for any answer
        but success.
        """
        status, text = self.answer(method, path, body, token=token, kind=kind)
        if status not in range(200, 300):
            raise Refused(status, text)
        return json.loads(text) if text.startswith("{") else {"text": text}

    def answer(
        self, method: str, path: str, body: object = None, *, token: str = "", kind: str = "json"
    ) -> tuple[int, str]:
        """Status and text of one request; connections are kept,
        and made anew when the server was."""
        headers = {
            "Authorization": f"Bearer {token or self.admin}",
            "Content-Type": f"application/{kind}",
        }
        text = None if body is None else json.dumps(body)
        kept: HTTPSConnection | None = getattr(self._kept, "connection", None)
        if kept is not None:
            try:
                return _exchange(kept, method, path, text, headers)
            except (OSError, HTTPException):
                kept.close()
                self._kept.connection = None
        connection = self.connection()
        answer = _exchange(connection, method, path, text, headers)
        self._kept.connection = connection
        return answer

    def connection(self) -> HTTPSConnection:
        """A new connection to the server."""
        context = ssl.create_default_context(cafile=str(self.authority))
        return HTTPSConnection(self.address, self.port, timeout=PATIENCE, context=context)

    def forget(self, prefix: str, path: str) -> None:
        """Delete all that is stored under a prefix, at once:
        a request for each would take seconds."""
        first, after = (
            base64.b64encode(key.encode()).decode() for key in (prefix, prefix[:-1] + "0")
        )
        self._ask_etcd("kv/deleterange", {"key": first, "range_end": after})

        def is_forgotten() -> bool:
            # A server that learns of thousands of deletions at once may reset connections.
            with suppress(OSError):
                return not self.ask("GET", f"{path}?limit=1&resourceVersion=0")["items"]
            return False

        eventually(is_forgotten, f"the server still shows what was at {prefix}")

    def compact(self) -> None:
        """Have etcd forget every version but the present one, and give back its space."""
        key = base64.b64encode(b"/compacted").decode()
        # A version that no watch has seen.
        header = self._ask_etcd("kv/put", {"key": key, "value": key})["header"]
        self._ask_etcd("kv/compaction", {"revision": header["revision"], "physical": True})
        self._ask_etcd("maintenance/defragment", {})

    def _ask_etcd(self, what: str, body: Object) -> Object:
        connection = HTTPConnection(self.address, self.etcd_port, timeout=PATIENCE)
        status, text = _exchange(connection, "POST", f"/v3/{what}", json.dumps(body), {})
        connection.close()
        assert status == 200, text
        found: Object = json.loads(text)
        return found

    def token(self, namespace: str, account: str) -> str:
        """A real token of a service account, as the kubelet asks for it."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        }
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        return self.ask("POST", path, body)["status"]["token"]

    def requests(self) -> Counter[tuple[str, str]]:
        """How many requests the server has answered, by (verb, resource), from its own metrics."""
        page = self.ask("GET", "/metrics")["text"]
        # The whole page has megabytes, and is asked for while the server and netmgr are at work.
        lines = [
            line
            for line in page.splitlines()
            if line.startswith((f"# TYPE {REQUESTS} ", f"{REQUESTS}{{"))
        ]
        (family,) = text_string_to_metric_families("\n".join([*lines, ""]))
        counts: Counter[tuple[str, str]] = Counter()
        for sample in family.samples:
            if sample.labels["resource"]:
                counts[sample.labels["verb"], sample.labels["resource"]] += int(sample.value)
        return counts

    @contextmanager
    def counted(self) -> Iterator[Counter[tuple[str, str]]]:
        """What was asked meanwhile; filled in at the end. Without what an idle server asks itself:
        watches, which are counted at their ends, and every three minutes a list of Services.
        """
        before, asked = self.requests(), Counter[tuple[str, str]]()
        yield asked
        for (verb, resource), number in (self.requests() - before).items():
            if verb != "WATCH" and (verb, resource) != ("LIST", "services"):
                asked[verb, resource] = number

    def credentials(self, folder: Path, token: str) -> Path:
        """A folder like the one in which a pod finds its service account."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ca.crt").write_bytes(self.authority.read_bytes())
        new = folder / "token.new"
        new.write_text(token)
        new.rename(folder / "token")
        return folder

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which a pod finds the API server."""
        return {"KUBERNETES_SERVICE_HOST": self.address, "KUBERNETES_SERVICE_PORT": str(self.port)}

    def command(self, program: str, *options: str) -> list[str | Path]:
        """The command that runs a program of the control plane where it belongs."""
        return [programs.folder() / program, *options]

    def _run(self, program: str, *options: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{program}.log").open("ab") as log:
            command = self.command(program, *options)
            return subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, env=_environment()
            )

    def _is_ready(self) -> bool:
        try:
            return self.answer("GET", "/readyz")[0] == 200
        except OSError:
            return False


class Refused(Exception):
    """The server's answer was no success."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text[:500]}")
        self.status = status
        self.text = text


def _exchange(
    connection: HTTPConnection, method: str, path: str, body: str | None, headers: dict[str, str]
) -> tuple[int, str]:
    connection.request(method, path, body, headers)
    reply = connection.getresponse()
    return reply.status, reply.read().decode()


def _environment() -> dict[str, str]:
    """No proxy, none of the variables that etcd takes for options, and memory rather than time for
    Go's collector.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith(("ETCD_", "HTTP"))
    }
    return kept | {"GOGC": "400"}


def free_ports(number: int) -> list[int]:
    """Ports of the loopback that nobody has."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None and process.poll() is None:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=PATIENCE)
