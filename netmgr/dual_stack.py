"""Servers whose port is open by IPv4 and IPv6 alike."""

from __future__ import annotations

import socket
import socketserver
from typing import Any


class DualStackServer(socketserver.TCPServer):
    """Listens at every address of both families if no host is given, else at that address alone."""

    def __init__(self, address: Any, handler: Any) -> None:  # noqa: ANN401  as in typeshed
        # One socket takes both families; only a kernel without IPv6 needs the other.
        is_ipv6 = ":" in address[0] if address[0] else socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
        super().__init__(address, handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            # Set in either case: net.ipv6.bindv6only decides otherwise.
            is_single = bool(self.server_address[0])
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, is_single)
        # Not super(): HTTPServer would look its own name up in the DNS.
        socketserver.TCPServer.server_bind(self)
