"""Situations in which an alert must not fire."""

from __future__ import annotations

from exporter import catalog, controller_catalog, limits_catalog
from tests.unit.alert_cases import (
    LIMITED_POD,
    MB,
    QUOTA_OF_POD,
    Case,
    bucket,
    free,
    leader,
    line,
    namespace,
    nodes,
    pod,
    unhealthy,
)

QUIET = [
    Case(
        "NetmgrPodInternetSpike",
        120,
        (pod(f"0+{100 * MB}x120"),),
        {"why": "that pod is always so busy"},
    ),
    Case(
        "NetmgrPodInternetSpike",
        67,
        (pod(f"0+{MB}x59 {60 * MB}+{20 * MB}x10"),),
        {"why": "too little to matter"},
    ),
    Case("NetmgrPodInternetSpike", 62, (pod(f"0x59 0+{300 * MB}x10"),), {"why": "only just begun"}),
    Case(
        "NetmgrPodInternetSpike",
        75,
        (pod(f"_x44 0+{300 * MB}x40"),),
        {"why": "a new pod that loads its data"},
    ),
    Case(
        "NetmgrSustainedEgress",
        180,
        (namespace(f"0+{150 * MB}x30 {4500 * MB}x150"),),
        {"why": "it ended"},
    ),
    Case("NetmgrSustainedEgress", 180, (namespace(f"0+{50 * MB}x180"),), {"why": "slow enough"}),
    Case(
        "NetmgrSustainedEgress",
        180,
        (namespace(f"0+{150 * MB}x180", traffic="internet-in"),),
        {"why": "it comes in"},
    ),
    Case(
        "NetmgrAccountingGap",
        90,
        (line(catalog.GAPS, "3x90", reason="removed"),),
        {"why": "long ago"},
    ),
    Case(
        "NetmgrAccountingGap",
        60,
        (
            line(catalog.GAPS, "0+1x60", reason="late"),
            line(catalog.GAP_SECONDS, "0+0.03x60", reason="late"),
        ),
        {"why": "an observer that is busy for a moment"},
    ),
    Case(
        "NetmgrSeriesDropped",
        20,
        (line(catalog.DROPPED, "0x9 30x40", pods="lingering"),),
        {"why": "for a moment"},
    ),
    Case(
        "NetmgrDriftRepairedRepeatedly",
        40,
        (line(catalog.DRIFT, "0x9 1x40", reason="rules"),),
        {"why": "once"},
    ),
    Case("NetmgrExporterDown", 13, (line("up", "1x9 0x3 1x20"),), {"why": "a restart"}),
    Case("NetmgrExporterDown", 30, (line("up", "0x40", job="other"),), {"why": "not ours"}),
    Case("NetmgrAgentDown", 13, (line(catalog.UP, "1x9 0x3 1x20"),), {"why": "a restart"}),
    Case("NetmgrAgentNotReady", 13, (line(catalog.READY, "1x9 0x3 1x20"),), {"why": "a restart"}),
    Case(
        "NetmgrPoolExhausted",
        30,
        (
            line(catalog.ADDRESSES, "1x40", family="ipv4", state="free"),
            line(catalog.ADDRESSES, "0x40", family="ipv6", state="free"),
            line(catalog.ADDRESSES, "0x40", family="ipv6", state="allocated"),
        ),
        {"why": "one is free, and there are no ranges of the other family"},
    ),
    Case(
        "NetmgrCniErrors",
        30,
        (
            line(catalog.REQUESTS, "0+9x40", command="ADD", code="0"),
            line(catalog.REQUESTS, "0x20 1x20", command="ADD", code="11"),
            line(catalog.REQUESTS, "0+4x40", command="STATUS", code="50"),
        ),
        {"why": "one failure, and STATUS has an alert of its own"},
    ),
    Case(
        "NetmgrCniSlow",
        30,
        (
            bucket("1.0", "0+60x40"),
            bucket("+Inf", "0+60x40"),
            bucket("1.0", "0x40", "GC"),
            bucket("+Inf", "0+1x40", "GC"),
        ),
        {"why": "ADD is quick"},
    ),
    Case(
        "NetmgrStateRebuilt",
        75,
        (line(catalog.REBUILDS, "0x9 1x90"), line(catalog.STARTED, "0x100")),
        {"why": "more than an hour ago"},
    ),
    Case(
        "NetmgrUnattributedTraffic",
        60,
        (
            line(catalog.FORWARDED, f"0+{MB}x60", traffic="internet-out"),
            line(catalog.UNATTRIBUTED, f"0+{MB // 100}x60", traffic="internet-out"),
        ),
        {"why": "a hundredth"},
    ),
    Case(
        "NetmgrTotalsNotDurable",
        14,
        (line(catalog.DURABLE, "1x9 0x4 1x20"),),
        {"why": "for a moment"},
    ),
    Case(
        "NetmgrRangesUnknown",
        20,
        (line(catalog.RANGES_KNOWN, "1x9 0x9 1x20", source="azure"),),
        {"why": "throttled for a while"},
    ),
    Case(
        "NetmgrRouteFault",
        20,
        (line(catalog.ROUTE_FAULTS, "0x9 1x9 0x20"),),
        {"why": "until the list of nodes comes"},
    ),
    Case(
        "NetmgrPodAtItsConnections",
        30,
        (line(limits_catalog.LIMIT_CONNECTIONS, "0x9 60x40", namespace="batch", pod="job-1"),),
        {"why": "once"},
    ),
    Case(
        "NetmgrPodAtItsLimit",
        40,
        (
            line(limits_catalog.LIMIT_BYTES, "0+60000000x50", **LIMITED_POD),
            line(limits_catalog.LIMIT_RATE, "1250000x50", **LIMITED_POD),
        ),
        {"why": "below it"},
    ),
    Case(
        "NetmgrNodeProblem",
        10,
        (line(catalog.PROBLEMS, "0x20", reason="DriftReturns"),),
        {"why": "there is none"},
    ),
    Case(
        "NetmgrConnectionTrackingFills",
        20,
        (
            line(limits_catalog.TRACKED, "200000x9 230000x3 200000x20"),
            line(limits_catalog.TRACKED_MOST, "262144x40"),
        ),
        {"why": "for a moment"},
    ),
    Case(
        "NetmgrQuotaSpent",
        10,
        (
            line(limits_catalog.QUOTA_USED, "9900000000x20", **QUOTA_OF_POD),
            line(limits_catalog.QUOTA, "10000000000x20", **QUOTA_OF_POD),
        ),
        {"why": "something is left"},
    ),
    Case(
        "NetmgrQuotaForecast",
        90,
        (
            line(limits_catalog.QUOTA_FORECAST, "11000000000x100", **QUOTA_OF_POD),
            line(limits_catalog.QUOTA_USED, "10000000000x100", **QUOTA_OF_POD),
            line(limits_catalog.QUOTA, "10000000000x100", **QUOTA_OF_POD),
        ),
        {"why": "it is spent already"},
    ),
    Case("NetmgrForeignFlowtable", 9, (line(catalog.FOREIGN_FLOWTABLES, "1x9"),), {"why": "new"}),
    Case(
        "NetmgrSpokesApart",
        30,
        (
            line(
                catalog.ISOLATION_PACKETS,
                "0x5 60x40",
                **{"from": "spoke-a", "to": "spoke-b"},
            ),
        ),
        {"why": "once"},
    ),
    Case(
        "NetmgrNatPortsScarce",
        30,
        (line(catalog.NAT_SHARE, "0.7x40", family="ipv4", protocol="tcp"),),
        {"why": "room"},
    ),
    Case(
        "NetmgrControllerNotLed",
        25,
        (leader("1x9 0x3 0x40"), leader("0x13 1x30", "node-2")),
        {"why": "the other took over"},
    ),
    Case(
        "NetmgrNodesWithoutRanges",
        40,
        (leader("0x40"), nodes("2x40", "refused"), leader("1x40", "node-2")),
        {"why": "a former leader's last value"},
    ),
    Case(
        "NetmgrNodesWithoutRanges",
        20,
        (leader("1x40"), nodes("0x9 5x5 0x30", "waiting")),
        {"why": "written within minutes"},
    ),
    Case("NetmgrNodePoolFull", 40, (leader("1x40"), free("1x40")), {"why": "one is free"}),
    Case(
        "NetmgrPlanNotInForce",
        20,
        (leader("0x40"), line(controller_catalog.PLAN_REFUSED, "1x40")),
        {"why": "it does not lead"},
    ),
    Case(
        "NetmgrPreflightFailed",
        60,
        (leader("1x60"), line(controller_catalog.PREFLIGHT_FAILED, "1x20 0x5 1x20 0x30")),
        {"why": "each passes within half an hour"},
    ),
    Case(
        "NetmgrUnhealthyNodesUntainted",
        40,
        (leader("1x40"), unhealthy("5x40", "tainted"), unhealthy("0x40", "withheld")),
        {"why": "all of them are tainted"},
    ),
]
