"""Which kernel interface holds the rules: `backend` of a node document."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, TypeAlias


class Backend(StrEnum):
    """Which kernel interface holds the rules."""

    AUTO = "auto"
    NFTABLES = "nftables"
    IPTABLES = "iptables"
    """The variant of iptables that is in use on the machine."""
    IPTABLES_LEGACY = "iptables-legacy"
    IPTABLES_NFT = "iptables-nft"
    LINKS = "links"
    """nftables, but for what is counted at links; `accounting.at` chooses it."""


BackendName: TypeAlias = Literal[
    Backend.AUTO,
    Backend.NFTABLES,
    Backend.IPTABLES,
    Backend.IPTABLES_LEGACY,
    Backend.IPTABLES_NFT,
]
"""Those that a document may name."""
