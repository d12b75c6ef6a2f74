"""The node document (`node.yaml`): what one agent is told about its node.

Validation is complete before anything is done: an agent that starts has a document in
which every range, address and prefix agrees with every other. What only the machine can
tell (whether a group or an interface exists) is looked up by `netmgr/agent/preflight.py`.

No range is too small. Every address of a range is usable, and one that a pod could not have
(special-use, the node's own) is refused and never silently taken out; so each family that
`ranges` names has an address to give, if only one. A pod gets one of each such family: the
smallest family bounds how many pods there can be, and one that is not named is not given.
Only an empty list can serve nobody, and is refused unless `cni: off`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator

from netmgr.agreement import Machine, disagreements, overlapping, sites_apart
from netmgr.classes import TrafficClass, resolved
from netmgr.fields import AbsolutePath, AddressText, Disagreement, Document, PrefixText
from netmgr.model import LINK_PREFIX
from netmgr.prefixes import Address, Family, Prefix, merge
from netmgr.sites import Nat, Role, Site, StaticRoute

SPECIAL_USE = tuple(
    map(
        Prefix.parse,
        (
            "0.0.0.0/8",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "168.63.129.16/32",
            "224.0.0.0/4",
            "255.255.255.255/32",
            "::/127",
            "fe80::/10",
            "ff00::/8",
        ),
    )
)
"""Never internet (RFC 6890; 168.63.129.16 is Azure's platform address), whatever the document says."""

RESERVED_USE = tuple(map(Prefix.parse, ("198.18.0.0/15", "240.0.0.0/4", "100::/64")))
"""Never internet either (RFC 6890: benchmarks, reserved, discard), but pods may have them, as private ones.

Prefixes for documentation (192.0.2.0/24, 198.51.100.0/24, 203.0.113.0/24, 2001:db8::/32) are internet: nobody routes
them, so that they are on no bill, and what tries netmgr out has them for its internet.
"""

PRIVATE_USE = tuple(map(Prefix.parse, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")))
"""What `internal` defaults to: RFC 1918, RFC 6598 and RFC 4193."""

PLATFORM = tuple(map(Prefix.parse, ("169.254.169.254", "fd00:ec2::254", "168.63.129.16")))
"""What `protect` defaults to: clouds' instance metadata, and Azure's platform address."""

POD_GATEWAYS = {Family.V4: Address.parse("169.254.1.1"), Family.V6: Address.parse("fe80::1")}
"""What a pod's default route points at; link-local, so that it can never collide with a range."""


SOCKETS = ("cni.sock", "ledger.sock")
"""Names of the agent's sockets in `run_dir`."""

SOCKET_PATH_BYTES = 107
"""The most a Unix socket's path can have: unix(7)'s 108, of which the closing NUL is one."""

LARGEST_GROUP = (1 << 32) - 2
"""Largest group number; the one above means "leave it" to chown(2)."""


class Backend(StrEnum):
    """Which kernel interface holds the rules."""

    AUTO = "auto"
    NFTABLES = "nftables"
    IPTABLES = "iptables"
    """The variant of iptables that is in use on the machine."""
    IPTABLES_LEGACY = "iptables-legacy"
    IPTABLES_NFT = "iptables-nft"


class RangeSource(StrEnum):
    """What tells which addresses pods may have."""

    FILE = "file"
    AZURE = "azure"


class NodeRules(StrEnum):
    """Form of the article's four node rules."""

    CORRECTED = "corrected"
    EXACT = "exact"


GroupNumber = Annotated[int, Field(strict=True, ge=0, le=LARGEST_GROUP)]
GroupName = Annotated[str, Field(min_length=1, pattern=r"^[^\x00:\n]+$")]


class NodeIdentity(Document):
    """The node itself."""

    name: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9]([A-Za-z0-9.\-]*[A-Za-z0-9])?$")]
    addresses: tuple[AddressText, ...] = ()
    """The node's own addresses; no range may hold one."""
    uplink: Annotated[str, Field(min_length=1, max_length=15)] | None = None
    """Interface the pods' MTU is taken from; default: the one with the default route."""

    @field_validator("uplink")
    @classmethod
    def _uplink_is_told_from_pods_links(cls, uplink: str | None) -> str | None:
        if uplink is not None and uplink.startswith(LINK_PREFIX):
            raise ValueError(
                f"{uplink} begins as pods' links do ({LINK_PREFIX}), by which the rules tell them; rename it"
            )
        return uplink


class Pool(Document):
    """How addresses are handed out again."""

    cooldown_seconds: Annotated[float, Field(ge=0, le=86_400)] = 30
    """A released address rests at least this long."""
    conntrack_wait_seconds: Annotated[float, Field(ge=0, le=86_400)] = 300
    """Beyond the cooldown, an address that conntrack still names rests at most this much longer."""


class Accounting(Document):
    """What is counted and for how long it is shown."""

    node_rules: NodeRules = NodeRules.CORRECTED
    rule_owner: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,62}$")] = "netmgr"
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
    """Further traffic of pods that is counted by itself, beside the internet's; with any, the rest is, too."""
    host_pods: bool = False
    """Whether host-network pods are counted by their cgroup; their traffic is the node's own otherwise."""
    cgroup_dir: AbsolutePath = Path("/sys/fs/cgroup")
    """Where kubelet's cgroups are: a mount of cgroup v2, or a directory of one, below /sys/fs/cgroup."""
    pod_logs_dir: AbsolutePath = Path("/var/log/pods")
    """Kubelet's log directories, which tell the pods' names."""
    history_hours: Annotated[int, Field(ge=0, le=8784)] = 168
    """Hours with traffic of which hourly sums are kept; 0 keeps none."""
    history_rows: Annotated[int, Field(ge=1000, le=10_000_000)] = 100_000
    """Hourly sums there is room for, some 100 bytes each; beyond, the oldest hours' pods join their namespaces."""

    @field_validator("exact_prefix")
    @classmethod
    def _exact_prefix_excepts_something_of_v4(cls, prefix: Prefix) -> Prefix:
        if prefix.family is not Family.V4:
            raise ValueError(f"{prefix} is IPv6; the article's rules are IPv4's, so give the v4 prefix they except")
        if prefix.length == 0:
            raise ValueError(f"{prefix} excepts everything, so that nothing would ever be counted")
        return prefix


class NodeDocument(Document):
    """The whole of `node.yaml`."""

    api_version: Annotated[Literal["netmgr.io/v1alpha1"], Field(alias="apiVersion")]
    kind: Literal["Node"]
    node: NodeIdentity
    role: Role = Role.NODE
    """What this machine does: runs pods, forwards between sites, or opens a spoke's Services."""
    site: str | None = None
    """Which of `sites` this machine belongs to."""
    sites: tuple[Site, ...] = ()
    """The hub and every spoke; spokes do not reach each other. None: nothing is dropped."""
    nat: Nat | None = None
    """What a NAT host translates; with `role: nat-host` alone."""
    routes: tuple[StaticRoute, ...] = ()
    """Routes the agent installs and keeps."""
    network: Annotated[str, Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$")] = "netmgr"
    """Name of the CNI network this agent serves."""
    cni: bool = True
    """Whether pods get their network from this agent; `off` only observes pods that another plugin wired."""
    cni_results_dir: AbsolutePath = Path("/var/lib/cni/results")
    """Where the runtime's libcni keeps the results of ADD; looked at with `cni: off` alone."""
    range_source: RangeSource = RangeSource.FILE
    """Where `ranges` come from: this document, or `azure`, the instance metadata of the machine."""
    range_refresh_seconds: Annotated[float, Field(ge=1, le=3600)] = 30
    """How often `azure` is asked; the service allows five requests a second."""
    ranges: Annotated[tuple[PrefixText, ...], Field(validate_default=True)] = ()
    """Blocks and single addresses pods may have; every address of each is usable. Needed unless `cni: off`."""
    internal: Annotated[tuple[PrefixText, ...], Field(validate_default=True)] = PRIVATE_USE
    """Prefixes that are not internet, beside the special-use ones, which never are."""
    masquerade: bool = True
    """Whether pods reach the internet as the node."""
    protect: tuple[PrefixText, ...] = PLATFORM
    """What pods of this agent may not reach, but for DNS; never internet."""
    protect_except: tuple[Annotated[str, Field(min_length=1, max_length=63)], ...] = ()
    """Namespaces whose pods may reach all of `protect`."""
    mtu: Annotated[int, Field(ge=1280, le=65_535)] | None = None
    """MTU of the pods' interfaces, in bytes; default: the uplink's."""
    backend: Backend = Backend.AUTO
    pool: Pool = Pool()
    accounting: Accounting = Accounting()
    reconcile_seconds: Annotated[float, Field(gt=0, le=3600)] = 10
    state_dir: AbsolutePath = Path("/var/lib/netmgr")
    run_dir: AbsolutePath = Path("/run/netmgr")
    reader_group: GroupName | GroupNumber | None = None
    """Group (name or number) that may read the ledger socket; default: root alone."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, populate_by_name=True)

    @field_validator("ranges")
    @classmethod
    def _ranges_agree(cls, ranges: tuple[Prefix, ...], info: ValidationInfo) -> tuple[Prefix, ...]:
        elsewhere = info.data.get("range_source") is RangeSource.AZURE
        if ranges and elsewhere:
            raise ValueError("belongs to range_source: file; with azure the machine's metadata tells the ranges")
        if not ranges and not elsewhere and info.data.get("cni", True) and info.data.get("role") is Role.NODE:
            raise ValueError("is required and missing: pods get their addresses from it (only cni: off needs none)")
        for (block, at, _), (other, beside, _) in overlapping((block, (i,), "") for i, block in enumerate(ranges)):
            raise Disagreement(f"{block} overlaps {other}", at, beside, "give every address once")
        node: NodeIdentity | None = info.data.get("node")
        for place, block in enumerate(ranges):
            for special in SPECIAL_USE:
                if block.overlaps(special):
                    message = f"{block} lies in the special-use prefix {special}"
                    raise Disagreement(message, (place,), remedy="pods cannot have such addresses")
            for address in node.addresses if node else ():
                if block.holds(address):
                    message = f"{block} holds the node's own address {address}"
                    raise Disagreement(message, (place,), remedy="take it out of the range")
        return ranges

    @field_validator("sites")
    @classmethod
    def _sites_are_apart(cls, sites: tuple[Site, ...]) -> tuple[Site, ...]:
        for disagreement in sites_apart(sites):
            raise disagreement
        return sites

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> NodeDocument:
        machine = Machine(self.role, self.node.addresses, self.site, self.sites, self.nat, self.routes, self.ranges)
        for disagreement in disagreements(machine):
            raise disagreement
        return self

    @field_validator("protect")
    @classmethod
    def _protects_nobodys_everything(cls, protect: tuple[Prefix, ...], info: ValidationInfo) -> tuple[Prefix, ...]:
        for place, block in enumerate(protect):
            if not block.length:
                raise Disagreement(f"{block} is everything of IPv{block.family.value}", (place,), remedy="name less")
            for beside, own in enumerate(info.data.get("ranges", ())):
                if block.overlaps(own):
                    message = f"{block} overlaps ranges[{beside}], {own}, so that pods would not reach each other"
                    raise Disagreement(message, (place,), remedy="protect what is no pod's")
        return protect

    @model_validator(mode="after")
    def _classes_are_told_apart(self) -> NodeDocument:
        known = merge((*self.internal_prefixes, *chain(*self.traffic_classes.values())))
        if any(prefix.length == 0 for prefix in known):
            raise ValueError("accounting.classes and internal leave no internet")
        return self

    @field_validator("internal")
    @classmethod
    def _internal_leaves_an_internet(cls, internal: tuple[Prefix, ...], info: ValidationInfo) -> tuple[Prefix, ...]:
        for block in _internal(internal, info.data.get("ranges", ())):
            if block.length == 0:
                reason = "" if block in internal else " with the special-use prefixes and the ranges"
                raise ValueError(
                    f"makes everything of IPv{block.family.value} internal{reason}, so that nothing would be counted"
                )
        return internal

    @field_validator("run_dir")
    @classmethod
    def _sockets_have_room(cls, run_dir: Path) -> Path:
        needed = max(len(str(run_dir / name).encode("utf-8", "surrogatepass")) for name in SOCKETS)
        if (excess := needed - SOCKET_PATH_BYTES) > 0:
            raise ValueError(f"is too long by {excess} bytes; with a socket's name it can have {SOCKET_PATH_BYTES}")
        return run_dir

    @property
    def wires_pods(self) -> bool:
        """Whether pods get their network from this agent."""
        return self.cni and self.role is Role.NODE

    @property
    def internal_prefixes(self) -> tuple[Prefix, ...]:
        """Everything that is not internet: `internal`, special-use prefixes, the node's own ranges and every site's."""
        sites = [prefix for site in self.sites for prefix in site.every_prefix]
        services = [service.real for service in self.nat.services] if self.nat else []
        protected = self.protect if self.wires_pods else ()
        return _internal(self.internal, (*self.ranges, *sites, *services, *protected))

    @property
    def traffic_classes(self) -> dict[str, tuple[Prefix, ...]]:
        """The prefixes of each class of `accounting.classes`, by its name."""
        return resolved(self.accounting.classes, {site.name: site.every_prefix for site in self.sites})

    @property
    def families(self) -> tuple[Family, ...]:
        """The families pods get an address of, v4 first."""
        return tuple(sorted({block.family for block in self.ranges}))


def _internal(internal: Iterable[Prefix], ranges: Iterable[Prefix]) -> tuple[Prefix, ...]:
    return tuple(merge((*SPECIAL_USE, *RESERVED_USE, *internal, *ranges)))
