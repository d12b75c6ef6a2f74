"""Alerts: what needs attention, and what to do about it.

Thresholds are for nodes of 10 Gbit/s and more; set them for yours in the copy you run.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from exporter import catalog, controller_catalog, limits_catalog
from exporter.monitoring.promql import JOB, UP, of_leader, read, total
from exporter.monitoring.recording import (
    BUSIEST_PODS,
    DURATIONS,
    FORWARDED,
    ISOLATION,
    NAMESPACE_BYTES,
    PODS_OF_THE_HOUR,
    UNATTRIBUTED,
)

SPIKE_BYTES_PER_SECOND = 50_000_000
SPIKE_TIMES_BASELINE = 5
SUSTAINED_BYTES_PER_SECOND = 100_000_000
SLOW_ADD_SECONDS = 1
FAILED_REQUESTS = 5
REPEATED_REPAIRS = 3
UNATTRIBUTED_SHARE = 0.05
LATE_SECONDS = 10
"""Of an hour, in which pods of another plugin were uncounted; a busy node has some hundredths."""
PORTS_SHARE = 0.8


class Severity(StrEnum):
    """How urgent an alert is."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule; `lasting` is how long the condition must hold, as Prometheus writes it."""

    name: str
    expression: str
    lasting: str
    severity: Severity
    summary: str
    description: str


_BUSY = read(BUSIEST_PODS, traffic="=~internet-.+")
# A pool without addresses (a family without ranges) has none free either, and must not alert.
_POOL = f"sum without (state) ({read(catalog.ADDRESSES)})"
_FAILED = f"increase({read(catalog.REQUESTS, '10m', code='!=0', command='!=STATUS')})"
_LATE = (
    f"(increase({read(catalog.GAPS, '1h', reason='late')}) > 0\n"
    f"and increase({read(catalog.GAP_SECONDS, '1h', reason='late')}) > {LATE_SECONDS})"
)
# The counter begins at zero with each agent: `increase` misses what an agent found when it started.
_REBUILT = (
    f"increase({read(catalog.REBUILDS, '1h')}) > 0\n"
    f"or ({read(catalog.REBUILDS)} > 0 and time() - {read(catalog.STARTED)} < 3600)"
)
_REPAIRED = f"increase({read(catalog.DRIFT, '1h')})"

TRAFFIC = (
    Alert(
        "NetmgrPodInternetSpike",
        f"{_BUSY} > {SPIKE_BYTES_PER_SECOND}\nand {_BUSY} >= {SPIKE_TIMES_BASELINE} * "
        f"{read(PODS_OF_THE_HOUR)}",
        "2m",
        Severity.WARNING,
        "{{ $labels.namespace }}/{{ $labels.pod }} moves {{ $value | humanize }}B/s of "
        "{{ $labels.traffic }}",
        f"That is at least {SPIKE_TIMES_BASELINE} times its rate of the past hour. Is it meant to? "
        "Pods younger than an hour have no such rate, and are not compared.",
    ),
    Alert(
        "NetmgrSustainedEgress",
        f"avg_over_time({read(NAMESPACE_BYTES, '1h', traffic='internet-out')}) > "
        f"{SUSTAINED_BYTES_PER_SECOND}",
        "1h",
        Severity.WARNING,
        "Namespace {{ $labels.namespace }} has sent {{ $value | humanize }}B/s to the internet for "
        "hours",
        "Egress is billed by the byte. The dashboard of top talkers names the pods.",
    ),
    Alert(
        "NetmgrAccountingGap",
        # No waiting: a gap is one event, and gone from the window after an hour.
        f"increase({read(catalog.GAPS, '1h', reason='!=late')}) > 0\nor {_LATE}",
        "0s",
        Severity.WARNING,
        "Bytes may be missing from the totals of {{ $labels.instance }} ({{ $labels.reason }})",
        "Counters were removed or reset by another program, the node rebooted, its ledger could "
        "not be written, was lost or is an older copy, or a pod of another plugin was noticed "
        "late: the label `reason` says which.",
    ),
    Alert(
        "NetmgrUnattributedTraffic",
        # The last comparison leaves out idle clusters, where any byte would be a large share.
        f"{read(UNATTRIBUTED)} > {UNATTRIBUTED_SHARE} * {read(FORWARDED)} > 0",
        "30m",
        Severity.WARNING,
        "{{ $value | humanize }}B/s of {{ $labels.traffic }}"
        "{{ with $labels.cluster }} in {{ . }}{{ end }} are no pod's",
        "Nodes forward it, but no pod's address was counted for it: containers outside Kubernetes, "
        "pods that were noticed late, or NodePorts without `accounting.cluster_cidrs`. "
        "`netmgr node audit` on a node explains the difference.",
    ),
    Alert(
        "NetmgrTotalsNotDurable",
        f"{read(catalog.DURABLE)} == 0",
        "10m",
        Severity.WARNING,
        "The totals of {{ $labels.instance }} are in memory alone",
        "The agent cannot write its ledger; counting goes on, but its end would lose what was "
        "counted since. Make room on the disk of state_dir.",
    ),
    Alert(
        "NetmgrSeriesDropped",
        f"{total(read(catalog.DROPPED), 'cluster', 'instance')} > 0",
        "15m",
        Severity.WARNING,
        "{{ $value }} series of pods are left out of the scrapes of {{ $labels.instance }}",
        "The node has more pods than the exporter's --max-series lets it show. Totals of "
        "namespaces and of the node are whole; raise the bound to see every pod.",
    ),
    Alert(
        "NetmgrDriftRepairedRepeatedly",
        f"{total(_REPAIRED, 'cluster', 'instance', 'reason')} >= {REPEATED_REPAIRS}",
        "0s",
        Severity.WARNING,
        "Something on {{ $labels.instance }} keeps changing netmgr's {{ $labels.reason }}",
        "They are repaired each time, but what was not counted in between is lost. Find the other "
        "program; with nftables, `nft monitor` names it when it strikes again.",
    ),
)
"""About what is counted."""

NODES = (
    Alert(
        "NetmgrRangesUnknown",
        f"{read(catalog.RANGES_KNOWN)} == 0",
        "15m",
        Severity.WARNING,
        "{{ $labels.instance }} cannot follow its ranges ({{ $labels.source }})",
        "The pool stays as it was, or is used in part: the source does not answer, or contradicts "
        "the plan or the node. `netmgr node status` says which.",
    ),
    Alert(
        "NetmgrRouteFault",
        f"{read(catalog.ROUTE_FAULTS)} > 0",
        "15m",
        Severity.WARNING,
        "{{ $labels.instance }} has {{ $value }} routes that are missing or lead elsewhere",
        "Pods of some nodes do not reach each other, or traffic to unused addresses is counted. "
        "`netmgr node status` there says which routes, and why.",
    ),
    Alert(
        "NetmgrForeignFlowtable",
        f"{read(catalog.FOREIGN_FLOWTABLES)} > 0",
        "15m",
        Severity.WARNING,
        "{{ $labels.instance }} has flowtables of other programs ({{ $value }})",
        "Established connections in them meet no rule, so their internet traffic is missing in all "
        "figures. `netmgr node status` there names them.",
    ),
    Alert(
        "NetmgrPodAtItsLimit",
        f"rate({read(limits_catalog.LIMIT_BYTES, '5m')})"
        f" > 0.95 * {read(limits_catalog.LIMIT_RATE)}",
        "30m",
        Severity.INFO,
        "{{ $labels.namespace }}/{{ $labels.pod }} has been at its limit of {{ $labels.traffic }} "
        "for half an hour",
        "Its traffic waits or is dropped, as `limits` in the node document say (without a pod: the "
        "limit of the namespace's pods on this node together).",
    ),
    Alert(
        "NetmgrPodAtItsConnections",
        f"increase({read(limits_catalog.LIMIT_CONNECTIONS, '5m')}) > 0",
        "15m",
        Severity.WARNING,
        "{{ $labels.namespace }}/{{ $labels.pod }} keeps beginning more connections than it may",
        "What is beyond `connections` in the node document's limits is dropped. (Without a pod: of "
        "the namespace's pods on this node together.)",
    ),
    Alert(
        "NetmgrConnectionTrackingFills",
        f"{read(limits_catalog.TRACKED)} > 0.8 * {read(limits_catalog.TRACKED_MOST)}",
        "5m",
        Severity.CRITICAL,
        "The connection table of {{ $labels.instance }} is more than 80 % full",
        "When it is full, nobody on this node can connect. `netmgr_pod_connections` names the pods "
        "with the most; bound them by `connections` in the node document's limits, or raise "
        "net.netfilter.nf_conntrack_max.",
    ),
    Alert(
        "NetmgrQuotaSpent",
        # Less is left than the longest packet has.
        f"{read(limits_catalog.QUOTA_USED)} + 65536 > {read(limits_catalog.QUOTA)}",
        "1m",
        Severity.WARNING,
        "{{ $labels.namespace }}/{{ $labels.pod }} has spent its {{ $labels.traffic }} of the "
        "{{ $labels.period }}",
        "Until that ends (UTC), its packets are dropped, or pass at the rate of `when-spent` in "
        "the node document (without a pod: those of the namespace's pods on this node).",
    ),
    Alert(
        "NetmgrQuotaForecast",
        f"{read(limits_catalog.QUOTA_FORECAST)} > {read(limits_catalog.QUOTA)} "
        f"unless {read(limits_catalog.QUOTA_USED)} + 65536 > {read(limits_catalog.QUOTA)}",
        "1h",
        Severity.INFO,
        "{{ $labels.namespace }}/{{ $labels.pod }} will spend its {{ $labels.traffic }} before the "
        "{{ $labels.period }} ends",
        "If it goes on as on average since the day or month began. `netmgr usage` shows when it "
        "used how much.",
    ),
    Alert(
        "NetmgrExporterDown",
        f"{read(UP, job=JOB)} == 0",
        "5m",
        Severity.WARNING,
        "The netmgr exporter of {{ $labels.instance }} does not answer",
        "Traffic is counted all the same, but pods that end now may be gone before they are "
        "scraped.",
    ),
    Alert(
        "NetmgrAgentDown",
        f"{read(catalog.UP)} == 0",
        "5m",
        Severity.CRITICAL,
        "The netmgr agent of {{ $labels.instance }} does not answer its exporter",
        "Running pods keep their network and their counters, and connections through routers and "
        "NAT hosts go on; no pod can start, and no Service changes, until the agent is back.",
    ),
    Alert(
        "NetmgrNodeProblem",
        f"{read(catalog.PROBLEMS)} == 1",
        "1m",
        Severity.WARNING,
        "The network of {{ $labels.instance }} has a problem that lasts: {{ $labels.reason }}",
        "`netmgr node status` there says what it is and what to do.",
    ),
    Alert(
        "NetmgrAgentNotReady",
        f"{read(catalog.READY)} == 0",
        "5m",
        Severity.CRITICAL,
        "The netmgr agent of {{ $labels.instance }} is not ready",
        "On a node no pod can start; on a hub router or NAT host packets may not get where they "
        "should. `netmgr node status` there gives the reason.",
    ),
    Alert(
        "NetmgrPoolExhausted",
        f"{read(catalog.ADDRESSES, state='free')} == 0 and ignoring (state) {_POOL} > 0",
        "5m",
        Severity.CRITICAL,
        "{{ $labels.instance }} has no free {{ $labels.family }} address",
        "The next pod cannot start there until one comes back from its cooldown; give the node "
        "more ranges.",
    ),
    Alert(
        "NetmgrCniErrors",
        f"{total(_FAILED, 'cluster', 'instance', 'command', 'code')} >= {FAILED_REQUESTS}",
        "5m",
        Severity.WARNING,
        "CNI {{ $labels.command }} keeps failing on {{ $labels.instance }} with code {{ "
        "$labels.code }}",
        "The runtime's log has the message of every failed request, the agent's log what led to "
        "it.",
    ),
    Alert(
        "NetmgrCniSlow",
        f"histogram_quantile(0.99, {read(DURATIONS, command='ADD')}) > {SLOW_ADD_SECONDS}",
        "10m",
        Severity.WARNING,
        "One pod in a hundred waits {{ $value | humanizeDuration }} for its network",
        "Usually an ADD takes milliseconds. Look for nodes short of processor time, or an xtables "
        "lock that is held.",
    ),
    Alert(
        "NetmgrStateRebuilt",
        _REBUILT,
        "0s",
        Severity.WARNING,
        "The netmgr agent of {{ $labels.instance }} found its state damaged and rebuilt it",
        "Pods kept their addresses. The damaged file lies beside the new one; look at the disk.",
    ),
)
"""About what does the counting."""

SITES = (
    Alert(
        "NetmgrSpokesApart",
        f"{read(ISOLATION)} > 0",
        "15m",
        Severity.WARNING,
        "Something in {{ $labels.from }} keeps sending to {{ $labels.to }}",
        "Spokes do not reach each other; these packets are dropped and counted. A wrong address in "
        "somebody's configuration is likelier than an attack.",
    ),
    Alert(
        "NetmgrNatPortsScarce",
        f"{read(catalog.NAT_SHARE)} > {PORTS_SHARE}",
        "5m",
        Severity.CRITICAL,
        "{{ $labels.instance }} has {{ $value | humanizePercentage }} of its {{ $labels.protocol "
        "}} ports toward one endpoint in use",
        "Beyond 100 % new connections to that endpoint fail; `netmgr nat status` names it. Give "
        "the NAT host more addresses, or spread its clients over more endpoints.",
    ),
    Alert(
        "NetmgrNatDocumentsRefused",
        f"{read(catalog.NAT_REFUSED)} > 0",
        "10m",
        Severity.WARNING,
        "{{ $labels.instance }} cannot use {{ $value }} Services or EndpointSlices",
        "Those Services stay as they were, or closed; `netmgr nat status` says what is wrong with "
        "which document.",
    ),
)
"""About what passes between sites."""

_UNSERVED = of_leader(controller_catalog.NODES, state="=~refused|waiting")
_FREE = of_leader(controller_catalog.ALLOCATIONS, state="free")
_NOT_IN_FORCE = of_leader(controller_catalog.PLAN_REFUSED)
_PREFLIGHT_FAILED = of_leader(controller_catalog.PREFLIGHT_FAILED)
_WITHHELD = of_leader(controller_catalog.UNHEALTHY, state="withheld")
_IN_CLUSTER = "{{ with $labels.cluster }} in {{ . }}{{ end }}"

CONTROLLER = (
    Alert(
        "NetmgrControllerNotLed",
        f"{total(read(controller_catalog.LEADER), 'cluster')} != 1",
        "5m",
        Severity.CRITICAL,
        f"{{{{ $value }}}} range controllers lead{_IN_CLUSTER}",
        "Nodes keep their ranges, but new ones get none until one controller leads again. Look at "
        "the controllers' logs and at the Lease netmgr-controller: without an API server nobody "
        "leads.",
    ),
    Alert(
        "NetmgrNodesWithoutRanges",
        f"{total(_UNSERVED, 'cluster', 'state')} > 0",
        "15m",
        Severity.WARNING,
        f"{{{{ $value }}}} Nodes{_IN_CLUSTER} have no ranges of the plan ({{{{ $labels.state }}}})",
        "`kubectl describe node` shows why a Node is refused, and what to do. For Nodes that wait, "
        "the API server does not take the write: the controller's log says why.",
    ),
    Alert(
        "NetmgrNodePoolFull",
        f"{total(_FREE, 'cluster', 'pool')} == 0",
        "15m",
        Severity.WARNING,
        f"Node pool {{{{ $labels.pool }}}}{_IN_CLUSTER} has no free allocation",
        "The next Node of that pool will be refused. Raise the pool's nodes or surge in the plan, "
        "and lock it.",
    ),
    Alert(
        "NetmgrPlanNotInForce",
        f"{total(_NOT_IN_FORCE, 'cluster')} > 0",
        "5m",
        Severity.WARNING,
        f"The range controller{_IN_CLUSTER} refuses the plan on disk",
        "It would move Nodes, or cannot be read; the plan before it stays in force. The "
        "controller's log names the Nodes: restore plan.lock.yaml from version control, or delete "
        "them first.",
    ),
    Alert(
        "NetmgrPreflightFailed",
        f"{total(_PREFLIGHT_FAILED, 'cluster')} > 0",
        "30m",
        Severity.WARNING,
        f"The preflight of {{{{ $value }}}} Nodes{_IN_CLUSTER} fails",
        "No pod comes to them. `kubectl describe node` shows what was found and what mends it, in "
        "the condition NetmgrHealthy.",
    ),
    Alert(
        "NetmgrUnhealthyNodesUntainted",
        f"{total(_WITHHELD, 'cluster')} > 0",
        "15m",
        Severity.WARNING,
        f"{{{{ $value }}}} unhealthy Nodes{_IN_CLUSTER} still get pods",
        "More Nodes of a node pool are unhealthy than --taint-unhealthy allows to be tainted at "
        "once; of a small pool it may allow none. Many at once have a cause in common, mostly: "
        "`kubectl describe node` shows the condition NetmgrHealthy.",
    ),
)
"""About who gives Nodes their ranges, and keeps pods from those with a bad network."""

ALERTS = (*TRAFFIC, *NODES, *SITES, *CONTROLLER)
"""Every alert."""
