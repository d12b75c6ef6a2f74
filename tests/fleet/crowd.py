"""What thousands of kubelets do to an API server all the time: watches, and their Leases.

`python -m tests.fleet.crowd PORT CERTIFICATE TOKEN NODES LEASE_SECONDS`: a process of its own. Each
kubelet has one watch, of its own Node; a real one has some more. Requests share few connections.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from itertools import count

from tests.fleet.steps import name

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
WRITERS = 8
OPENING = 64
"""Connections that are opened at a time."""


class Crowd:
    """Connections to one server."""

    def __init__(self, port: int, certificate: str, token: str) -> None:
        self._port = port
        self._context = ssl.create_default_context(cafile=certificate)
        self._token = token
        self._opening = asyncio.Semaphore(OPENING)

    async def watch(self, number: int) -> None:
        """Follow one Node for ever."""
        path = f"/api/v1/nodes?watch=true&fieldSelector=metadata.name={name(number)}"
        while True:
            async with self._opening:
                reader, writer = await self._connect()
                writer.write(self._request("GET", path))
                await reader.readuntil(b"\r\n\r\n")
            while await reader.read(65536):
                pass
            writer.close()
            await asyncio.sleep(1)

    async def renew(self, numbers: range, seconds: float) -> None:
        """Renew the Leases of some kubelets, each once in so many seconds."""
        reader, writer = await self._connect()
        pause = seconds / max(1, len(numbers))
        for number in numbers:
            body = {"metadata": {"name": name(number)}, "spec": {"holderIdentity": name(number)}}
            await self._ask(reader, writer, "POST", LEASES, body)
        for turn in count():
            for number in numbers:
                body = {"spec": {"leaseDurationSeconds": 40 + turn % 2}}
                path = f"{LEASES}/{name(number)}"
                began = asyncio.get_running_loop().time()
                await self._ask(reader, writer, "PATCH", path, body)
                took = asyncio.get_running_loop().time() - began
                await asyncio.sleep(max(0.0, pause - took))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port, ssl=self._context)

    async def _ask(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        method: str,
        path: str,
        body: object,
    ) -> None:
        writer.write(self._request(method, path, json.dumps(body).encode()))
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        await reader.readexactly(length)

    def _request(self, method: str, path: str, body: bytes = b"") -> bytes:
        kind = "merge-patch+json" if method == "PATCH" else "json"
        return (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {self._token}\r\n"
            f"Content-Type: application/{kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body


async def live(crowd: Crowd, nodes: int, seconds: float) -> None:
    """Everything, for ever."""
    async with asyncio.TaskGroup() as group:
        for number in range(nodes):
            group.create_task(crowd.watch(number))
        for first in range(WRITERS):
            group.create_task(crowd.renew(range(first, nodes, WRITERS), seconds))


def main() -> None:
    """Until it is killed."""
    port, certificate, token, nodes, seconds = sys.argv[1:]
    asyncio.run(live(Crowd(int(port), certificate, token), int(nodes), float(seconds)))


if __name__ == "__main__":
    main()
