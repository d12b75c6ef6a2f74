"""What is wrong with a plan, and which key of it says so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from netmgr.errors import ConfigError

KeyPath = tuple[str | int, ...]


class Severity(StrEnum):
    """ERROR: cannot work as planned. WARNING: works today. NOTE: worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about a plan: the key of plan.yaml it hangs on, what is so, and what would make it right.

    Where two places disagree, `beside` is the other one of the same document, or `locked` the
    one of the lock; empty otherwise.
    """

    severity: Severity
    path: KeyPath
    message: str
    remedy: str = ""
    beside: KeyPath = ()
    locked: KeyPath = ()

    def told(self, where: str = "") -> str:
        """As a sentence; `where` says where the other place stands."""
        message = f"{self.message} ({where})" if where else self.message
        return f"{message}; {self.remedy}" if self.remedy else message

    def __str__(self) -> str:
        return self.told()


class PlanRefused(ConfigError):
    """The plan cannot be locked as it is. `findings` say why; nothing was written."""

    exit_code = 1

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(map(str, self.findings)))


def error(path: KeyPath, message: str, remedy: str = "", *, beside: KeyPath = (), locked: KeyPath = ()) -> Finding:
    """A finding that stops a plan."""
    return Finding(Severity.ERROR, path, message, remedy, beside, locked)
