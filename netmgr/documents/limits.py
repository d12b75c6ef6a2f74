"""Limits: how much internet traffic pods may have, each by itself or those of a namespace together.

What is internet is decided as for accounting. Internal traffic is not limited; connections are,
wherever they lead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import product
from typing import Annotated

from netmgr.documents.accounting import Accounting
from netmgr.documents.classes import INTERNET
from netmgr.documents.diagnostics import Diagnostic, error
from netmgr.documents.fields import Document
from netmgr.documents.quantity import SCHEMA, bit_rate, quantity, written
from netmgr.documents.schema import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PrivateAttr,
    WithJsonSchema,
    model_validator,
)
from netmgr.model import PodRef, Traffic

_WRITTEN = PlainSerializer(written, return_type=str, when_used="json")

BitRate = Annotated[int, BeforeValidator(bit_rate), WithJsonSchema(SCHEMA), _WRITTEN]
"""Bits a second."""

_Quantity = Annotated[int, BeforeValidator(quantity), WithJsonSchema(SCHEMA), _WRITTEN]
Bytes = Annotated[_Quantity, Field(ge=1)]

LEAST_QUOTA, MOST_QUOTA = 1_000_000, 10**18
"""Bytes. Below, a few of the kernel's longest packets (64 KiB) would be all of it."""

Quota = Annotated[_Quantity, Field(ge=LEAST_QUOTA, le=MOST_QUOTA)]

_PODS = 110
"""How many pods a kubelet takes by default."""


class QuotaPeriod(StrEnum):
    """What a quota is for; days and months are those of UTC."""

    DAY = "day"
    MONTH = "month"

    @property
    def most_hours(self) -> int:
        return 24 if self is QuotaPeriod.DAY else 31 * 24


def _spent(value: object) -> int:
    try:
        return 0 if value in ("drop", 0) else bit_rate(value)
    except ValueError as error:
        raise ValueError(f"{error}; or write drop") from None


WhenSpent = Annotated[
    int,
    BeforeValidator(_spent),
    WithJsonSchema({"anyOf": [{"const": "drop"}, *SCHEMA["anyOf"]]}),
    PlainSerializer(lambda rate: written(rate) if rate else "drop", str, when_used="json"),
]
"""Bits a second for what is beyond a quota; 0 is drop, since no rate is as low."""


def _of_pods(value: object) -> object:
    if isinstance(value, str) and "/" not in value:
        raise ValueError(
            f"{value!r} is not NAMESPACE/NAME; for all pods of that namespace write {value}/*"
        )
    return value


def _flow(value: object) -> str:
    if not isinstance(value, dict):
        return str(value)
    return "{" + ", ".join(f"{key}: {_flow(member)}" for key, member in value.items()) + "}"


class _Part(Document):
    """Keys of a limit that belong together."""

    _text: str = PrivateAttr("")

    def model_post_init(self, _: object) -> None:
        # Now: a process without pydantic, which shows it to people, cannot.
        self._text = _flow(
            self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
        )

    def __str__(self) -> str:
        """What it says, in the document's own words."""
        return self._text


class Connections(_Part):
    """Connections that pods may begin, internal ones too. Neither bound does without the other.

    What has ended stays in connection tracking for a while, so that the first alone is no bound;
    and unanswered connections of UDP outlast a second.
    """

    at_once: Annotated[int, Field(alias="at-once", strict=True, ge=1, le=100_000)]
    """Connections in connection tracking at one time, without those that have ended."""
    new_per_second: Annotated[int, Field(alias="new-per-second", strict=True, ge=1, le=2000)]
    """Connections begun in a second, on average; as many may begin at once after a pause.

    What is refused for `at-once` is remembered by the kernel for a moment, so this is bounded."""


class Quotas(_Part):
    """Bytes that may pass in a period."""

    internet_in: Annotated[Quota | None, Field(alias="internet-in")] = None
    """From the internet; IP packets with their headers, as accounting counts them."""
    internet_out: Annotated[Quota | None, Field(alias="internet-out")] = None
    """To the internet, likewise."""

    @model_validator(mode="after")
    def _is_given(self) -> Quotas:
        if self.internet_in is None and self.internet_out is None:
            raise ValueError("give bytes for internet-in, internet-out or both")
        return self


class Limit(_Part):
    """A limit for some pods, each by itself (`pods`), or for each of some namespaces."""

    pods: Annotated[str, BeforeValidator(_of_pods), Field(pattern=r"^[^/]+/[^/]+$")] | None = None
    """NAMESPACE/NAME, where * and ? stand for any characters (fnmatch(3)); / is in neither."""
    namespaces: Annotated[str, Field(pattern=r"^[^/]+$")] | None = None
    """Namespaces, likewise. The pods that a namespace has on this node share the limit."""
    internet_in: Annotated[BitRate | None, Field(alias="internet-in")] = None
    """Bits a second from the internet, Ethernet headers included."""
    internet_out: Annotated[BitRate | None, Field(alias="internet-out")] = None
    """Bits a second to the internet, likewise."""
    classes: Annotated[Mapping[str, BitRate], Field(default_factory=dict)]
    """Bits a second of classes of `accounting.classes`, by their label: `hub-in`, `hub-out`."""
    burst: Bytes | None = None
    """Bytes that may pass at once after a pause; default: what passes in 5 ms, at least 64 KiB."""
    per_day: Annotated[Quotas | None, Field(alias="per-day")] = None
    """Bytes that may pass from midnight to midnight (UTC)."""
    per_month: Annotated[Quotas | None, Field(alias="per-month")] = None
    """Bytes that may pass in a calendar month (UTC)."""
    when_spent: Annotated[WhenSpent, Field(alias="when-spent")] = 0
    """What happens to packets beyond a quota: `drop`, or bits a second at which they pass."""
    connections: Connections | None = None
    """How many connections pods may begin and have."""

    @model_validator(mode="after")
    def _is_complete(self) -> Limit:
        if (self.pods is None) == (self.namespaces is None):
            raise ValueError("give either pods or namespaces")
        has_rates = self.internet_in or self.internet_out or self.classes
        has_quotas = not (self.per_day is None and self.per_month is None)
        if not has_rates and not has_quotas and self.connections is None:
            raise ValueError(
                "limits nothing; give internet-in, internet-out, classes, per-day, per-month or "
                "connections"
            )
        if "when_spent" in self.model_fields_set and not has_quotas:
            raise ValueError("when-spent has no quota; give per-day or per-month")
        return self

    def rate(self, traffic: Traffic) -> int | None:
        if traffic.kind != INTERNET:
            return self.classes.get(traffic)
        return self.internet_in if traffic.is_inward else self.internet_out

    def quotas(self, period: QuotaPeriod) -> Quotas | None:
        return self.per_day if period is QuotaPeriod.DAY else self.per_month

    def quota(self, period: QuotaPeriod, traffic: Traffic) -> int | None:
        quotas = self.quotas(period)
        if quotas is None:
            return None
        return quotas.internet_in if traffic.is_inward else quotas.internet_out

    def covers(self, pod: PodRef) -> bool:
        if self.namespaces is not None:
            return fnmatchcase(pod.namespace, self.namespaces)
        namespace, _, name = (self.pods or "").partition("/")
        return fnmatchcase(pod.namespace, namespace) and fnmatchcase(pod.name, name)


def of_no_class(limits: Iterable[Limit], classes: Iterable[str]) -> Iterator[Diagnostic]:
    """Rates of classes that do not exist."""
    known = [f"{name}-{way}" for name in classes for way in ("in", "out")]
    remedy = f"there are {', '.join(known)}" if known else "accounting.classes has none"
    for number, limit in enumerate(limits):
        for name in limit.classes.keys() - set(known):
            key = ("limits", number, "classes", name)
            yield error(f"{name} is no class", key, ("accounting", "classes"), remedy)


def without_history(limits: Iterable[Limit], accounting: Accounting) -> Iterator[Diagnostic]:
    """Quotas whose use the ledger would forget before their period ends."""
    # With classes, what is neither theirs nor internal is one more.
    kinds = 2 * (2 + len(accounting.classes) if accounting.classes else 1)
    for (number, limit), period in product(enumerate(limits), QuotaPeriod):
        if limit.quotas(period) is None:
            continue
        key, hours = ("limits", number, f"per-{period}"), period.most_hours
        # What is older than the last rows is known by namespace only.
        rows = hours * kinds * _PODS if limit.pods else 0
        if accounting.history_hours < hours:
            message = f"a {period} has up to {hours} hours, of which the ledger keeps fewer"
            remedy = f"set accounting.history_hours to {hours} or more"
            yield error(message, key, ("accounting", "history_hours"), remedy)
        elif accounting.history_rows < rows:
            message = f"{_PODS} pods make up to {rows} rows in a {period}; the ledger keeps fewer"
            remedy = f"set accounting.history_rows to {rows} or more"
            yield error(message, key, ("accounting", "history_rows"), remedy)
