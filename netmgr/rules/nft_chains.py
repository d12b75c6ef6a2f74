"""Chains as nft commands, whose rules are recognised later by their comments.

A comment has a digest of its rule's text. So a rule is recognised after a restart, and an altered
one differs from an intact one, without comparing listings whose form changes from one nft version
to the next. Commands are flat (`add …`, `flush …`), in what nft 1.0.2 to 1.1 have in common.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from netmgr.prefixes import Family

DIGEST_LENGTH = 12


class Base(NamedTuple):
    """What makes a base chain: its type, the kernel's hook, priority and, in netdev, device."""

    kind: str
    hook: str
    priority: int
    device: str = ""

    def __str__(self) -> str:
        device = f' device "{self.device}"' if self.device else ""
        return f"type {self.kind} hook {self.hook}{device} priority {self.priority}; policy accept;"


def protocol(family: Family) -> str:
    """What nft calls the family's header."""
    return "ip" if family is Family.V4 else "ip6"


def digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:DIGEST_LENGTH]


def script(commands: Iterable[str]) -> str:
    """The commands as nft reads them: one transaction."""
    return "".join(f"{command}\n" for command in commands)


def marks(chain: str, rules: Sequence[str]) -> list[str]:
    """The comments of a chain's rules."""
    return [f"{chain} {number} {digest(rule)}" for number, rule in enumerate(rules, start=1)]


def fill(
    table: str,
    chain: str,
    rules: Sequence[str],
    base: Base | None = None,
    comments: Sequence[str] = (),
) -> list[str]:
    """Have a chain hold exactly these rules; those it leads to must be there."""
    definition = f" {{ {base} }}" if base else ""
    # `add` changes nothing in a chain that exists, so its rules must be flushed.
    lines = [f"add chain {table} {chain}{definition}", f"flush chain {table} {chain}"]
    for rule, comment in zip(rules, comments or marks(chain, rules), strict=True):
        lines.append(f'add rule {table} {chain} {rule} comment "{comment}"')
    return lines


def delete(table: str, chain: str) -> list[str]:
    # `add` first, since deleting a chain that is not there would fail the whole transaction.
    return [
        f"add chain {table} {chain}",
        f"flush chain {table} {chain}",
        f"delete chain {table} {chain}",
    ]
