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
    """One thing about a plan: the key of plan.yaml it hangs on, what is so, and what would make it right."""

    severity: Severity
    path: KeyPath
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


class PlanRefused(ConfigError):
    """The plan cannot be locked as it is. `findings` say why; nothing was written."""

    exit_code = 1

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(map(str, self.findings)))


def error(path: KeyPath, message: str, remedy: str = "") -> Finding:
    """A finding that stops a plan."""
    return Finding(Severity.ERROR, path, message, remedy)
