"""What is recorded, and which alert it fires or does not.

Series are written as promtool's documentation has them: `0+60x10` is 0, 60, … 600, one value a
minute.
"""

from __future__ import annotations

from dataclasses import dataclass

from exporter import catalog, controller_catalog, limits_catalog
from exporter.metric import Metric
from tests.unit.monitoring import JOB

NODE = {"cluster": "training", "instance": "node-1"}
LIMITED_POD = {"namespace": "batch", "pod": "job-1", "traffic": "internet-out"}
QUOTA_OF_POD = LIMITED_POD | {"period": "day"}
MB = 60_000_000
"""A minute of a million bytes a second."""

Line = tuple[str, dict[str, str], str]
"""Name, labels and values of a series."""


def line(series: Metric | str, values: str, **labels: str) -> Line:
    name = series if isinstance(series, str) else series.name
    return name, NODE | {"job": JOB} | labels, values


def pod(values: str, name: str = "loader", **labels: str) -> Line:
    return line(
        catalog.POD_BYTES, values, namespace="data", pod=name, traffic="internet-out", **labels
    )


def namespace(values: str, **labels: str) -> Line:
    return line(
        catalog.NAMESPACE_BYTES,
        values,
        **({"namespace": "data", "traffic": "internet-out"} | labels),
    )


def leader(values: str, instance: str = "node-1") -> Line:
    return line(controller_catalog.LEADER, values, instance=instance)


def nodes(values: str, state: str, instance: str = "node-1") -> Line:
    return line(controller_catalog.NODES, values, state=state, instance=instance)


def unhealthy(values: str, state: str) -> Line:
    return line(controller_catalog.UNHEALTHY, values, state=state)


def free(values: str, instance: str = "node-1") -> Line:
    return line(controller_catalog.ALLOCATIONS, values, pool="gpu", state="free", instance=instance)


def bucket(bound: str, values: str, command: str = "ADD") -> Line:
    return line(f"{catalog.DURATIONS.name}_bucket", values, command=command, le=bound)


@dataclass(frozen=True)
class Case:
    """What was recorded until minute `at`, and what fires then: labels beside the severity, and the
    summary.
    """

    alert: str
    at: int
    series: tuple[Line, ...]
    labels: dict[str, str]
    summary: str = ""


FIRES = [
    Case(
        "NetmgrPodInternetSpike",
        67,
        (
            pod(f"0+{MB}x59 {60 * MB}+{50 * MB}x10"),
            pod(f"0x59 0+{50 * MB}x10", instance="node-2"),
            pod(f"0+{MB}x70", name="other"),
        ),
        {"cluster": "training", "namespace": "data", "pod": "loader", "traffic": "internet-out"},
        "data/loader moves 100MB/s of internet-out",
    ),
    Case(
        "NetmgrPodInternetSpike",
        70,
        (pod(f"0x59 0+{100 * MB}x15"),),
        {"cluster": "training", "namespace": "data", "pod": "loader", "traffic": "internet-out"},
        "data/loader moves 100MB/s of internet-out",
    ),
    Case(
        "NetmgrSustainedEgress",
        180,
        (namespace(f"0+{75 * MB}x180"), namespace(f"0+{75 * MB}x180", instance="node-2")),
        {"cluster": "training", "namespace": "data", "traffic": "internet-out"},
        "Namespace data has sent 150MB/s to the internet for hours",
    ),
    Case(
        "NetmgrAccountingGap",
        20,
        (
            line(catalog.GAPS, "0x10 1x30", reason="removed"),
            line(catalog.GAPS, "0x50", reason="reset"),
        ),
        {**NODE, "job": JOB, "reason": "removed"},
        "Bytes may be missing from the totals of node-1 (removed)",
    ),
    Case(
        "NetmgrAccountingGap",
        20,
        (
            line(catalog.GAPS, "0x10 1x30", reason="late"),
            line(catalog.GAP_SECONDS, "0x10 30x30", reason="late"),
        ),
        {**NODE, "job": JOB, "reason": "late"},
        "Bytes may be missing from the totals of node-1 (late)",
    ),
    Case(
        "NetmgrSeriesDropped",
        30,
        (
            line(catalog.DROPPED, "0x9 30x40", pods="live"),
            line(catalog.DROPPED, "0x9 12x40", pods="lingering"),
        ),
        NODE,
        "42 series of pods are left out of the scrapes of node-1",
    ),
    Case(
        "NetmgrDriftRepairedRepeatedly",
        40,
        (line(catalog.DRIFT, "0x9 1x9 2x9 3x20", reason="rules"),),
        {**NODE, "reason": "rules"},
        "Something on node-1 keeps changing netmgr's rules",
    ),
    Case(
        "NetmgrExporterDown",
        16,
        (line("up", "1x9 0x20"), line("up", "1x40", instance="node-2")),
        {**NODE, "job": JOB},
        "The netmgr exporter of node-1 does not answer",
    ),
    Case(
        "NetmgrAgentDown",
        16,
        (line(catalog.UP, "1x9 0x20"), line(catalog.UP, "1x40", instance="node-2")),
        {**NODE, "job": JOB},
        "The netmgr agent of node-1 does not answer its exporter",
    ),
    Case(
        "NetmgrAgentNotReady",
        16,
        (line(catalog.READY, "1x9 0x20"), line(catalog.READY, "1x40", instance="node-2")),
        {**NODE, "job": JOB},
        "The netmgr agent of node-1 is not ready",
    ),
    Case(
        "NetmgrPoolExhausted",
        16,
        (
            line(catalog.ADDRESSES, "1x9 0x20", family="ipv4", state="free"),
            line(catalog.ADDRESSES, "31x9 32x20", family="ipv4", state="allocated"),
            line(catalog.ADDRESSES, "9x30", family="ipv6", state="free"),
        ),
        {**NODE, "job": JOB, "family": "ipv4", "state": "free"},
        "node-1 has no free ipv4 address",
    ),
    Case(
        "NetmgrCniErrors",
        30,
        (line(catalog.REQUESTS, "0+1x40", command="ADD", code="101"),),
        {**NODE, "command": "ADD", "code": "101"},
        "CNI ADD keeps failing on node-1 with code 101",
    ),
    Case(
        "NetmgrCniSlow",
        30,
        (bucket("1.0", "0x40"), bucket("2.5", "0+60x40"), bucket("+Inf", "0+60x40")),
        {"cluster": "training", "command": "ADD"},
        "One pod in a hundred waits 2.485s for its network",
    ),
    Case(
        "NetmgrStateRebuilt",
        30,
        (line(catalog.REBUILDS, "0x9 1x40"),),
        {**NODE, "job": JOB},
        "The netmgr agent of node-1 found its state damaged and rebuilt it",
    ),
    Case(
        "NetmgrStateRebuilt",
        100,
        (line(catalog.REBUILDS, "0x9 1x60 2x60"), line(catalog.STARTED, "0x130")),
        {**NODE, "job": JOB},
        "The netmgr agent of node-1 found its state damaged and rebuilt it",
    ),
    Case(
        "NetmgrStateRebuilt",
        140,
        # Started anew, and again its first act was to rebuild: the counter is 1 as before.
        (line(catalog.REBUILDS, "0x9 1x150"), line(catalog.STARTED, "540x120 7260x40")),
        {**NODE, "job": JOB},
        "The netmgr agent of node-1 found its state damaged and rebuilt it",
    ),
    Case(
        "NetmgrUnattributedTraffic",
        60,
        (
            line(catalog.FORWARDED, f"0+{MB}x60", traffic="internet-out"),
            line(catalog.UNATTRIBUTED, f"0+{MB // 10}x60", traffic="internet-out"),
        ),
        {"cluster": "training", "traffic": "internet-out"},
        "100kB/s of internet-out in training are no pod's",
    ),
    Case(
        "NetmgrTotalsNotDurable",
        30,
        (line(catalog.DURABLE, "1x9 0x30"),),
        {**NODE, "job": JOB},
        "The totals of node-1 are in memory alone",
    ),
    Case(
        "NetmgrRangesUnknown",
        30,
        (line(catalog.RANGES_KNOWN, "1x9 0x30", source="azure"),),
        {**NODE, "job": JOB, "source": "azure"},
        "node-1 cannot follow its ranges (azure)",
    ),
    Case(
        "NetmgrRouteFault",
        30,
        (line(catalog.ROUTE_FAULTS, "0x9 2x30"),),
        {**NODE, "job": JOB},
        "node-1 has 2 routes that are missing or lead elsewhere",
    ),
    Case(
        "NetmgrForeignFlowtable",
        30,
        (line(catalog.FOREIGN_FLOWTABLES, "0x9 1x30"),),
        {**NODE, "job": JOB},
        "node-1 has flowtables of other programs (1)",
    ),
    Case(
        "NetmgrPodAtItsLimit",
        40,
        (
            line(limits_catalog.LIMIT_BYTES, "0+72000000x50", **LIMITED_POD),
            line(limits_catalog.LIMIT_RATE, "1250000x50", **LIMITED_POD),
        ),
        {**NODE, "job": JOB, **LIMITED_POD},
        "batch/job-1 has been at its limit of internet-out for half an hour",
    ),
    Case(
        "NetmgrPodAtItsConnections",
        30,
        (line(limits_catalog.LIMIT_CONNECTIONS, "0+60x40", namespace="batch", pod="job-1"),),
        {**NODE, "job": JOB, "namespace": "batch", "pod": "job-1"},
        "batch/job-1 keeps beginning more connections than it may",
    ),
    Case(
        "NetmgrNodeProblem",
        10,
        (line(catalog.PROBLEMS, "0 1x20", reason="DriftReturns"),),
        {**NODE, "job": JOB, "reason": "DriftReturns"},
        "The network of node-1 has a problem that lasts: DriftReturns",
    ),
    Case(
        "NetmgrConnectionTrackingFills",
        20,
        (
            line(limits_catalog.TRACKED, "200000 230000x30"),
            line(limits_catalog.TRACKED_MOST, "262144x30"),
        ),
        {**NODE, "job": JOB},
        "The connection table of node-1 is more than 80 % full",
    ),
    Case(
        "NetmgrQuotaSpent",
        10,
        (
            line(limits_catalog.QUOTA_USED, "9000000000 9990000000 10000000000x20", **QUOTA_OF_POD),
            line(limits_catalog.QUOTA, "10000000000x20", **QUOTA_OF_POD),
        ),
        {**NODE, "job": JOB, **QUOTA_OF_POD},
        "batch/job-1 has spent its internet-out of the day",
    ),
    Case(
        "NetmgrQuotaForecast",
        90,
        (
            line(limits_catalog.QUOTA_FORECAST, "11000000000x100", **QUOTA_OF_POD),
            line(limits_catalog.QUOTA_USED, "1000000000x100", **QUOTA_OF_POD),
            line(limits_catalog.QUOTA, "10000000000x100", **QUOTA_OF_POD),
        ),
        {**NODE, "job": JOB, **QUOTA_OF_POD},
        "batch/job-1 will spend its internet-out before the day ends",
    ),
    Case(
        "NetmgrSpokesApart",
        30,
        (
            line(
                catalog.ISOLATION_PACKETS,
                "0+60x40",
                **{"from": "spoke-a", "to": "spoke-b"},
            ),
            line(catalog.ISOLATION_PACKETS, "0x40", **{"from": "spoke-b", "to": "spoke-a"}),
        ),
        {"cluster": "training", "from": "spoke-a", "to": "spoke-b"},
        "Something in spoke-a keeps sending to spoke-b",
    ),
    Case(
        "NetmgrNatPortsScarce",
        16,
        (
            line(catalog.NAT_SHARE, "0.5x9 0.85x20", family="ipv4", protocol="tcp"),
            line(catalog.NAT_SHARE, "0.1x30", family="ipv4", protocol="udp"),
        ),
        {**NODE, "job": JOB, "family": "ipv4", "protocol": "tcp"},
        "node-1 has 85% of its tcp ports toward one endpoint in use",
    ),
    Case(
        "NetmgrControllerNotLed",
        20,
        (leader("1x9 0x30"), leader("0x40", "node-2")),
        {"cluster": "training"},
        "0 range controllers lead in training",
    ),
    Case(
        "NetmgrControllerNotLed",
        20,
        (leader("1x40"), leader("0x9 1x30", "node-2")),
        {"cluster": "training"},
        "2 range controllers lead in training",
    ),
    Case(
        "NetmgrNodesWithoutRanges",
        40,
        (leader("1x40"), nodes("2x40", "refused"), nodes("0x40", "waiting")),
        {"cluster": "training", "state": "refused"},
        "2 Nodes in training have no ranges of the plan (refused)",
    ),
    Case(
        "NetmgrNodesWithoutRanges",
        40,
        (
            leader("1x20 0x20"),
            leader("0x20 1x20", "node-2"),
            nodes("1x20 0x20", "waiting"),
            nodes("0x20 1x20", "waiting", "node-2"),
        ),
        {"cluster": "training", "state": "waiting"},
        "1 Nodes in training have no ranges of the plan (waiting)",
    ),
    Case(
        "NetmgrNodePoolFull",
        40,
        (leader("1x40"), free("0x40"), leader("0x40", "node-2"), free("3x40", "node-2")),
        {"cluster": "training", "pool": "gpu"},
        "Node pool gpu in training has no free allocation",
    ),
    Case(
        "NetmgrPlanNotInForce",
        20,
        (leader("1x40"), line(controller_catalog.PLAN_REFUSED, "0x9 1x30")),
        {"cluster": "training"},
        "The range controller in training refuses the plan on disk",
    ),
    Case(
        "NetmgrPreflightFailed",
        45,
        (leader("1x60"), line(controller_catalog.PREFLIGHT_FAILED, "0x9 3x50")),
        {"cluster": "training"},
        "The preflight of 3 Nodes in training fails",
    ),
    Case(
        "NetmgrUnhealthyNodesUntainted",
        30,
        (leader("1x40"), unhealthy("0x9 2x30", "withheld"), unhealthy("4x40", "tainted")),
        {"cluster": "training"},
        "2 unhealthy Nodes in training still get pods",
    ),
]
