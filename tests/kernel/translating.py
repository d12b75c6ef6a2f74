"""Rules of another program, which translate what a client asks for on its way to a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from netmgr.prefixes import Address
from tests.kernel.namespaces import inside
from tests.lab.exchange import End, Frontend, datagrams
from tests.lab.nodes import LabNode

PORT = 4243
SERVICE, PUBLIC = Address.parse("10.96.7.7"), Address.parse("198.51.100.9")


@contextmanager
def table(node: LabNode, text: str) -> Iterator[None]:
    """Another program's rules."""
    inside(node.namespace, "nft", f"table ip others {{ {text}\n }}")
    try:
        yield
    finally:
        inside(node.namespace, "nft", "delete table ip others")


def ask_translated(
    node: LabNode, client: End, server: End, asked: Address, source: Address | None = None
) -> None:
    """A datagram of 500 bytes to the address that is asked, for which the server answers with 1000.

    What comes for that address goes to the server's on the node, and perhaps from a `source`.
    """
    chain = "chain {} {{ type nat hook {} priority {}; {}\n }}\n"
    dnat = f"ip daddr {asked} udp dport {PORT} dnat to {server.address}"
    snat = f"ip daddr {server.address} udp dport {PORT} snat to {source}" if source else ""
    before, after = ("early", "prerouting", "dstnat", dnat), ("late", "postrouting", "srcnat", snat)
    with table(node, chain.format(*before) + chain.format(*after)):
        datagrams(client, server, [472], [972], port=PORT, frontend=Frontend(asked, PORT))
