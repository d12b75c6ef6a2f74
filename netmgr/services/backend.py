"""What a backend of Services must be able to do. Implemented by nftables, iptables and the tests' fake."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from netmgr.services.model import Frontend, ServicePort


class ServiceBackend(Protocol):
    """One kernel interface that can translate Services. For one thread at a time.

    Every method raises KernelError when the kernel refuses, with what and why.
    """

    @property
    def name(self) -> str:
        """`nftables` or `iptables`."""
        ...

    def held(self) -> dict[ServicePort, Frontend]:
        """What the kernel translates now; nothing if nothing of ours is there."""
        ...

    def put_right(self, wanted: Mapping[ServicePort, Frontend]) -> list[str]:
        """Compare all of the kernel's content with `wanted`, and change what differs; say what that was.

        What is as it should be is not touched.
        """
        ...

    def change(self, changes: Mapping[ServicePort, Frontend | None]) -> None:
        """Carry out what differs from what the backend last put there; None takes a ServicePort away.

        All of it or nothing, and new connections see either the state before or the state after.
        """
        ...

    def hits(self) -> dict[ServicePort, int]:
        """How many connections clients began to each ServicePort."""
        ...

    def remove(self) -> None:
        """Take away everything of ours, and nothing else."""
        ...

    def close(self) -> None:
        """Give back sockets; what is translated stays translated."""
        ...
