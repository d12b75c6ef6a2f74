"""What a node counts, and for how long it is shown: `accounting` of a node document."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from netmgr.documents.classes import TrafficClass
from netmgr.documents.diagnostics import Diagnostic, error
from netmgr.documents.fields import AbsolutePath, Document, PrefixText
from netmgr.documents.schema import Field, field_validator
from netmgr.prefixes import Family, Prefix


class NodeRules(StrEnum):
    """Form of the article's four node rules."""

    CORRECTED = "corrected"
    EXACT = "exact"


class CountingAt(StrEnum):
    """Where the kernel counts what is forwarded."""

    RULES = "rules"
    LINKS = "links"


class Charge(StrEnum):
    """Which bytes quotas and prices are of."""

    BYTES = "bytes"
    WIRE = "wire"


class Accounting(Document):
    """What is counted and for how long it is shown."""

    at: CountingAt = CountingAt.RULES
    """Where forwarded packets are counted: by rules, or by programs at links (Linux 5.13)."""
    link_layer_bytes: Annotated[int, Field(ge=0, le=64)] = 0
    """Bytes that wire bytes have for each packet beside IP's, as a bill counts its link layer."""
    charge: Charge = Charge.BYTES
    """What this document's quotas are of: `bytes` of IP packets, or `wire` bytes."""
    node_rules: NodeRules = NodeRules.CORRECTED
    rule_owner: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")] = "netmgr"
    """`<owner>` in the rules' comment `iptables-exporter <owner> traffic=…`."""
    exact_prefix: PrefixText = Prefix.parse("10.0.0.0/8")
    """The one v4 prefix that `node_rules: exact` excepts, as the article's text does."""
    reading_seconds: Annotated[float, Field(gt=0, le=300)] = 5
    """Interval of readings: the most that is lost if another program flushes the counters."""
    min_reading_seconds: Annotated[float, Field(ge=0, le=300)] = 0.5
    """However often it is asked, the agent reads the kernel no more often than this."""
    linger_seconds: Annotated[float, Field(ge=0, le=86_400)] = 900
    """How long a pod's series outlives the pod."""
    classes: tuple[TrafficClass, ...] = ()
    """Further traffic of pods to count by itself; with any, the remaining traffic is, too."""
    cluster_cidrs: tuple[PrefixText, ...] = ()
    """Where all nodes' pods have their addresses. What enters here for another node's pod, by a
    NodePort or a load balancer, is then counted as such and is not unattributed."""
    host_pods: bool = False
    """Whether host-network pods are counted by their cgroup, and not as the node itself."""
    cgroup_dir: AbsolutePath = Path("/sys/fs/cgroup")
    """Where kubelet's cgroups are: a mount of cgroup v2, or a directory below /sys/fs/cgroup."""
    pod_logs_dir: AbsolutePath = Path("/var/log/pods")
    """Kubelet's log directories, whose names have the pods' names."""
    # 8784 hours are a leap year.
    history_hours: Annotated[int, Field(ge=0, le=8784)] = 168
    """Hours with traffic of which hourly sums are kept; 0 keeps none."""
    history_rows: Annotated[int, Field(ge=1000, le=10_000_000)] = 100_000
    """Most hourly sums kept, some 100 bytes each; beyond, the oldest pods are folded."""

    @field_validator("exact_prefix")
    @classmethod
    def _exact_prefix_excepts_something_of_v4(cls, prefix: Prefix) -> Prefix:
        if prefix.family is not Family.V4:
            raise ValueError(
                f"{prefix} is IPv6; the article's rules are IPv4's, "
                "so give the v4 prefix they except"
            )
        if prefix.length == 0:
            raise ValueError(f"{prefix} excepts everything, so that nothing would ever be counted")
        return prefix


def of_counting(accounting: Accounting, backend: str, *, wires_pods: bool) -> Iterator[Diagnostic]:
    """What does not go together with counting at links, or without."""
    key = ("accounting", "at")
    if accounting.at is not CountingAt.LINKS:
        for name, is_wanted in (
            ("link_layer_bytes", accounting.link_layer_bytes > 0),
            ("charge", accounting.charge is Charge.WIRE),
        ):
            if is_wanted:
                remedy = f"say at: links, or remove {name}"
                yield error("rules know no wire bytes", ("accounting", name), key, remedy)
        return
    if backend not in ("auto", "nftables"):
        message = f"{backend} has no part in counting at links, beside which nftables guards pods"
        yield error(message, key, ("backend",), "say backend: nftables, or at: rules")
    if accounting.node_rules is NodeRules.EXACT:
        message = "the article's own rules are where links do not count"
        remedy = "say node_rules: corrected, or at: rules"
        yield error(message, key, ("accounting", "node_rules"), remedy)
    if not wires_pods:
        message = "links count for pods that netmgr wires, and there are none"
        yield error(message, key, remedy="say at: rules")
