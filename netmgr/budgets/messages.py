"""What a node reports to the server of budgets, and what that answers: JSON, decoded strictly.

Rates are whole bits a second. A day is that of UTC, as its number since the epoch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from netmgr.model import Traffic

LONGEST = 256 * 1024
"""Bytes of a message."""

PATH, SHOWN = "/v1/budgets/report", "/v1/budgets"
SERVER_NAME = "netmgr-budgets"
"""In the server's certificate, at whatever address a leader answers."""

_MOST = 10**18
_LONGEST_NAME = 253

Message = TypeVar("Message")


@dataclass(frozen=True, slots=True)
class Budget:
    """What the pods of some namespaces may have in a cluster together, in one direction.

    Attributes:
        within: the budget that it is a part of; empty for none.
        namespaces: patterns of fnmatch(3), with * and ? alone.
        rate: bits a second.
        per_day: bytes; 0 for no quota.
        slow: bits a second, of all nodes together, for what is beyond the quota; 0 drops it.
    """

    name: str
    within: str
    namespaces: tuple[str, ...]
    traffic: Traffic
    rate: int
    per_day: int = 0
    slow: int = 0


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """What a node's pods made of one budget since the last report but one.

    Attributes:
        held: the rate in force.
        rate: the mean of what passed.
        waiting: pods that were held back.
        free: the mean rate of the other pods.
        bytes: what passed on this day, all of the node's pods together.
        allowance: bytes that may pass on this day; what the node enforces.
    """

    held: int
    rate: int
    waiting: int
    free: int
    day: int
    bytes: int
    allowance: int


@dataclass(frozen=True, slots=True)
class BudgetReport:
    """One node's report; `sequence` grows with each until the machine boots again.

    `version` is that of the budgets that the node knows, empty for none.
    """

    epoch: int
    boot: str
    sequence: int
    version: str
    uses: Mapping[str, BudgetUse]


@dataclass(frozen=True, slots=True)
class Grant:
    """What a node may have of one budget.

    Attributes:
        rate: in force until the answer is `HOLD` seconds old; then `firm`, after `LEASE` `safe`.
        level: bits a second for each pod that is held back; 0 where none has to be.
        allowance: bytes that may pass on `day`.
    """

    rate: int
    firm: int
    safe: int
    level: int
    day: int
    allowance: int


@dataclass(frozen=True, slots=True)
class BudgetAnswer:
    """What the server says to a report with this epoch and sequence.

    `budgets` are None where the node has those of `version`.
    """

    epoch: int
    sequence: int
    version: str
    enforce: bool
    budgets: tuple[Budget, ...] | None
    grants: Mapping[str, Grant]


def encode(message: BudgetReport | BudgetAnswer) -> bytes:
    # Not by `asdict`, which takes three times as long: a server encodes 1,500 answers a second.
    content = _fields(message)
    if isinstance(message, BudgetReport):
        content["uses"] = {name: _fields(use) for name, use in message.uses.items()}
    else:
        content["grants"] = {name: _fields(grant) for name, grant in message.grants.items()}
        if message.budgets is not None:
            content["budgets"] = [_fields(budget) for budget in message.budgets]
    return json.dumps(content, separators=(",", ":")).encode()


def _fields(part: BudgetReport | BudgetUse | BudgetAnswer | Grant | Budget) -> dict[str, Any]:
    return {name: getattr(part, name) for name in part.__slots__}


def report(text: bytes) -> BudgetReport:
    """The report that this is; ValueError if it is none."""
    return _decoded(text, _report)


def answer(text: bytes) -> BudgetAnswer:
    """The answer that this is; ValueError if it is none."""
    return _decoded(text, _answer)


def _decoded(text: bytes, read: Callable[[Any], Message]) -> Message:
    if len(text) > LONGEST:
        raise ValueError(f"it has {len(text)} bytes, more than {LONGEST}")
    try:
        return read(json.loads(text))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it lacks or adds a key, or one is of another type: {error}") from None


def _report(content: dict[str, Any]) -> BudgetReport:
    uses = {_name(name): BudgetUse(**_numbers(use)) for name, use in content.pop("uses").items()}
    return BudgetReport(
        _number(content.pop("epoch")),
        _name(content.pop("boot")),
        _number(content.pop("sequence")),
        _name(content.pop("version")),
        uses,
        **content,
    )


def _answer(content: dict[str, Any]) -> BudgetAnswer:
    grants = {_name(name): Grant(**_numbers(grant)) for name, grant in content["grants"].items()}
    listed = content["budgets"]
    return BudgetAnswer(
        _number(content["epoch"]),
        _number(content["sequence"]),
        _name(content["version"]),
        content["enforce"] is True,
        None if listed is None else tuple(map(_budget, listed)),
        grants,
    )


def _budget(content: dict[str, Any]) -> Budget:
    numbers = _numbers({key: content.pop(key) for key in ("rate", "per_day", "slow")})
    return Budget(
        _name(content.pop("name")),
        _name(content.pop("within")),
        tuple(map(_name, content.pop("namespaces"))),
        Traffic(content.pop("traffic")),
        **numbers,
        **content,
    )


def _numbers(content: Mapping[str, Any]) -> Mapping[str, int]:
    for value in content.values():
        # The same as `_number`, which need not be called for what is one.
        if type(value) is not int or not 0 <= value <= _MOST:
            _number(value)
    return content


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _MOST:
        raise ValueError(f"{str(value)[:40]!r} is no whole number from 0 to {_MOST}")
    return value


def _name(value: object) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_NAME:
        raise ValueError(f"{str(value)[:40]!r} is no text of at most {_LONGEST_NAME} characters")
    return value
