"""Usage as rows of the FinOps Open Cost and Usage Specification (FOCUS), version 1.4.

A row is the dataset Cost and Usage's for an hour, a pod and a kind of traffic. All its mandatory
columns are there; columns of ours begin with x_, as the specification asks.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

from netmgr.ledger.history import charged, wire_unknown

if TYPE_CHECKING:
    from netmgr.api.snapshot import UsageRow
    from netmgr.documents.prices import Prices

_COSTS = ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost")
_PROVIDERS = ("HostProviderName", "InvoiceIssuerName", "ServiceProviderName")
_UNIT_PRICES = ("ContractedUnitPrice", "ListUnitPrice")
# What traffic can have nothing to say about, and what is the same in every row.
_NULLS = ("BillingAccountName", "ChargeClass", "SkuPriceDetails")
_CONSTANTS = {
    "ChargeCategory": "Usage",
    "ChargeFrequency": "Usage-Based",
    "ConsumedUnit": "B",
    "PricingCategory": "Standard",
    "ResourceType": "Pod",
    "ServiceCategory": "Networking",
    "ServiceName": "Data Transfer",
}


def focus_row(row: UsageRow, prices: Prices) -> dict[str, object]:
    """The columns in their order, ours last."""
    begin = datetime.fromtimestamp(row["hour"] * 3600, UTC)
    month = begin.replace(day=1, hour=0)
    traffic, pod = row["traffic"], f"{row['namespace']}/{row['pod']}"
    price = written(prices.traffic.get(traffic, Decimal(0)))
    size = billed(row, prices)
    columns: dict[str, object] = {
        **_CONSTANTS,
        **dict.fromkeys(_NULLS),
        **dict.fromkeys(_COSTS, written(prices.cost(traffic, size))),
        **dict.fromkeys(_PROVIDERS, prices.provider),
        **dict.fromkeys(_UNIT_PRICES, price),
        "BillingAccountId": prices.account,
        "BillingCurrency": prices.currency,
        # 31 days reach the next month from the first day of any.
        "BillingPeriodEnd": _time((month + timedelta(days=31)).replace(day=1)),
        "BillingPeriodStart": _time(month),
        "ChargeDescription": f"{traffic} of {pod}",
        "ChargePeriodEnd": _time(begin + timedelta(hours=1)),
        "ChargePeriodStart": _time(begin),
        "ConsumedQuantity": size,
        "PricingQuantity": written(prices.quantity(size)),
        "PricingUnit": str(prices.per),
        "ResourceId": pod,
        "ResourceName": row["pod"],
        "SkuId": traffic,
        "SkuMeter": traffic,
        "SkuPriceId": f"{traffic} {price} {prices.currency}/{prices.per}",
        "Tags": json.dumps({"namespace": row["namespace"], "pod": row["pod"]}),
        "x_MissingBytes": row.get("missing"),
        "x_Node": row.get("node"),
        "x_UnreadNodes": row.get("unread_nodes"),
        "x_WireBytes": row.get("wire"),
        "x_WireUnknownBytes": wire_unknown(row),
    }
    return dict(sorted(columns.items()))


def billed(row: UsageRow, prices: Prices) -> int:
    """The bytes of a row that are paid for."""
    return charged(row, wire=prices.charge == "wire")


def written(number: Decimal) -> str:
    """Without an exponent, which Decimal would write for small and for round numbers."""
    return f"{number:f}"


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
