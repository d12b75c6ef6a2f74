"""What is recorded, and which alert it fires or does not.

A case is a line with the alert, the minute until which was recorded, and what is expected: the
labels that the alert has beside cluster and severity, and its summary; or why it is quiet. The
series follow with their values, written as promtool's documentation has them: `0+60x10` is 0, 60,
… 600, one value a minute. Only labels that differ from `LABELS` are written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from exporter.catalog import CATALOG
from exporter.controller_catalog import CONTROLLER
from tests.unit.monitoring import CONTROLLER_JOB, JOB

TARGET = {"cluster": "training", "instance": "node-1", "job": JOB}
LABELS = (
    {"namespace": "data", "pod": "loader", "traffic": "internet-out", "period": "day"}
    | {"family": "ipv4", "protocol": "tcp", "command": "ADD", "pool": "gpu", "source": "azure"}
    | {"from": "spoke-a", "to": "spoke-b"}
)
MB = 60_000_000
"""A minute of a million bytes a second."""

CONTROLLERS = {metric.name for metric in CONTROLLER}
EXPOSED = {metric.name: metric.labels for metric in (*CATALOG, *CONTROLLER)} | {"up": ()}


@dataclass(frozen=True)
class Case:
    """What was recorded until minute `at`, and what fires then: labels beside the severity, and the
    summary.
    """

    alert: str
    at: int
    series: tuple[tuple[str, dict[str, str], str], ...]
    labels: dict[str, str]
    summary: str


def series(line: str) -> tuple[str, dict[str, str], str]:
    """Name, labels and values of what a line says."""
    name, written, values = re.fullmatch(r" +(\w+)(?:{(.*?)})? (.*)", line).groups(default="")
    given = dict(label.split("=") for label in written.split(",") if label)
    own = {label: LABELS.get(label) for label in EXPOSED[name.removesuffix("_bucket")]}
    job = {"job": CONTROLLER_JOB} if name in CONTROLLERS else {}
    labels = TARGET | job | own | given
    assert None not in labels.values()
    return name, labels, re.sub(r"([\d.]+)MB", lambda part: f"{float(part[1]) * MB:.0f}", values)


def cases(text: str) -> Iterator[Case]:
    for block in re.split(r"\n(?=\w)", text.strip()):
        head, *lines = block.splitlines()
        alert, at, names, expected = re.fullmatch(r"(\w+) (\d+) (?:{(.*)} )?(.*)", head).groups("")
        recorded = tuple(series(line) for line in lines if "#" not in line)
        every = {label: value for _, labels, _ in recorded[::-1] for label, value in labels.items()}
        labels = {label: every[label] for label in ("cluster", *names.split())}
        yield Case(alert, int(at), recorded, labels, expected)


FIRES = [
    *cases("""
NetmgrPodInternetSpike 67 {namespace pod traffic} data/loader moves 100MB/s of internet-out
    netmgr_pod_traffic_bytes_total 0+1MBx59 60MB+50MBx10
    netmgr_pod_traffic_bytes_total{instance=node-2} 0x59 0+50MBx10
    netmgr_pod_traffic_bytes_total{pod=other} 0+1MBx70
NetmgrPodInternetSpike 70 {namespace pod traffic} data/loader moves 100MB/s of internet-out
    netmgr_pod_traffic_bytes_total 0x59 0+100MBx15
NetmgrSustainedEgress 180 {namespace traffic} \
Namespace data has sent 150MB/s to the internet for hours
    netmgr_namespace_traffic_bytes_total 0+75MBx180
    netmgr_namespace_traffic_bytes_total{instance=node-2} 0+75MBx180
NetmgrAccountingGap 20 {instance job reason} \
Bytes may be missing from the totals of node-1 (removed)
    netmgr_accounting_gaps_total{reason=removed} 0x10 1x30
    netmgr_accounting_gaps_total{reason=reset} 0x50
NetmgrAccountingGap 20 {instance job reason} Bytes may be missing from the totals of node-1 (late)
    netmgr_accounting_gaps_total{reason=late} 0x10 1x30
    netmgr_accounting_gap_seconds_total{reason=late} 0x10 30x30
NetmgrSeriesDropped 30 {instance} 42 series of pods are left out of the scrapes of node-1
    netmgr_exporter_dropped_series{pods=live} 0x9 30x40
    netmgr_exporter_dropped_series{pods=lingering} 0x9 12x40
NetmgrDriftRepairedRepeatedly 40 {instance reason} Something on node-1 keeps changing netmgr's rules
    netmgr_rules_drift_repaired_total{reason=rules} 0x9 1x9 2x9 3x20
NetmgrExporterDown 16 {instance job} The netmgr exporter of node-1 does not answer
    up 1x9 0x20
    up{instance=node-2} 1x40
NetmgrExporterDown 20 {instance} The netmgr exporter of node-1 does not answer
    # Its pod is gone, and no controller is scraped.
    up 1x9 stale
    up{instance=node-2} 1x40
NetmgrExporterDown 20 {instance} The netmgr exporter of node-1 does not answer
    # The controller has a Node more than there are exporters.
    up 1x9 stale
    up{instance=node-2} 1x40
    netmgr_controller_leader{instance=node-2} 1x40
    netmgr_controller_nodes{instance=node-2,state=served} 1x40
    netmgr_controller_nodes{instance=node-2,state=waiting} 1x40
NetmgrAgentDown 16 {instance job} \
The netmgr agent of node-1 does not answer its exporter, or both are gone
    netmgr_up 1x9 0x20
    netmgr_up{instance=node-2} 1x40
NetmgrAgentDown 20 {instance} \
The netmgr agent of node-1 does not answer its exporter, or both are gone
    up 1x9 stale
    netmgr_up 1x9 stale
NetmgrNodesWithoutAgent 90 {} 2 Nodes in training have no netmgr pod that is scraped
    # Two are gone for longer than anybody remembers.
    up 1x9 stale
    up{instance=node-2} 1x9 stale
    up{instance=node-3} 1x100
    netmgr_controller_leader{instance=node-3} 1x100
    netmgr_controller_nodes{instance=node-3,state=served} 3x100
NetmgrNodesWithoutAgent 90 {} 3 Nodes in training have no netmgr pod that is scraped
    # There never was one.
    netmgr_controller_leader{instance=node-3} 1x100
    netmgr_controller_nodes{instance=node-3,state=served} 3x100
NetmgrAgentNotReady 16 {instance job} The netmgr agent of node-1 is not ready
    netmgr_agent_ready 1x9 0x20
    netmgr_agent_ready{instance=node-2} 1x40
NetmgrPoolExhausted 16 {instance job family state} node-1 has no free ipv4 address
    netmgr_ipam_addresses{state=free} 1x9 0x20
    netmgr_ipam_addresses{state=allocated} 31x9 32x20
    netmgr_ipam_addresses{family=ipv6,state=free} 9x30
NetmgrCniErrors 30 {instance command code} CNI ADD keeps failing on node-1 with code 101
    netmgr_cni_requests_total{code=101} 0+1x40
NetmgrCniSlow 30 {command} One pod in a hundred waits 2.485s for its network
    netmgr_cni_request_duration_seconds_bucket{le=1.0} 0x40
    netmgr_cni_request_duration_seconds_bucket{le=2.5} 0+60x40
    netmgr_cni_request_duration_seconds_bucket{le=+Inf} 0+60x40
NetmgrStateRebuilt 30 {instance job} \
The netmgr agent of node-1 found its state damaged and rebuilt it
    netmgr_state_rebuilds_total 0x9 1x40
NetmgrStateRebuilt 100 {instance job} \
The netmgr agent of node-1 found its state damaged and rebuilt it
    netmgr_state_rebuilds_total 0x9 1x60 2x60
    netmgr_agent_start_time_seconds 0x130
NetmgrStateRebuilt 140 {instance job} \
The netmgr agent of node-1 found its state damaged and rebuilt it
    netmgr_state_rebuilds_total 0x9 1x150
    netmgr_agent_start_time_seconds 540x120 7260x40
NetmgrUnattributedTraffic 60 {traffic} 100kB/s of internet-out in training are no pod's
    netmgr_accounting_forwarded_bytes_total 0+1MBx60
    netmgr_accounting_unattributed_bytes_total 0+0.1MBx60
NetmgrBudgetUnanswered 12 {instance job} \
node-1 has had no answer about budgets for 7m 0s
    netmgr_budget_answer_age_seconds 5x5 60+60x20
    netmgr_budget_enforced 1x30
NetmgrBudgetHoldsBack 100 {namespace budget} \
The budget everyone has held back pods of data for an hour
    netmgr_budget_throttled_seconds_total{budget=everyone} 0+40x100
    netmgr_budget_throttled_seconds_total{budget=everyone,instance=node-2} 0+40x100
NetmgrBudgetQuotaNear 15 {budget} The budget research has used 90 % of its bytes of the day
    netmgr_controller_budget_quota_bytes{budget=research,of=quota} 10000000000x20
    netmgr_controller_budget_quota_bytes{budget=research,of=used} 8000000000x5 9100000000x15
NetmgrBudgetsRefused 20 {} The budgets in training are those from before the last change
    netmgr_controller_budgets_refused 0 1x30
    netmgr_controller_leader 1x30
NetmgrPodAtItsLimit 40 {instance job namespace pod traffic} \
data/loader has been at its limit of internet-out for half an hour
    netmgr_limit_sent_bytes_total 0+1.2MBx50
    netmgr_limit_bytes_per_second 1250000x50
NetmgrPodAtItsConnections 30 {instance job namespace pod} \
data/loader keeps beginning more connections than it may
    netmgr_limit_dropped_new_connections_total 0+60x40
NetmgrNodeProblem 10 {instance job reason} \
The network of node-1 has a problem that lasts: DriftReturns
    netmgr_node_problem{reason=DriftReturns} 0 1x20
NetmgrConnectionTrackingFills 20 {instance job} \
The connection table of node-1 is more than 80 % full
    netmgr_tracked_connections 200000 230000x30
    netmgr_tracked_connections_limit 262144x30
NetmgrQuotaSpent 10 {instance job namespace pod traffic period} \
data/loader has spent its internet-out of the day
    netmgr_quota_used_bytes 9000000000 9990000000 10000000000x20
    netmgr_quota_bytes 10000000000x20
NetmgrQuotaForecast 90 {instance job namespace pod traffic period} \
data/loader will spend its internet-out before the day ends
    netmgr_quota_forecast_bytes 11000000000x100
    netmgr_quota_used_bytes 1000000000x100
    netmgr_quota_bytes 10000000000x100
NetmgrSpokesApart 30 {from to} Something in spoke-a keeps sending to spoke-b
    netmgr_isolation_dropped_packets_total 0+60x40
    netmgr_isolation_dropped_packets_total{from=spoke-b,to=spoke-a} 0x40
NetmgrNatPortsScarce 16 {instance job family protocol} \
node-1 has 85% of its tcp ports toward one endpoint in use
    netmgr_nat_ports_used_ratio 0.5x9 0.85x20
    netmgr_nat_ports_used_ratio{protocol=udp} 0.1x30
NetmgrControllerNotLed 20 {} 0 range controllers lead in training
    netmgr_controller_leader 1x9 0x30
    netmgr_controller_leader{instance=node-2} 0x40
NetmgrControllerNotLed 90 {} 0 range controllers lead in training
    # Both pods are gone, and their targets with them.
    up{job=netmgr-controller} 1x9 stale
    up{job=netmgr-controller,instance=node-2} 1x9 stale
    netmgr_controller_leader 1x9 stale
    netmgr_controller_leader{instance=node-2} 0x9 stale
NetmgrControllerNotLed 20 {} 0 range controllers lead in training
    # They are listed, and none ever answered.
    up{job=netmgr-controller} 0x40
    up{job=netmgr-controller,instance=node-2} 0x40
NetmgrControllerNotLed 20 {} 2 range controllers lead in training
    netmgr_controller_leader 1x40
    netmgr_controller_leader{instance=node-2} 0x9 1x30
NetmgrNodesWithoutRanges 40 {state} 2 Nodes in training have no ranges of the plan (refused)
    netmgr_controller_leader 1x40
    netmgr_controller_nodes{state=refused} 2x40
    netmgr_controller_nodes{state=waiting} 0x40
NetmgrNodesWithoutRanges 40 {state} 1 Nodes in training have no ranges of the plan (waiting)
    netmgr_controller_leader 1x20 0x20
    netmgr_controller_leader{instance=node-2} 0x20 1x20
    netmgr_controller_nodes{state=waiting} 1x20 0x20
    netmgr_controller_nodes{instance=node-2,state=waiting} 0x20 1x20
NetmgrNodePoolFull 40 {pool} Node pool gpu in training has no free allocation
    netmgr_controller_leader 1x40
    netmgr_controller_allocations{state=free} 0x40
    netmgr_controller_leader{instance=node-2} 0x40
    netmgr_controller_allocations{instance=node-2,state=free} 3x40
NetmgrPlanNotInForce 20 {} The range controller in training refuses the plan on disk
    netmgr_controller_leader 1x40
    netmgr_controller_plan_refused 0x9 1x30
NetmgrPreflightFailed 45 {} The preflight of 3 Nodes in training fails
    netmgr_controller_leader 1x60
    netmgr_controller_preflight_failed 0x9 3x50
NetmgrNodesShareRanges 12 {} 1 Nodes in training have podCIDRs of an older Node
    netmgr_controller_leader 1x40
    netmgr_controller_nodes_sharing_ranges 0x9 1x30
NetmgrUnhealthyNodesUntainted 30 {} 2 unhealthy Nodes in training still get pods
    netmgr_controller_leader 1x40
    netmgr_controller_unhealthy_nodes{state=withheld} 0x9 2x30
    netmgr_controller_unhealthy_nodes{state=tainted} 4x40
""")
]

QUIET = [
    *cases("""
NetmgrPodInternetSpike 120 that pod is always so busy
    netmgr_pod_traffic_bytes_total 0+100MBx120
NetmgrPodInternetSpike 67 too little to matter
    netmgr_pod_traffic_bytes_total 0+1MBx59 60MB+20MBx10
NetmgrPodInternetSpike 62 only just begun
    netmgr_pod_traffic_bytes_total 0x59 0+300MBx10
NetmgrPodInternetSpike 75 a new pod that loads its data
    netmgr_pod_traffic_bytes_total _x44 0+300MBx40
NetmgrSustainedEgress 180 it ended
    netmgr_namespace_traffic_bytes_total 0+150MBx30 4500MBx150
NetmgrSustainedEgress 180 slow enough
    netmgr_namespace_traffic_bytes_total 0+50MBx180
NetmgrSustainedEgress 180 it comes in
    netmgr_namespace_traffic_bytes_total{traffic=internet-in} 0+150MBx180
NetmgrAccountingGap 90 long ago
    netmgr_accounting_gaps_total{reason=removed} 3x90
NetmgrAccountingGap 60 an observer that is busy for a moment
    netmgr_accounting_gaps_total{reason=late} 0+1x60
    netmgr_accounting_gap_seconds_total{reason=late} 0+0.03x60
NetmgrSeriesDropped 20 for a moment
    netmgr_exporter_dropped_series{pods=lingering} 0x9 30x40
NetmgrDriftRepairedRepeatedly 40 once
    netmgr_rules_drift_repaired_total{reason=rules} 0x9 1x40
NetmgrExporterDown 13 a restart
    up 1x9 0x3 1x20
NetmgrExporterDown 30 not ours
    up{job=other} 0x40
NetmgrExporterDown 30 a controller is none
    up{job=netmgr-controller} 0x40
NetmgrExporterDown 20 it went with its Node, as the controller knows
    up 1x9 stale
    up{instance=node-2} 1x40
    netmgr_controller_leader{instance=node-2} 1x40
    netmgr_controller_nodes{instance=node-2,state=served} 2x9 1x30
    netmgr_controller_nodes{instance=node-2,state=waiting} 0x40
NetmgrExporterDown 90 it was removed long ago
    up 1x9 stale
NetmgrAgentDown 13 its pod was replaced
    up 1x9 stale stale stale 1x20
    netmgr_up 1x9 stale stale stale 1x20
NetmgrNodesWithoutAgent 90 every Node has one, and so has a NAT host
    up 1x100
    up{instance=node-2} 0x100
    up{instance=nat-1} 1x100
    netmgr_controller_leader{instance=node-3} 1x100
    netmgr_controller_leader 0x100
    netmgr_controller_nodes{state=served} 9x100
    netmgr_controller_nodes{instance=node-3,state=served} 2x100
NetmgrNodesWithoutAgent 30 no controller counts Nodes
    up 1x9 stale
NetmgrAgentDown 13 a restart
    netmgr_up 1x9 0x3 1x20
NetmgrAgentNotReady 13 a restart
    netmgr_agent_ready 1x9 0x3 1x20
NetmgrPoolExhausted 30 one is free, and there are no ranges of the other family
    netmgr_ipam_addresses{state=free} 1x40
    netmgr_ipam_addresses{family=ipv6,state=free} 0x40
    netmgr_ipam_addresses{family=ipv6,state=allocated} 0x40
NetmgrCniErrors 30 one failure, and STATUS has an alert of its own
    netmgr_cni_requests_total{code=0} 0+9x40
    netmgr_cni_requests_total{code=11} 0x20 1x20
    netmgr_cni_requests_total{command=STATUS,code=50} 0+4x40
NetmgrCniSlow 30 ADD is quick
    netmgr_cni_request_duration_seconds_bucket{le=1.0} 0+60x40
    netmgr_cni_request_duration_seconds_bucket{le=+Inf} 0+60x40
    netmgr_cni_request_duration_seconds_bucket{command=GC,le=1.0} 0x40
    netmgr_cni_request_duration_seconds_bucket{command=GC,le=+Inf} 0+1x40
NetmgrStateRebuilt 75 more than an hour ago
    netmgr_state_rebuilds_total 0x9 1x90
    netmgr_agent_start_time_seconds 0x100
NetmgrUnattributedTraffic 60 a hundredth
    netmgr_accounting_forwarded_bytes_total 0+1MBx60
    netmgr_accounting_unattributed_bytes_total 0+0.01MBx60
NetmgrPodAtItsConnections 30 once
    netmgr_limit_dropped_new_connections_total 0x9 60x40
NetmgrBudgetUnanswered 15 nobody is held back
    netmgr_budget_answer_age_seconds 60+60x20
    netmgr_budget_enforced 0x30
NetmgrBudgetHoldsBack 100 less than one at a time
    netmgr_budget_throttled_seconds_total{budget=everyone} 0+50x100
NetmgrBudgetQuotaNear 15 less than that
    netmgr_controller_budget_quota_bytes{budget=research,of=quota} 10000000000x20
    netmgr_controller_budget_quota_bytes{budget=research,of=used} 8900000000x20
NetmgrBudgetsRefused 20 a former leader's last value
    netmgr_controller_budgets_refused 1x30
    netmgr_controller_leader 0x30
NetmgrPodAtItsLimit 40 below it
    netmgr_limit_sent_bytes_total 0+1MBx50
    netmgr_limit_bytes_per_second 1250000x50
NetmgrNodeProblem 10 there is none
    netmgr_node_problem{reason=DriftReturns} 0x20
NetmgrConnectionTrackingFills 20 for a moment
    netmgr_tracked_connections 200000x9 230000x3 200000x20
    netmgr_tracked_connections_limit 262144x40
NetmgrQuotaSpent 10 something is left
    netmgr_quota_used_bytes 9900000000x20
    netmgr_quota_bytes 10000000000x20
NetmgrQuotaForecast 90 it is spent already
    netmgr_quota_forecast_bytes 11000000000x100
    netmgr_quota_used_bytes 10000000000x100
    netmgr_quota_bytes 10000000000x100
NetmgrSpokesApart 30 once
    netmgr_isolation_dropped_packets_total 0x5 60x40
NetmgrNatPortsScarce 30 room
    netmgr_nat_ports_used_ratio 0.7x40
NetmgrControllerNotLed 60 no cluster has one
    up 1x60
NetmgrControllerNotLed 60 the one that leads answers, and the other never did
    up{job=netmgr-controller} 1x60
    up{job=netmgr-controller,instance=node-2} 0x60
    netmgr_controller_leader 1x60
NetmgrControllerNotLed 25 the other took over
    netmgr_controller_leader 1x9 0x3 0x40
    netmgr_controller_leader{instance=node-2} 0x13 1x30
NetmgrNodesWithoutRanges 40 a former leader's last value
    netmgr_controller_leader 0x40
    netmgr_controller_nodes{state=refused} 2x40
    netmgr_controller_leader{instance=node-2} 1x40
NetmgrNodesWithoutRanges 20 written within minutes
    netmgr_controller_leader 1x40
    netmgr_controller_nodes{state=waiting} 0x9 5x5 0x30
NetmgrNodePoolFull 40 one is free
    netmgr_controller_leader 1x40
    netmgr_controller_allocations{state=free} 1x40
NetmgrPlanNotInForce 20 it does not lead
    netmgr_controller_leader 0x40
    netmgr_controller_plan_refused 1x40
NetmgrPreflightFailed 60 each passes within half an hour
    netmgr_controller_leader 1x60
    netmgr_controller_preflight_failed 1x20 0x5 1x20 0x30
NetmgrNodesShareRanges 40 it does not lead
    netmgr_controller_leader 0x40
    netmgr_controller_nodes_sharing_ranges 1x40
NetmgrUnhealthyNodesUntainted 40 all of them are tainted
    netmgr_controller_leader 1x40
    netmgr_controller_unhealthy_nodes{state=tainted} 5x40
    netmgr_controller_unhealthy_nodes{state=withheld} 0x40
""")
]
