"""The answers of the agent's read-only socket, which exporter and CLI read: the only shape of them.

What counts produces these dictionaries directly (`ledger/totals.py`, `rules/engine.py`,
`ipam/pool.py`); there is no second form of a figure.

The document is JSON, one object, `version` first. Totals are bytes (IP headers included,
link layer excluded) and packets. Everything in it is already public on the node's
/metrics, so a reader needs no privilege beyond the socket's file mode.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal, NotRequired, TypedDict

VERSION: Final = 1

LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds of the CNI latency histogram, in seconds, without "+Inf"."""


class BytesAndPackets(TypedDict):
    bytes: int
    packets: int


class TrafficTotals(BytesAndPackets):
    """One monotone total."""

    traffic: str


class PodLabels(TypedDict):
    namespace: str
    pod: str


class PodTotals(TrafficTotals, PodLabels):
    """A pod's total, `live` until the pod's end; `wire` is without bytes of `wire_unknown`."""

    live: bool
    wire: NotRequired[int]
    wire_unknown: NotRequired[int]


class NamespaceTotals(TrafficTotals):
    """Sum over every pod the namespace ever had on this node."""

    namespace: str


class ChainName(TypedDict):
    ip_version: str
    table: str
    chain: str


class RuleReading(ChainName, BytesAndPackets):
    """A raw reading of a rule, the article's or a tagged one, named as PyPI's iptables-exporter."""

    rule: str


class ChainSize(ChainName):
    """How many rules a chain of iptables has, ours among them."""

    rules: int


class PoolState(TypedDict):
    """Addresses of one family by state; `withdrawn` ones are held and of no range any more."""

    family: str
    allocated: int
    cooldown: int
    free: int
    withdrawn: NotRequired[int]


class WithdrawnAddress(PodLabels):
    """An address of no range any more, and the pod that still holds it."""

    address: str


class RangesState(TypedDict):
    """Where ranges come from, why they cannot be read now (or empty), who holds withdrawn ones."""

    source: str
    failing: str
    withdrawn: list[WithdrawnAddress]
    changed: NotRequired[str]
    """How the Node's ranges differ from those that the agent's pod was started with, while a pod
    has an address of these or the Node has none."""


class ResultFiles(TypedDict):
    """Files of the runtime's result cache by state (`netmgr/observer`); none where cni is on."""

    state: str
    count: int


class RequestCount(TypedDict):
    """CNI requests answered, by verb and CNI error code ("0" is success)."""

    command: str
    code: str
    count: int


class RequestLatency(TypedDict):
    """Cumulative histogram of one verb: (upper bound in seconds or "+Inf", count), and the sum."""

    command: str
    buckets: list[tuple[str, int]]
    sum: float


class AttachmentView(PodLabels):
    """One attachment for `netmgr node pods`."""

    uid: str
    container_id: str
    ifname: str
    host_link: str
    addresses: list[str]


class Gaps(TypedDict):
    """How often something happened, by reason."""

    reason: str
    count: int


class DroppedTotals(BytesAndPackets):
    """What this machine dropped on its way from one site to another, since its rules were made."""

    origin: str
    destination: str


class RefusedTotals(BytesAndPackets):
    """What this machine dropped for one reason, since its rules were made."""

    reason: str


class TranslatedRange(BytesAndPackets):
    """One Service range of a NAT host, and what was translated for it since the rules were made."""

    vip_range: str
    service_cidr: str


class Ports(TypedDict):
    """Ports of a NAT host for one family and protocol; `used` is the most toward one `endpoint`."""

    family: str
    protocol: str
    budget: int
    used: int
    endpoint: str


class NatState(TypedDict):
    source: str
    ranges: list[TranslatedRange]
    ports: list[Ports]


class NatAnswer(TypedDict):
    version: Literal[1]
    node: str
    nat: NatState


class FlowtableState(TypedDict):
    """How many `links` skip the rules for established internal connections, or why it is `off`."""

    links: int
    off: str


class LimitState(PodLabels, BytesAndPackets):
    """A limit in force, and what it has done since it is there.

    Of a pod, or of a namespace (`pod` is then empty). `rate` is in bits a second, and bytes include
    Ethernet headers; `delays` is how often packets had to wait, `backlog` how many bytes do now.
    """

    traffic: str
    rate: int
    delays: int
    dropped_packets: int
    backlog: int


class BudgetState(TypedDict):
    """A cluster's budget on this node.

    `limit` is its rate in the cluster, in bits a second; `sent` are bytes that its class let pass.
    `use` is what `netmgr.budgets.messages.BudgetUse` has.
    """

    budget: str
    traffic: str
    limit: int
    sent: int
    is_quota: bool
    use: dict[str, int]


class Throttled(TypedDict):
    """For how many seconds pods of a namespace were held back by a budget, all together."""

    namespace: str
    budget: str
    seconds: float


class BudgetsState(TypedDict):
    """The cluster's budgets on this node; `age` is that of the last answer, in seconds."""

    epoch: int
    enforced: bool
    age: float
    uses: list[BudgetState]
    throttled: list[Throttled]


class ConnectionLimitState(PodLabels):
    """A limit of connections of a pod, or (`pod` is then empty) of a namespace's pods together.

    `dropped` are packets that would have begun a connection too many.
    """

    dropped: int


class Quota(PodLabels):
    """Of a pod, or (`pod` is then empty) of a namespace's pods on this node together.

    `budget` is in bytes, `until` the end of its period in seconds since the epoch.
    """

    traffic: str
    period: str
    budget: int
    until: int


class SpentQuota(Quota):
    """A quota of which nothing is left, for the Event that says so.

    `uid` is that of the pod, and empty for a namespace, or if the pod is gone or its runtime does
    not tell. `slow` is the rate of packets beyond the quota in bits a second; 0 drops them.
    """

    uid: str
    slow: int


class QuotaState(Quota):
    """`used` and `forecast` are bytes: what will be used if it goes on as on average."""

    used: int
    spent: bool
    forecast: int


class PodConnections(PodLabels):
    """How many connections in the node's connection table a pod began."""

    connections: int


class TrackingTable(TypedDict):
    """The node's connection table: entries, how many it takes, and the pods that began most."""

    connections: int
    most: int
    pods: list[PodConnections]


class Fault(StrEnum):
    """Problems that a node's network may have: reasons of its Node's condition, label values."""

    NOT_READY = "AgentNotReady"
    PLUGIN = "PluginNotFound"
    RANGES = "RangesNotFollowed"
    POOL = "AddressesUsedUp"
    WITHDRAWN = "AddressesWithdrawn"
    ROUTES = "RoutesWrong"
    FORWARD = "ForwardDropped"
    FLOWTABLE = "ForeignFlowtable"
    NOT_DURABLE = "TotalsNotDurable"
    CONNECTIONS_FULL = "ConnectionTrackingFull"
    PORTS_FULL = "NatPortsUsedUp"
    LINK_ERRORS = "UplinkErrors"
    LINK_DROPS = "UplinkDrops"
    DRIFT = "DriftReturns"
    GAPS = "CountersLost"
    UNATTRIBUTED = "TrafficUnattributed"
    WIRING = "PodWiringBroken"
    UPLINK_MISSING = "UplinkMissing"
    LINK_TAPPED = "LinkTapped"
    POD_LINK_DELETED = "PodLinkDeleted"
    BUDGETS = "BudgetsUnreadable"


class Problem(TypedDict):
    """What is wrong with a node's network, now or for good: one word, and for people what to do."""

    reason: str
    message: str


class ControllerReport(TypedDict):
    """What the controller asks a node's exporter for, every few seconds."""

    spent: list[SpentQuota]
    problems: list[Problem]


class AccountingGaps(Gaps):
    """Events in which traffic may be missing, and how long counting may have been incomplete.

    `bytes` are those that are known to be missing; most gaps have more. The last one was from
    `since` to `last`, in seconds since the epoch, 0 if that is not known, and of so many counters
    (`concerned`), of which `counters` are the first; 0 if it was of all.
    """

    seconds: float
    bytes: NotRequired[int]
    since: NotRequired[float]
    last: NotRequired[float]
    concerned: NotRequired[int]
    counters: NotRequired[list[str]]


class Audited(TrafficTotals):
    """What was forwarded and counted for no pod, beside all that forward rules counted."""

    forwarded: int


class OriginTotals(TrafficTotals):
    """A part of the node's total; the parts add up to it but for what passes during a reading.

    `origin` is `pods`, `host-pods` (host-network pods, where they are counted), `node` (everything
    else that the node itself receives and sends), `remote-pods` (forwarded for other nodes' pods,
    where that is counted), and what was forwarded for no pod: `unattributed`, or `transit` where no
    pods run.
    """

    origin: str


class RemotePod(TrafficTotals):
    """What was forwarded here for a pod of another node; anew after an hour without a packet."""

    address: str


class AuditRatio(TypedDict):
    """The share of what forward rules or links counted that is pods' (`against`)."""

    against: str
    traffic: str
    ratio: float


class ForwardAudit(TypedDict):
    """Bytes of one direction: forwarded, counted for pods, and surely counted for no pod."""

    traffic: str
    forwarded: int
    attributed: int
    unattributed: int


class LinkAudit(TypedDict):
    """One direction of one link (`out` is from its pods): what it carried, and what was counted.

    `carried` is `headers` (Ethernet's) and `counted` and `rest`: internal traffic, ARP, drops. Of
    uplinks, as much of it as `segments` (0: unknown) may be further segments' headers, if counted.
    """

    pods: list[str]
    link: str
    direction: str
    carried: int
    packets: int
    headers: int
    counted: dict[str, int]
    counted_packets: int
    rest: int
    segments: NotRequired[int]


class AuditView(TypedDict):
    version: Literal[1]
    node: str
    forward: list[ForwardAudit]
    links: list[LinkAudit]
    uplinks: NotRequired[list[LinkAudit]]
    ratios: list[AuditRatio]
    gaps: list[AccountingGaps]


class UsageRow(TrafficTotals):
    """A sum of hourly roll-ups; columns that name no group are empty, `hour` is 0.

    `wire` has every segment's headers, of as many bytes as `measured` has.
    `missing` is how many bytes it may lack at most; None where that is not known. Of a cluster, it
    is one `node`'s, beside `unread_nodes` that existed in its time and whose rows nobody has.
    """

    hour: int
    namespace: str
    pod: str
    wire: NotRequired[int]
    measured: NotRequired[int]
    missing: NotRequired[int | None]
    node: NotRequired[str]
    unread_nodes: NotRequired[int]


class UnreadNode(TypedDict):
    """A Node whose usage is not in an answer, and when it existed: seconds since the epoch."""

    node: str
    reason: str
    since: float
    until: float


class UsageView(TypedDict):
    """The answer to `usage`: whole hours, seconds since the epoch, rows with most bytes first.

    Of a cluster, `nodes` is how many answered.
    """

    version: Literal[1]
    since: int
    until: int
    by: list[str]
    rows: list[UsageRow]
    left_out: int
    nodes: NotRequired[int]
    unread: NotRequired[list[UnreadNode]]


class Snapshot(TypedDict):
    version: Literal[1]
    node: str
    netmgr_version: str
    backend: str
    ready: bool
    reason: str
    taken_at: float
    started_at: float
    namespaces: list[NamespaceTotals]
    node_totals: list[TrafficTotals]
    rules: list[RuleReading]
    chain_sizes: NotRequired[list[ChainSize]]
    pool: list[PoolState]
    ranges: NotRequired[RangesState]
    wiring_faults: NotRequired[list[str]]
    """What cannot be repaired of pods' links and routes."""
    max_pods: NotRequired[int]
    """How many pods the node's kubelet takes, those with the host's network included."""
    result_files: list[ResultFiles]
    longest_delay: float
    cni_requests: list[RequestCount]
    cni_latency: list[RequestLatency]
    gaps: list[AccountingGaps]
    unattributed: list[Audited]
    origins: list[OriginTotals]
    remote_pods: NotRequired[list[RemotePod]]
    audit: list[AuditRatio]
    drift_repaired: list[Gaps]
    state_rebuilds: int
    durable: NotRequired[bool]
    role: NotRequired[str]
    isolation: NotRequired[list[DroppedTotals]]
    drops: NotRequired[list[RefusedTotals]]
    protected: NotRequired[list[NamespaceTotals]]
    nat: NotRequired[NatState]
    flowtable: NotRequired[FlowtableState]
    limits: NotRequired[list[LimitState]]
    quotas: NotRequired[list[QuotaState]]
    budgets: NotRequired[BudgetsState]
    tracking: NotRequired[TrackingTable]
    problems: NotRequired[list[Problem]]
    connection_limits: NotRequired[list[ConnectionLimitState]]
    pods: list[PodTotals]
    attachments: NotRequired[list[AttachmentView]]
