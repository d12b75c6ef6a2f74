"""What a node reports to the server of budgets, and what that answers: JSON, decoded strictly.

Rates are whole bits a second. A day is that of UTC, as its number since the epoch. Keys that are
unknown here are passed over: the other side may be a newer one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec

from netmgr.model import LEAST_RATE, MOST_RATE, Traffic

LONGEST = 256 * 1024
"""Bytes of a message."""

PATH, SHOWN = "/v1/budgets/report", "/v1/budgets"
SERVER_NAME = "netmgr-budgets"
"""In the server's certificate, at whatever address a leader answers."""

NAME, PATTERN = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", r"[a-z0-9-]{0,62}[a-z0-9*]"
MOST = 64
"""Budgets of a document, and patterns of a budget."""

_Number = Annotated[int, msgspec.Meta(ge=0, le=10**18)]
_Rate = Annotated[int, msgspec.Meta(ge=0, le=MOST_RATE)]
_Text = Annotated[str, msgspec.Meta(max_length=253)]
_Pattern = Annotated[str, msgspec.Meta(pattern=rf"\A{PATTERN}\Z")]

Message = TypeVar("Message")


@dataclass(frozen=True, slots=True)
class Budget:
    """What the pods of some namespaces may have in a cluster together, in one direction.

    Attributes:
        within: the budget that it is a part of; empty for none.
        namespaces: their names, or what these begin with and a *.
        rate: bits a second.
        per_day: bytes; 0 for no quota.
        slow: bits a second, of all nodes together, for what is beyond the quota; 0 drops it.
    """

    name: Annotated[str, msgspec.Meta(pattern=rf"\A{NAME}\Z")]
    within: _Text
    namespaces: Annotated[tuple[_Pattern, ...], msgspec.Meta(max_length=MOST)]
    traffic: Traffic
    rate: Annotated[int, msgspec.Meta(ge=LEAST_RATE, le=MOST_RATE)]
    per_day: _Number = 0
    slow: _Rate = 0


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """What a node's pods made of one budget since the last report but one.

    Attributes:
        held: the rate in force.
        rate: the mean of what passed; what is beyond the quota as a part of the budget's rate.
        waiting: pods that were held back; what is beyond the quota counts as one.
        free: the mean rate of the other pods.
        bytes: what passed on this day, all of the node's pods together.
        allowance: bytes that may pass on this day; what the node enforces.
    """

    held: _Number
    rate: _Number
    waiting: _Number
    free: _Number
    day: _Number
    bytes: _Number
    allowance: _Number


@dataclass(frozen=True, slots=True)
class BudgetReport:
    """One node's report; `sequence` grows with each until the machine boots again.

    `version` is that of the budgets that the node knows, empty for none. `age` is how many seconds
    ago it asked for the last answer that it got; after a boot, since that.
    """

    epoch: _Number
    boot: _Text
    sequence: _Number
    version: _Text
    uses: Mapping[_Text, BudgetUse]
    age: _Number = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """What a node may have of one budget.

    Attributes:
        rate: in force until the answer is `HOLD` seconds old; then `firm`, after `LEASE` `safe`.
        level: bits a second for each pod that is held back; 0 where none has to be.
        allowance: bytes that may pass on `day`.
    """

    rate: _Rate
    firm: _Rate
    safe: _Rate
    level: _Number
    day: Annotated[int, msgspec.Meta(ge=0, le=10**6)]
    allowance: _Number


@dataclass(frozen=True, slots=True)
class BudgetAnswer:
    """What the server says to a report with this epoch and sequence.

    `budgets` are None where the node has those of `version`.
    """

    epoch: _Number
    sequence: _Number
    version: _Text
    enforce: bool
    budgets: tuple[Budget, ...] | None
    grants: Mapping[_Text, Grant]


encode = msgspec.json.encode


def decode(text: bytes | str, kind: type[Message]) -> Message:
    """The message of this kind; ValueError if it is none."""
    if len(text) > LONGEST:
        raise ValueError(f"it has {len(text)} bytes, more than {LONGEST}")
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None
