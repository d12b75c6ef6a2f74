"""The clouds' instance metadata services: real HTTP servers at their real address, in a namespace
of the test's own.

They answer as the clouds document it: Azure's one document; AWS's tokens and categories (IMDSv2);
Google's document with an ETag, and requests that wait for a change.
"""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, urlsplit

from tests.lab import wiring

HOST, PORT = "169.254.169.254", 80
DRIBBLE_SECONDS = 0.05


def document(*interfaces: Sequence[str]) -> bytes:
    """The body Azure documents, of interfaces whose first addresses are the machine's own; every
    value is a string.
    """

    def entries(addresses: list[str]) -> list[dict[str, str]]:
        return [{"privateIpAddress": address, "publicIpAddress": ""} for address in addresses]

    def interface(addresses: Sequence[str]) -> dict[str, object]:
        v4, v6 = [[a for a in addresses if (":" in a) is wanted] for wanted in (False, True)]
        subnet = [{"address": "10.0.0.0", "prefix": "8"}]
        ipv4, ipv6 = {"ipAddress": entries(v4), "subnet": subnet}, {"ipAddress": entries(v6)}
        return {"ipv4": ipv4, "ipv6": ipv6, "macAddress": "0011AAFFBB22"}

    return json.dumps({"interface": [interface(addresses) for addresses in interfaces]}).encode()


def http(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    named = {"Content-Type": "application/json; charset=utf-8", "Content-Length": str(len(body))}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "\r\n".join(f"{name}: {value}" for name, value in named.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n\r\n".encode() + body


def give_address(namespace: Path) -> None:
    """Make a namespace the machine at the server's address; again changes nothing."""
    add = ["ip", "address", "replace", f"{HOST}/32", "dev", "lo"]
    subprocess.run(["nsenter", f"--net={namespace}", *add], check=True)


@dataclass
class MetadataServer:
    """Answers each request with `answer`, whatever bytes these are; a context manager.

    Attributes:
        answer: what is sent; None hangs up without a word. Other clouds' servers send it in place
            of what is documented, unless it is empty.
        pause: seconds before the answer.
        dribbles: send a byte at a time, slowly.
        requests: when each came, and its text.
    """

    namespace: Path
    answer: bytes | None = b""
    pause: float = 0.0
    dribbles: bool = False
    requests: list[tuple[float, str]] = field(default_factory=list)

    def __enter__(self) -> Self:
        give_address(self.namespace)
        with wiring.inside(self.namespace):
            self._listening = socket.create_server((HOST, PORT), backlog=16)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()

    def offer(self, own: Sequence[str], *blocks: str) -> None:
        """Have the machine's first interface have addresses of its own, and blocks for pods."""
        self.answer = http(document([*own, *blocks]))

    def reply(self, request: str, connection: socket.socket) -> bytes | None:  # noqa: ARG002  AWS's needs both
        return self.answer

    def _serve(self) -> None:
        while not self._ended.is_set():
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        request = b""
        while b"\r\n\r\n" not in request and (part := connection.recv(4096)):
            request += part
        self.requests.append((time.monotonic(), request.decode()))
        self._ended.wait(self.pause)
        answer = self.reply(request.decode(), connection)
        if answer is None:
            return
        if not self.dribbles:
            connection.sendall(answer)
            return
        for byte in answer:
            connection.sendall(bytes([byte]))
            if self._ended.wait(DRIBBLE_SECONDS):
                return


def header(request: str, name: str) -> str:
    """The value of a request's header; empty without one."""
    lines = (line.partition(": ") for line in request.splitlines()[1:])
    return next((value for key, _, value in lines if key.lower() == name.lower()), "")


AWS_FIRST, AWS_SECOND = "02:29:96:8f:6a:2d", "02:29:96:8f:6a:2e"


@dataclass
class AwsServer(MetadataServer):
    """AWS's service.

    Attributes:
        interfaces: categories of each interface, by its MAC address, the first interface first.
        hop_limit: of the answer to a PUT.
        faults: answers to requests that end with these words.
    """

    interfaces: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    hop_limit: int = 1
    faults: dict[str, bytes] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)

    def offer(self, own: Sequence[str], *blocks: str) -> None:
        self.answer = b""
        self.interfaces = {AWS_FIRST: aws_interface(own, *blocks)}

    def reply(self, request: str, connection: socket.socket) -> bytes | None:
        if self.answer != b"":
            return self.answer
        method, target, _ = request.split(None, 2)
        fault = next((fault for end, fault in self.faults.items() if target.endswith(end)), None)
        if fault is not None:
            return fault
        if (method, target) == ("PUT", "/latest/api/token"):
            connection.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, self.hop_limit)
            return self._token(request)
        if header(request, "X-aws-ec2-metadata-token") not in self.tokens:
            return http(b"", "401 Unauthorized")
        category = self._category(target.removeprefix("/latest/meta-data/"))
        return http(category, Content_Type="text/plain") if category else http(b"", "404 Not Found")

    def _token(self, request: str) -> bytes:
        if header(request, "X-Forwarded-For"):
            return http(b"", "403 Forbidden")
        seconds = header(request, "X-aws-ec2-metadata-token-ttl-seconds")
        if not 1 <= int(seconds or 0) <= 21600:
            return http(b"", "400 Bad Request")
        self.tokens.add(token := f"AQAEA{len(self.tokens)}==")
        return http(token.encode(), Content_Type="text/plain")

    def _category(self, key: str) -> bytes:
        if key == "mac":
            return next(iter(self.interfaces)).encode()
        _, _, path = key.partition("network/interfaces/macs/")
        mac, _, category = path.partition("/")
        if not mac:
            return "\n".join(f"{mac}/" for mac in self.interfaces).encode()
        return "\n".join(self.interfaces.get(mac, {}).get(category, [])).encode()


def aws_interface(own: Sequence[str], *blocks: str) -> dict[str, list[str]]:
    """The categories of an interface, whose own addresses come first."""
    v4, v6 = (
        [text for text in (*own, *blocks) if (":" in text) is wanted] for wanted in (False, True)
    )
    return {
        "local-ipv4s": [text for text in v4 if "/" not in text],
        "ipv4-prefix": [text for text in v4 if "/" in text],
        "ipv6s": [text for text in v6 if "/" not in text],
        "ipv6-prefix": [text for text in v6 if "/" in text],
    }


@dataclass
class GoogleServer(MetadataServer):
    """Google's server.

    Attributes:
        interfaces: address and alias ranges of each interface.
        waits: whether it knows `wait_for_change`; else it answers such a request at once.
    """

    interfaces: list[tuple[str, list[str]]] = field(default_factory=list)
    waits: bool = True

    def offer(self, own: Sequence[str], *blocks: str) -> None:
        self.answer = b""
        self.interfaces = [(own[0], list(blocks))]

    def reply(self, request: str, connection: socket.socket) -> bytes | None:  # noqa: ARG002  AWS's needs both
        target = urlsplit(request.split()[1])
        asked = {key: values[0] for key, values in parse_qs(target.query).items()}
        if asked.get("wait_for_change") == "true" and self.waits:
            self._wait(asked.get("last_etag", ""), float(asked.get("timeout_sec", "inf")))
        if self.answer != b"":
            return self.answer
        if header(request, "Metadata-Flavor") != "Google" or header(request, "X-Forwarded-For"):
            return http(b"", "403 Forbidden")
        body = google_document(*self.interfaces)
        return http(body, ETag=_etag(body), Metadata_Flavor="Google")

    def _wait(self, last: str, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self.answer == b"" and last == _etag(google_document(*self.interfaces)):
            if time.monotonic() > until or self._ended.wait(DRIBBLE_SECONDS):
                return


def _etag(body: bytes) -> str:
    return f"{zlib.crc32(body):016x}"


def google_document(*interfaces: tuple[str, Sequence[str]]) -> bytes:
    """The body Google documents for `recursive=true`, of addresses and alias ranges."""
    return json.dumps(
        [
            {
                "accessConfigs": [{"externalIp": "", "type": "ONE_TO_ONE_NAT"}],
                "forwardedIps": [],
                "gateway": "10.128.0.1",
                "ip": own,
                "ipAliases": list(aliases),
                "mac": "42:01:0a:80:00:02",
                "mtu": 1460,
                "network": "projects/1/networks/default",
                "subnetmask": "255.255.240.0",
                "targetInstanceIps": [],
            }
            for own, aliases in interfaces
        ]
    ).encode()
