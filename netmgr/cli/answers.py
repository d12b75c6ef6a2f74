"""What commands answer with `-o json` and `-o yaml`, where no other room has the type.

Imported for type checking alone: it imports much of `netmgr.plan`. Within a version keys are added,
and none is renamed, removed or given another meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NotRequired, TypedDict

from netmgr.documents.diagnostics import Severity
from netmgr.findings import Finding as MachineFinding
from netmgr.kube.diagnose.connectivity import Check, CheckState
from netmgr.ledger.history import By
from netmgr.plan.check.reach import Target
from netmgr.plan.check.usage import Forecast
from netmgr.plan.diff import Change
from netmgr.plan.growth import Choice


class Versioned(TypedDict):
    """Every answer has its version."""

    version: Literal[1]


class Examination(Versioned):
    """Of `doctor`: the findings of each check, none where nothing is wrong."""

    checks: dict[str, list[MachineFinding]]


class HowMany(TypedDict):
    """How many there should be, and how many are ready; of exporters, how many answer."""

    wanted: int
    ready: int


class ClusterStatus(Versioned):
    """Of `status --cluster`: `images` has how many agents' pods run which, findings worst first."""

    healthy: bool
    nodes: int
    agents: HowMany
    controllers: HowMany
    leader: str
    reports: HowMany
    images: dict[str, int]
    findings: Sequence[MachineFinding]


class ConnectivityOfNode(TypedDict):
    """A tested Node: what came of each check."""

    node: str
    checks: dict[Check, CheckState]


class ConnectivityReport(Versioned):
    """Of `connectivity-test`; `namespace` is where its pods were, or are if `kept`."""

    passed: bool
    namespace: str
    kept: bool
    nodes: list[ConnectivityOfNode]
    findings: Sequence[MachineFinding]


class UsageDocumentRow(TypedDict):
    """A sum; the first three are there where `--by` asks for them.

    `missing` is how many bytes it may lack at most; null where that is not known.
    """

    hour: NotRequired[str]
    namespace: NotRequired[str]
    pod: NotRequired[str]
    traffic: str
    bytes: int
    packets: int
    missing: NotRequired[int | None]


class UsageDocument(Versioned):
    """Of `usage`: whole hours in UTC, and how many smaller rows are left out."""

    since: str
    until: str
    by: list[By]
    rows: list[UsageDocumentRow]
    left_out: int


class PlanDiff(Versioned):
    """Of `plan diff`: what `plan lock` would change, and what of it narrows a cloud's limits."""

    changes: Sequence[Change]
    narrowed: list[str]


class Finding(TypedDict):
    """A finding about the plan."""

    severity: Severity
    message: str


class LocatedFinding(Finding):
    """A finding with the key it is about, which may be empty."""

    key: str


class LimitUsage(TypedDict):
    """How much of a limit is used; its `limit` may be unknown."""

    what: str
    where: str
    used: int
    limit: int | None
    status: Literal["unknown", "ok", "near", "over"]


class PlanCheck(Versioned):
    """Of `plan check`: whether the lock is out of date, and what was found."""

    behind: bool
    findings: list[LocatedFinding]
    limits: list[LimitUsage]
    growth: Sequence[Forecast]


class DocumentsCheck(Versioned):
    """Of `plan check --documents`: what contradicts the plan or another machine's document."""

    errors: list[str]


class ToDo(TypedDict):
    """Something to do beside applying a lock."""

    what: str
    where: str
    detail: str


class PlanGrowth(Versioned):
    """Of `plan grow`: `kept` of `of` node places in the lock keep every address."""

    changes: Sequence[Change]
    kept: int
    of: int
    to_do: list[ToDo]
    findings: list[Finding]


class UpgradeStep(TypedDict):
    """The upgrade of one node pool: how many nodes there are at its peak, and places missing."""

    pool: str
    nodes: int
    peak: int
    places: int
    short: int


class Upgrade(Versioned):
    """Of `plan dry-run upgrade`: what it passes of limits, in words."""

    succeeds: bool
    steps: list[UpgradeStep]
    over: list[str]


class MaxPods(Versioned):
    """Of `plan advise max-pods`: ways to divide each node pool's subnet."""

    choices: Sequence[Choice]


class ReachExample(TypedDict):
    """One packet, and what happened to it hop by hop."""

    source: str
    destination: str
    steps: list[str]


ReachCell = TypedDict(
    "ReachCell",
    {
        "from": str,
        "to": str,
        "what": Target,
        "outcome": Literal["reached", "in part", "dropped"],
        "wanted": bool | None,
        "packets": int,
        "example": ReachExample | None,
        "wrong": str,
    },
)


class Reach(Versioned):
    """Of `plan reach`: each owner and what of another it reaches; all that is wrong, in words."""

    cells: list[ReachCell]
    wrong: list[str]
