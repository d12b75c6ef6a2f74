"""The nouns every room shares. Frozen, without behaviour that touches the machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from netmgr.prefixes import Address, Family

ROUTE_PROTOCOL = 110
"""Route protocol number (rtm_protocol) that marks every route of ours; unassigned in iproute2."""

NODE_ROUTE_PROTOCOL = 111
"""That of routes to the other nodes' pods; unassigned, too."""

CHAIN_PREFIX = "NETMGR-"
"""Prefix of our chains' names in iptables tables, and of no others."""

LINK_PREFIX = "nm"
"""Host ends of our veth pairs are named with this prefix and twelve hexadecimal digits."""

LINK_GROUP = 0x6E6E
"""Link group of our host ends, by which one without its alias is known. See ip-link(8), "group"."""


PROBE_LINK = "netmgr-probe"
"""The link with the addresses that `netmgr preflight` holds while it runs; it is no pod's."""


LEAST_RATE, MOST_RATE = 64_000, 10**12
"""Bits a second of a limit. Below, a connection's own acknowledgements would not fit."""


class Traffic(StrEnum):
    """A class of traffic and its direction, seen from the pod or the node. Values are label values.

    The members are what is always counted. A node document can name further classes:
    `Traffic("hub-out")` is then a value like any other, known to no iteration.
    """

    INTERNET_IN = "internet-in"
    INTERNET_OUT = "internet-out"

    @classmethod
    def _missing_(cls, value: object) -> Traffic | None:
        if not isinstance(value, str) or not value.endswith(("-in", "-out")):
            return None
        made = str.__new__(cls, value)
        made._name_ = made._value_ = value
        # As enum.Flag does it: one object for each value.
        cls._value2member_map_[value] = made
        return made

    def __reduce_ex__(self, protocol: object) -> tuple[type[Traffic], tuple[str]]:
        # A copy is the value itself, which an enumeration would look for among its members.
        return Traffic, (self.value,)

    @property
    def kind(self) -> str:
        """The class, without the direction: `internet`."""
        return self.value.rpartition("-")[0]

    @property
    def is_inward(self) -> bool:
        return self.value.endswith("-in")


REMOTE_PODS = "REMOTE_PODS"
"""Subject of the counters of what the internet and other nodes' pods exchange through this node."""

UNATTRIBUTED = "UNATTRIBUTED"
"""Subject of the counters of what the internet exchanged through this node with no pod that has a
counter."""

PODS = "PODS"
"""Subject of the counters of what pods' own counters counted together: a sum to check them by."""

PROTECTED = Traffic("protected-out")
"""What pods sent to addresses that are kept from them; it was dropped."""


@dataclass(frozen=True, slots=True, order=True)
class PodRef:
    """Who an attachment belongs to, as the runtime's CNI_ARGS name it.

    A runtime outside Kubernetes gives no namespace and no UID: the namespace is then "-"
    and the name is the container id.
    """

    namespace: str
    name: str
    uid: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, order=True)
class AttachmentKey:
    """What CNI identifies an attachment by, within one network."""

    container_id: str
    ifname: str


PodRate = tuple[str, int]
"""A limit that a pod brings along: of which traffic (`ALL_IN`, `internet-out` …), bits a second."""

ALL_IN, ALL_OUT = "all-in", "all-out"
"""All of a pod's traffic, internal or not."""


@dataclass(frozen=True, slots=True)
class Requested:
    """What a runtime asks for: an address per family and a MAC in place of the node's, limits."""

    addresses: tuple[Address, ...] = ()
    mac: bytes = b""
    rates: tuple[PodRate, ...] = ()


@dataclass(frozen=True, slots=True)
class Attachment:
    """One interface of one sandbox, and the addresses it holds.

    `started_at` is when the launcher of its last ADD began, in seconds since boot; 0 if unknown.
    `rates` are the limits that the pod brought along.
    """

    key: AttachmentKey
    pod: PodRef
    addresses: tuple[Address, ...]
    host_link: str
    netns: str
    started_at: float = 0.0
    rates: tuple[PodRate, ...] = ()

    @property
    def families(self) -> tuple[Family, ...]:
        return tuple(sorted({address.family for address in self.addresses}))


def by_address(attachments: Iterable[Attachment]) -> dict[Address, Attachment]:
    """Each address that is held, and the attachment that holds it."""
    return {address: attachment for attachment in attachments for address in attachment.addresses}


@dataclass(frozen=True, slots=True, order=True)
class Sender:
    """A pod's address, and the link that its packets come in by."""

    link: str
    address: Address

    def __str__(self) -> str:
        return f"{self.link} . {self.address}"


_CGROUP = "cgroup "


# Tuples, since a node has thousands and each reading makes, hashes and compares as many.
class Counter(NamedTuple):
    """Identity of one kernel counter.

    `subject` is what is counted: a pod's address (one counter for each of its addresses and
    directions), for the node's own rules the hook's chain (INPUT, OUTPUT or FORWARD), REMOTE_PODS,
    UNATTRIBUTED or, for a host-network pod, `cgroup ` and the number of its cgroup.
    """

    subject: Address | str
    family: Family
    traffic: Traffic

    @classmethod
    def of_pod(cls, address: Address, traffic: Traffic) -> Counter:
        return cls(address, address.family, traffic)

    @classmethod
    def of_cgroup(cls, number: int, family: Family, traffic: Traffic) -> Counter:
        return cls(f"{_CGROUP}{number}", family, traffic)

    @property
    def is_pod(self) -> bool:
        return isinstance(self.subject, Address)

    @property
    def cgroup(self) -> int:
        """The number of a host-network pod's cgroup."""
        return int(str(self.subject).removeprefix(_CGROUP))

    def __str__(self) -> str:
        return f"{self.subject}/{self.family.value}/{self.traffic}"


class Sample(NamedTuple):
    """One reading of a kernel counter: bytes (with IP headers) and packets since it was made.

    `life` differs between a counter and any that another program puts in its place; 0 if that
    cannot be known. `wire` has every segment's headers, of packets whose segments are known;
    `measured` are the `bytes` of these. Both are 0 where rules count.
    """

    counter: Counter
    bytes: int
    packets: int
    life: int = 0
    wire: int = 0
    measured: int = 0
