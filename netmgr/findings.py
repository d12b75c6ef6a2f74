"""What is wrong with a machine or a cluster, whoever found it: doctor, status, connectivity test.

What is wrong with a document is a `Diagnostic`, since it has places in files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from netmgr.documents.diagnostics import Severity

_ORDER = list(Severity)


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong: an ERROR keeps pods from their network or counts from being right.

    `remedy` mends it, or shows more. `objects` are those it is about, as kubectl names them; a
    finding about this machine has none.
    """

    severity: Severity
    message: str
    remedy: str = ""
    check: str = ""
    objects: tuple[str, ...] = ()


def is_healthy(findings: Iterable[Finding]) -> bool:
    return all(finding.severity is not Severity.ERROR for finding in findings)


def grouped(findings: Iterable[Finding]) -> list[Finding]:
    """Those of one kind about many objects as one with the first's remedy; worst and most first."""
    kinds: dict[tuple[Severity, str, str], Finding] = {}
    objects: defaultdict[tuple[Severity, str, str], list[str]] = defaultdict(list)
    for finding in findings:
        kind = finding.severity, finding.check, finding.message
        kinds.setdefault(kind, finding)
        objects[kind] += finding.objects
    merged = [replace(first, objects=tuple(objects[kind])) for kind, first in kinds.items()]
    return sorted(
        merged, key=lambda finding: (_ORDER.index(finding.severity), -len(finding.objects))
    )
