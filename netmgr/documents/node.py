"""The node document (`node.yaml`): the configuration of one agent, and whether it fits together.

Validation is complete before anything is done: an agent that starts has a document in which
every range, address and prefix is consistent with every other. What depends on the machine
(whether a group or an interface exists) is checked by `netmgr/agent/health/machine_check.py`.

No range is too small: every address of one is usable, and one that a pod could not have (special
use, the node's own) is refused and never silently left out. A pod gets an address of each family in
`ranges`, so the smallest bounds how many pods there can be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

from netmgr.documents.accounting import Accounting, of_counting
from netmgr.documents.backend import Backend, BackendName
from netmgr.documents.classes import resolved
from netmgr.documents.diagnostics import Diagnostic, Invalid, KeyPath, error, invalid
from netmgr.documents.fields import AbsolutePath, AddressText, Document, Group, PrefixText
from netmgr.documents.limits import Limit, QuotaPeriod, of_no_class, without_history
from netmgr.documents.preflight import Preflight
from netmgr.documents.schema import Field, ValidationInfo, field_validator, model_validator
from netmgr.documents.sites import (
    HUB,
    KeyedPrefix,
    Nat,
    Role,
    ServiceRange,
    Site,
    StaticRoute,
    conflicts,
    overlapping,
    prefixes_of,
)
from netmgr.documents.special_use import PLATFORM, PRIVATE_USE, RESERVED_USE, SPECIAL_USE
from netmgr.logs import LogLevel
from netmgr.model import LINK_PREFIX
from netmgr.prefixes import Address, Family, Prefix, merge

POD_GATEWAYS = {Family.V4: Address.parse("169.254.1.1"), Family.V6: Address.parse("fe80::1")}
"""What a pod's default route points at; link-local, so that it cannot collide with a range."""


SOCKETS = ("cni.sock", "ledger.sock")
"""Names of the agent's sockets in `run_dir`."""

SOCKET_PATH_BYTES = 107
"""The most a Unix socket's path can have: unix(7)'s 108, of which the closing NUL is one."""


class RangeSource(StrEnum):
    """Where the addresses that pods may have come from."""

    FILE = "file"
    AZURE = "azure"
    AWS = "aws"
    GCP = "gcp"


class NodeIdentity(Document):
    """The node itself."""

    name: Annotated[
        str,
        Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$"),
    ]
    """The node's name, on Kubernetes that of its Node."""
    addresses: tuple[AddressText, ...] = ()
    """The node's own addresses; no range may hold one."""
    max_pods: Annotated[int, Field(ge=0)] | None = None
    """How many pods its kubelet takes, those with the host's network included."""
    # IFNAMSIZ is 16, the closing NUL included.
    uplink: Annotated[str, Field(min_length=1, max_length=15)] | None = None
    """Interface the pods' MTU is taken from; default: the one with the default route."""

    @field_validator("uplink")
    @classmethod
    def _uplink_is_no_pods_link(cls, uplink: str | None) -> str | None:
        if uplink is not None and uplink.startswith(LINK_PREFIX):
            raise ValueError(
                f"{uplink} begins as pods' links do ({LINK_PREFIX}), "
                "by which the rules know them; rename it"
            )
        return uplink


class Pool(Document):
    """How addresses are handed out again."""

    cooldown_seconds: Annotated[float, Field(ge=0, le=86_400)] = 30
    """How long a released address is not given out again, at least."""
    conntrack_wait_seconds: Annotated[float, Field(ge=0, le=86_400)] = 300
    """How much longer that is, at most, for an address that conntrack still names."""


class NodeDocument(Document):
    """The whole of `node.yaml`."""

    api_version: Annotated[Literal["netmgr.io/v1alpha1"], Field(alias="apiVersion")]
    """Version of the document's form."""
    kind: Literal["Node"]
    """What the document is."""
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
    nodes_file: AbsolutePath | None = None
    """List of the cluster's nodes, from `netmgr controller --routes nodes`; for a flat network."""
    network: Annotated[str, Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_.-]*$")] = "netmgr"
    """Name of the CNI network this agent serves."""
    cni: bool = True
    """Whether this agent wires pods; `off` only observes pods that another plugin wired."""
    cni_results_dir: AbsolutePath = Path("/var/lib/cni/results")
    """Where the runtime's libcni keeps the results of ADD; looked at with `cni: off` alone."""
    range_source: RangeSource = RangeSource.FILE
    """Where `ranges` come from: this document, or the metadata that a cloud has of the machine."""
    range_refresh_seconds: Annotated[float, Field(ge=1, le=3600)] = 30
    """How often a cloud is asked; `gcp` also says at once that something has changed."""
    # Validated if missing, too: role and cni decide whether it may be.
    ranges: Annotated[tuple[PrefixText, ...], Field(validate_default=True)] = ()
    """Blocks and single addresses pods may have, all usable. Required unless `cni: off`."""
    ranges_file: AbsolutePath | None = None
    """A file with the Node's ranges as Kubernetes has them now; newer ones replace `ranges`."""
    ranges_version: Annotated[int, Field(ge=0)] = 0
    """The Node's resourceVersion when `ranges` were read from it."""
    # Validated by default, too: with the ranges it may leave no internet.
    internal: Annotated[tuple[PrefixText, ...], Field(validate_default=True)] = PRIVATE_USE
    """Prefixes that are not internet, beside the special-use ones, which never are."""
    masquerade: bool = True
    """Whether pods reach what is not `native` as the node."""
    native: tuple[PrefixText, ...] | None = None
    """Internal prefixes toward which pods keep their own addresses, beside `ranges`, `sites`, and
    the nodes of `nodes_file` with their pods; default: all that is internal."""
    protect: tuple[PrefixText, ...] = PLATFORM
    """What pods of this agent may not reach, but for DNS; never internet."""
    protect_except: tuple[Annotated[str, Field(min_length=1, max_length=63)], ...] = ()
    """Namespaces whose pods may reach all of `protect`."""
    fragments_per_second: Annotated[int, Field(ge=0, le=1_000_000)] = 10
    """IP fragments that each pod may send, and 20 times as many at once; 0 for any number."""
    # IPv6 needs links of 1280 bytes (RFC 8200).
    mtu: Annotated[int, Field(ge=1280, le=65_535)] | None = None
    """MTU of the pods' interfaces, in bytes; default: the uplink's."""
    flowtable: bool = True
    """Whether connections between internal addresses (and the internet, where links count) skip the
    rules once they are established. Only on nftables, where the kernel has flowtables; where rules
    count, without `accounting.classes`."""
    limits: tuple[Limit, ...] = ()
    """How much internet traffic pods may have. Needs nftables, on any backend."""
    limits_by_annotation: bool = False
    """Whether pods may have limits of their own, by annotations; they tighten `limits`."""
    budgets_file: AbsolutePath | None = None
    """What `netmgr exporter` writes of the cluster's budgets; without it the node keeps none."""
    backend: BackendName = Backend.AUTO
    """Which kernel interface holds the rules."""
    pool: Pool = Pool()
    accounting: Accounting = Accounting()
    preflight: Preflight = Preflight()
    """What `netmgr preflight` probes on a fresh node."""
    reconcile_seconds: Annotated[float, Field(gt=0, le=3600)] = 10
    """How often rules, routes, links and files are checked, and repaired."""
    state_dir: AbsolutePath = Path("/var/lib/netmgr")
    """Leases, totals and DELs to be carried out; has to outlast reboots."""
    run_dir: AbsolutePath = Path("/run/netmgr")
    """The agent's sockets."""
    reader_group: Group | None = None
    """Group (name or number) that may read the ledger socket; default: root alone."""
    log_level: LogLevel = LogLevel.INFO
    """The least severe events that are logged."""

    @field_validator("ranges")
    @classmethod
    def _ranges_are_usable(
        cls, ranges: tuple[Prefix, ...], info: ValidationInfo
    ) -> tuple[Prefix, ...]:
        # pydantic validates fields in the order of their declaration: `info.data` has the earlier
        # ones, without those that failed.
        source = info.data.get("range_source", RangeSource.FILE)
        if source is not RangeSource.FILE:
            if ranges:
                raise ValueError(
                    f"belongs to range_source: file; with {source} the machine's metadata "
                    "has the ranges"
                )
        elif not ranges and info.data.get("cni", True) and info.data.get("role") is Role.NODE:
            raise ValueError(
                "is required and missing: pods get their addresses from it "
                "(only cni: off needs none)"
            )
        keyed = (KeyedPrefix(block, (index,), "") for index, block in enumerate(ranges))
        for later, earlier in overlapping(keyed):
            message = f"{later.prefix} overlaps {earlier.prefix}"
            raise invalid(message, later.key, earlier.key, "give every address once")
        # None if `node` failed its own validation, which is then the error that is shown.
        node: NodeIdentity | None = info.data.get("node")
        for index, block in enumerate(ranges):
            _require_usable(block, index, node.addresses if node else ())
        return ranges

    @field_validator("sites")
    @classmethod
    def _sites_are_disjoint(cls, sites: tuple[Site, ...]) -> tuple[Site, ...]:
        # A validator can raise one error, so the first conflict is the one that is shown.
        for diagnostic in conflicts(sites):
            raise Invalid(diagnostic)
        return sites

    @model_validator(mode="after")
    def _is_consistent(self) -> NodeDocument:
        # The first one alone, as in `_sites_are_disjoint`.
        for diagnostic in _contradictions(self):
            raise Invalid(diagnostic)
        # Merged, since 0.0.0.0/1 and 128.0.0.0/1 together are everything, too.
        if any(prefix.length == 0 for prefix in self.not_internet):
            raise ValueError("accounting.classes and internal leave no internet")
        return self

    @field_validator("protect")
    @classmethod
    def _protects_no_pod(
        cls, protect: tuple[Prefix, ...], info: ValidationInfo
    ) -> tuple[Prefix, ...]:
        for index, block in enumerate(protect):
            if not block.length:
                message = f"{block} is everything of IPv{block.family.value}"
                raise invalid(message, (index,), remedy="name less")
            for beside, own in enumerate(info.data.get("ranges", ())):
                if block.overlaps(own):
                    message = (
                        f"{block} overlaps ranges[{beside}], {own}, "
                        "so that pods would not reach each other"
                    )
                    raise invalid(message, (index,), remedy="protect what is no pod's")
        return protect

    @field_validator("internal")
    @classmethod
    def _internal_leaves_an_internet(
        cls, internal: tuple[Prefix, ...], info: ValidationInfo
    ) -> tuple[Prefix, ...]:
        for block in _internal(internal, info.data.get("ranges", ())):
            if block.length == 0:
                others = (
                    "" if block in internal else " with the special-use prefixes and the ranges"
                )
                raise ValueError(
                    f"makes everything of IPv{block.family.value} internal{others}, "
                    "so that nothing would be counted"
                )
        return internal

    @field_validator("run_dir")
    @classmethod
    def _sockets_have_room(cls, run_dir: Path) -> Path:
        # In bytes, as the kernel counts them.
        needed = max(len(str(run_dir / name).encode("utf-8", "surrogatepass")) for name in SOCKETS)
        if (excess := needed - SOCKET_PATH_BYTES) > 0:
            raise ValueError(
                f"is too long by {excess} bytes; "
                f"with a socket's name it can have {SOCKET_PATH_BYTES}"
            )
        return run_dir

    @property
    def wires_pods(self) -> bool:
        return self.cni and self.role is Role.NODE

    @property
    def limits_pods(self) -> bool:
        """Whether pods may have limits."""
        return bool(self.limits or self.budgets_file) or self.limits_by_annotation

    @property
    def internal_prefixes(self) -> tuple[Prefix, ...]:
        """All that is not internet: `internal`, special use, own ranges, every site's prefixes."""
        protected = self.protect if self.wires_pods else ()
        return _internal(self.internal, (*self._planned, *protected))

    @property
    def native_prefixes(self) -> tuple[Prefix, ...]:
        """Where packets keep their source; to everything else they are masqueraded."""
        if self.native is None:
            return self.internal_prefixes
        # Without `protect`: DNS passes there, and its answers have to come back.
        return _internal(self.native, self._planned)

    @property
    def _planned(self) -> tuple[Prefix, ...]:
        sites = [prefix for site in self.sites for prefix in site.every_prefix]
        services = [service.service_cidr for service in self.nat.services] if self.nat else []
        return (*self.ranges, *sites, *services)

    @property
    def not_internet(self) -> tuple[Prefix, ...]:
        return tuple(merge((*self.internal_prefixes, *chain(*self.traffic_classes.values()))))

    @property
    def traffic_classes(self) -> dict[str, tuple[Prefix, ...]]:
        return resolved(
            self.accounting.classes, {site.name: site.every_prefix for site in self.sites}
        )

    @property
    def families(self) -> tuple[Family, ...]:
        return tuple(sorted({block.family for block in self.ranges}))

    @property
    def fewest_addresses(self) -> int | float:
        """Addresses of the family with the fewest, and so pods; infinite without ranges."""
        sizes = (
            sum(block.size for block in self.ranges if block.family is family)
            for family in self.families
        )
        return min(sizes, default=math.inf)


def _internal(internal: Iterable[Prefix], ranges: Iterable[Prefix]) -> tuple[Prefix, ...]:
    return tuple(merge((*SPECIAL_USE, *RESERVED_USE, *internal, *ranges)))


def _require_usable(block: Prefix, index: int, own: Iterable[Address]) -> None:
    for special in SPECIAL_USE:
        if block.overlaps(special):
            message = f"{block} lies in the special-use prefix {special}"
            raise invalid(message, (index,), remedy="pods cannot have such addresses")
    for address in own:
        if block.holds(address):
            message = f"{block} holds the node's own address {address}"
            raise invalid(message, (index,), remedy="take it out of the range")


def _contradictions(document: NodeDocument) -> Iterator[Diagnostic]:
    """Everything in a document that contradicts its role, its sites or its backend."""
    yield from _of_site(document)
    yield from _of_role(document)
    for key in ("limits", "limits_by_annotation", "budgets_file"):
        if getattr(document, key) and document.role is not Role.NODE:
            yield error(f"a {document.role} has no pods", (key,), ("role",), "remove it")
    yield from of_counting(document.accounting, document.backend, wires_pods=document.wires_pods)
    yield from without_history(document.limits, document.accounting)
    if document.budgets_file and document.accounting.history_hours < QuotaPeriod.DAY.most_hours:
        remedy = "set accounting.history_hours to 24 or more"
        message = "a budget's day has 24 hours, of which the ledger keeps fewer"
        yield error(message, ("budgets_file",), ("accounting", "history_hours"), remedy)
    yield from of_no_class(
        document.limits, (traffic_class.name for traffic_class in document.accounting.classes)
    )
    own = next((site for site in document.sites if site.name == document.site), None)
    if own is not None:
        yield from _of_own_addresses(document, own)
        yield from _of_services(document, own)
    yield from _of_routes(document)
    yield from _of_native(document)


def _of_site(document: NodeDocument) -> Iterator[Diagnostic]:
    role, site, names = document.role, document.site, [site.name for site in document.sites]
    if site is not None and site not in names:
        known = f"there are {', '.join(names)}" if names else "no sites are given"
        yield error(f"{site} is not one of sites", ("site",), ("sites",), known)
    if site is None and names and role is not Role.HUB_ROUTER:
        remedy = "say which of the sites this machine belongs to"
        yield error("site is missing", ("sites",), remedy=remedy)
    if role is Role.HUB_ROUTER and site not in (None, HUB):
        remedy = f"a hub-router is of the site {HUB}"
        yield error(f"{site} has no hub-router", ("site",), ("role",), remedy)
    if role is Role.NAT_HOST and site == HUB:
        remedy = "name the spoke whose Services it opens"
        yield error("the hub has no nat-host", ("site",), ("role",), remedy)


def _of_role(document: NodeDocument) -> Iterator[Diagnostic]:
    role = document.role
    if role is Role.NAT_HOST and document.nat is None:
        yield error("a nat-host needs nat", ("role",), remedy="say what it translates")
    if role is not Role.NAT_HOST and document.nat is not None:
        remedy = "remove it, or say role: nat-host"
        yield error(f"a {role} translates no Services", ("nat",), ("role",), remedy)
    if document.nodes_file and not document.wires_pods:
        remedy = "remove it; only a node whose pods netmgr wires has routes to other nodes"
        yield error("wires no pods", ("nodes_file",), ("role",), remedy)
    if document.ranges_file and not document.ranges:
        remedy = "remove it; without ranges in this document there is nothing to replace"
        yield error("needs ranges", ("ranges_file",), ("ranges",), remedy)
    if document.ranges and role is not Role.NODE:
        remedy = "remove it, or say role: node"
        yield error(f"a {role} runs no pods", ("ranges",), ("role",), remedy)


def _of_native(document: NodeDocument) -> Iterator[Diagnostic]:
    if document.native is not None and not (
        document.wires_pods or document.role is Role.HUB_ROUTER
    ):
        beside = "role" if document.cni else "cni"
        remedy = "remove it; only a hub-router and a node whose pods netmgr wires do"
        yield error("masquerades nothing", ("native",), (beside,), remedy)
    internal = document.internal_prefixes
    for number, block in enumerate(document.native or ()):
        if not any(prefix.covers(block) for prefix in internal):
            message = f"{block} is internet, which has no way back to pods' addresses"
            remedy = "add it to internal if it has one, or remove it"
            yield error(message, ("native", number), ("internal",), remedy)


def _of_own_addresses(document: NodeDocument, own: Site) -> Iterator[Diagnostic]:
    # No rule would keep pods apart whose addresses are of no site.
    for number, block in enumerate(document.ranges):
        if not any(prefix.covers(block) for prefix in own.prefixes):
            beside = ("sites", document.sites.index(own), "prefixes")
            message = f"{block} lies in no prefix of {own.name}"
            remedy = "give the ranges and the site that the plan has for this machine"
            yield error(message, ("ranges", number), beside, remedy)
    for number, address in enumerate(document.node.addresses):
        for foreign in _of_other_spokes(document):
            if foreign.prefix.holds(address):
                key = ("node", "addresses", number)
                theirs = f"{foreign.prefix} of {foreign.owner}"
                remedy = "give the addresses and the site that the plan has for this machine"
                yield error(
                    f"{address} lies in {theirs}, not in {own.name}", key, foreign.key, remedy
                )


def _of_services(document: NodeDocument, own: Site) -> Iterator[Diagnostic]:
    services = document.nat.services if document.nat else ()
    for number, service in enumerate(services):
        key: KeyPath = ("nat", "services", number)
        if not any(prefix.covers(service.vip_range) for prefix in own.services):
            beside = ("sites", document.sites.index(own), "services")
            message = f"{service.vip_range} lies in no VIP range of {own.name}"
            yield error(message, (*key, "vip_range"), beside, "correct one of them")
        yield from _of_inner_range(document, service, (*key, "service_cidr"))


def _of_inner_range(
    document: NodeDocument, service: ServiceRange, key: KeyPath
) -> Iterator[Diagnostic]:
    for keyed in prefixes_of(document.sites, ("sites",)):
        # A range that is not translated is in its own site's prefix by design.
        is_its_own = service.is_identity and keyed.prefix.covers(service.vip_range)
        if keyed.prefix.overlaps(service.service_cidr) and not is_its_own:
            message = f"{service.service_cidr} overlaps {keyed.prefix} of {keyed.owner}"
            remedy = "a Service CIDR must not overlap any site's prefixes"
            yield error(message, key, keyed.key, remedy)


def _of_routes(document: NodeDocument) -> Iterator[Diagnostic]:
    first: dict[Prefix, int] = {}
    for number, route in enumerate(document.routes):
        if route.to in first:
            beside = ("routes", first[route.to], "to")
            message = f"{route.to} has a route already"
            yield error(message, ("routes", number, "to"), beside, "keep one")
        first[route.to] = number
        for foreign in _of_other_spokes(document):
            message = f"leads to {foreign.prefix} of {foreign.owner}, another spoke"
            remedy = "spokes do not reach each other"
            if foreign.prefix.overlaps(route.to):
                key = ("routes", number, "to")
                yield error(f"{route.to} {message}", key, foreign.key, remedy)
            if foreign.prefix.holds(route.via):
                key = ("routes", number, "via")
                yield error(f"{route.via} {message}", key, foreign.key, remedy)


def _of_other_spokes(document: NodeDocument) -> Iterator[KeyedPrefix]:
    """Prefixes that a machine must not touch."""
    # The hub router forwards to every spoke, so its routes lead there.
    if document.role is not Role.HUB_ROUTER:
        for keyed in prefixes_of(document.sites, ("sites",)):
            if keyed.owner not in (HUB, document.site):
                yield keyed
