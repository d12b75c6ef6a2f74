"""What traffic costs: the price table of `netmgr usage --prices`.

It is one rate per kind of traffic. Tiers are an account's, over all its machines and a whole month,
which no record of an hour can know: give the rate that the invoice comes to.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Annotated, Literal

from netmgr.documents.accounting import Charge
from netmgr.documents.fields import Document
from netmgr.documents.schema import BeforeValidator, Field

_DIGITS = 80
_SMALLEST = Decimal(1).scaleb(-15)
"""Costs of records are rounded to this: a million of them are right to a billionth."""


_UNITS = {"GB": 10**9, "GiB": 1 << 30}


def _decimal(value: object) -> object:
    # As it was written: 0.09 is no binary fraction.
    return repr(value) if isinstance(value, float) else value


Price = Annotated[
    Decimal, BeforeValidator(_decimal), Field(ge=0, le=1_000_000, max_digits=20, decimal_places=12)
]


class Prices(Document):
    """A price table."""

    api_version: Annotated[Literal["netmgr.io/v1alpha1"], Field(alias="apiVersion")]
    """Version of the document's form."""
    kind: Literal["Prices"]
    """What the document is."""
    provider: Annotated[str, Field(min_length=1, max_length=100)]
    """Who sends the invoice."""
    account: Annotated[str, Field(min_length=1, max_length=100)]
    """Whom it is sent to: the number of the billing account."""
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
    """Its code in ISO 4217."""
    per: Literal["GB", "GiB"] = "GB"
    """How much traffic a price is for: 10^9 bytes (`GB`) or 2^30 (`GiB`)."""
    charge: Charge = Charge.BYTES
    """What is paid for: `bytes` of IP packets, or `wire` bytes, where links count."""
    traffic: Annotated[
        dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*-(in|out)$")], Price],
        Field(min_length=1),
    ]
    """The price of each kind of traffic, by its label: `internet-out`. What is not here is free."""

    def quantity(self, size: int, price: Decimal = Decimal(1)) -> Decimal:
        """So many bytes in the unit of the prices, or what they cost at one."""
        with localcontext(prec=_DIGITS):
            return (size * price / _UNITS[self.per]).quantize(_SMALLEST).normalize()

    def cost(self, traffic: str, size: int) -> Decimal:
        """What so many bytes cost."""
        return self.quantity(size, self.traffic.get(traffic, Decimal(0)))
