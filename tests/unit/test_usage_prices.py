"""What `netmgr usage` makes of prices: costs to the last byte, and rows of FOCUS."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, cast

import pytest

from netmgr.api.snapshot import UsageView
from netmgr.cli.output import show
from netmgr.cli.usage import as_csv, as_focus, as_json, as_table, notes
from netmgr.documents import loader
from netmgr.documents.prices import Prices
from netmgr.errors import ConfigError
from netmgr.kube.diagnose.cluster_usage import ReportedUsage
from netmgr.ledger.history import By, Period, view
from tests.builders import PRICES

HOUR = int(datetime(2026, 12, 31, 23, tzinfo=UTC).timestamp() // 3600)
MANDATORY = {
    *("BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency"),
    *("BillingPeriodEnd", "BillingPeriodStart", "ChargeCategory", "ChargeClass"),
    *("ChargeDescription", "ChargePeriodEnd", "ChargePeriodStart", "ContractedCost"),
    *("EffectiveCost", "HostProviderName", "InvoiceIssuerName", "ListCost", "PricingQuantity"),
    *("PricingUnit", "ServiceCategory", "ServiceName", "ServiceProviderName"),
}
"""Of Cost and Usage in FOCUS 1.4."""
NULLABLE = {"BillingAccountName", "ChargeClass", "ChargeDescription"}


def prices(**changed: Any) -> Prices:
    kept = [line for line in PRICES.splitlines() if line.partition(":")[0] not in changed]
    text = "\n".join([*kept, *(f"{key}: {value}" for key, value in changed.items())])
    return loader.parse(text, "prices.yaml", Prices)


def usage(*sizes: tuple[str, int]) -> UsageView:
    pod = {"hour": HOUR, "namespace": "team-a", "pod": "web-0", "packets": 1, "missing": None}
    rows: Any = [pod | {"traffic": traffic, "bytes": size} for traffic, size in sizes]
    return view(Period(HOUR, HOUR + 1), [By.HOUR, By.POD, By.CLASS], rows)


@pytest.mark.parametrize(("unit", "size"), [("GB", 10**9), ("GiB", 1 << 30)])
def test_costs_of_parts_add_up_to_that_of_the_whole_to_the_cent(unit: str, size: int) -> None:
    table = prices(per=unit)
    parts = [7, 1_234_567, size, 10**15 + 1] * 250
    total = sum(table.cost("internet-out", part) for part in parts)
    assert abs(total - Decimal(sum(parts)) * Decimal("0.09") / size) < Decimal("1e-11")
    assert table.cost("internet-out", size) == Decimal("0.09")


def test_a_price_is_the_number_that_is_written() -> None:
    for written in ("0.09", "'0.09'", "9e-2"):
        table = prices(traffic=f"{{internet-out: {written}}}")
        assert table.traffic == {"internet-out": Decimal("0.09")}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("traffic", "{internet-out: -1}", "traffic.internet-out"),
        ("traffic", "{internet: 1}", "traffic.internet"),
        ("traffic", "{internet-out: .nan}", "traffic.internet-out"),
        ("traffic", "{}", "traffic"),
        ("currency", "dollars", "currency"),
        ("per", "TB", "per"),
        ("tiers", "[]", "unknown key"),
        ("kind", "Node", "kind: is Node, and this has to be a Prices"),
    ],
)
def test_a_wrong_price_table_is_refused_by_file_line_and_key(
    key: str, value: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=rf"prices\.yaml:\d: .*{said}"):
        prices(**{key: value})


def test_focus_rows_have_every_mandatory_column_and_the_money() -> None:
    answer = usage(("internet-out", 3_000_000_001), ("internet-in", 5))
    answer["rows"][0] |= {"wire": 3_100_000_000, "measured": 3_000_000_000}
    text = as_focus(answer, prices())
    out, free = csv.DictReader(io.StringIO(text))
    assert out.keys() >= MANDATORY
    assert {name for name in MANDATORY if not out[name]} <= NULLABLE
    own = [name for name in out if name.startswith("x_")]
    assert list(out) == sorted({*out} - {*own}) + sorted(own)
    assert as_focus(usage(), prices()).splitlines() == text.splitlines()[:1]
    costs = {out[name] for name in ("BilledCost", "EffectiveCost", "ListCost", "ContractedCost")}
    assert costs == {"0.27000000009"}
    assert (out["PricingQuantity"], out["PricingUnit"]) == ("3.000000001", "GB")
    assert (out["ChargePeriodStart"], out["ChargePeriodEnd"]) == (
        "2026-12-31T23:00:00Z",
        "2027-01-01T00:00:00Z",
    )
    assert (out["BillingPeriodStart"], out["BillingPeriodEnd"]) == (
        "2026-12-01T00:00:00Z",
        "2027-01-01T00:00:00Z",
    )
    assert json.loads(out["Tags"]) == {"namespace": "team-a", "pod": "web-0"}
    assert (free["BilledCost"], free["x_MissingBytes"]) == ("0", "")
    wires = [(row["x_WireBytes"], row["x_WireUnknownBytes"]) for row in (out, free)]
    assert wires == [("3100000000", "1"), ("", "5")]


def test_csv_json_and_table_have_costs_where_there_are_prices(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = usage(("internet-out", 10**11), ("internet-in", 5))
    assert [row["cost"] for row in json.loads(as_json(answer, prices()))["rows"]] == ["9", "0"]
    assert json.loads(as_json(answer, prices()))["currency"] == "USD"
    assert [row["cost"] for row in csv.DictReader(io.StringIO(as_csv(answer, prices())))] == [
        "9",
        "0",
    ]
    assert "cost" not in as_csv(answer)
    show(*as_table(answer, prices()), *notes(answer, prices()))
    shown = capsys.readouterr().out
    assert "9.00" in shown
    assert "free, since there is no price for it: internet-in" in shown


@pytest.mark.parametrize("is_cluster", [False, True], ids=["a node", "a cluster"])
def test_rows_of_an_agent_that_knows_no_wire_bytes_cost_as_their_bytes_and_that_is_said(
    capsys: pytest.CaptureFixture[str], *, is_cluster: bool
) -> None:
    answer, table = usage(("internet-out", 2 * 10**9)), prices(charge="wire")
    assert not {"wire", "measured"} & answer["rows"][0].keys()
    if is_cluster:
        reported = ReportedUsage.model_validate_json(json.dumps(answer)).model_dump()
        answer = cast("UsageView", {**answer, **reported})
    for text in (as_csv(answer, table), as_focus(answer, table)):
        (row,) = csv.DictReader(io.StringIO(text))
        assert (row.get("cost") or row["BilledCost"]) == "0.18"
        assert (row.get("wire_unknown") or row["x_WireUnknownBytes"]) == str(2 * 10**9)
    assert json.loads(as_json(answer, table))["rows"][0]["cost"] == "0.18"
    said = "priced by their IP bytes, since nobody knows their wire bytes: 2.0 GB"
    assert said in " ".join(notes(answer, table))
    show(*as_table(answer, table))
    assert "0.18" in capsys.readouterr().out


def test_rows_whose_wire_bytes_are_all_known_cost_these_and_nothing_is_said_of_others() -> None:
    answer, table = usage(("internet-out", 2 * 10**9)), prices(charge="wire")
    answer["rows"][0] |= {"wire": 3 * 10**9, "measured": 2 * 10**9}
    assert json.loads(as_json(answer, table))["rows"][0]["cost"] == "0.27"
    assert list(notes(answer, table)) == []
    # By bytes, it does not matter what is unknown.
    assert list(notes(usage(("internet-out", 5)), prices())) == []
