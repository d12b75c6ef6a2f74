"""The lock given out and taken back: the same lock, or a refusal that says what is missing."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
import yaml

from netmgr.plan.files import load_lock, load_plan, lock_path
from tests.locks import all_subnets

GOLDEN = Path(__file__).parent.parent / "golden" / "render"
CONFIGS = Path(__file__).parent.parent.parent / "configs" / "plan"


@pytest.fixture(params=[GOLDEN / "plan.yaml", CONFIGS / "plan.yaml"], ids=["golden", "sample"])
def plan(request: pytest.FixtureRequest, tmp_path: Path, netmgr) -> Path:
    """A locked plan with pinned and shared ranges, IPv6 and a tombstone."""
    path = tmp_path / "plan.yaml"
    text = request.param.read_text()
    key = "    node_pools:\n"
    for entries in (f"{key}      vanished: {{nodes: 3}}\n", key):
        path.write_text(text.replace(key, entries, 1))
        assert netmgr("plan", "lock", "--yes", "-f", str(path))[0] == 0
    assert "tombstone: true" in lock_path(path).read_text()
    return path


def exported(run, plan: Path, *options: str) -> Path:
    path = plan.parent / "list"
    code, text = run("export", *options, "--to", str(path))
    assert (code, "Not in it: what" in text) == (0, True)
    return path


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def write_table(path: Path, rows: list[dict[str, str]], **titles: str) -> None:
    text = io.StringIO()
    csv.writer(text).writerow([titles.get(column, column) for column in rows[0]])
    csv.writer(text).writerows(row.values() for row in rows)
    path.write_text(text.getvalue())


@pytest.mark.parametrize("options", [[], ["--csv"]])
def test_what_was_exported_becomes_the_same_lock(run, plan, options):
    before = lock_path(plan).read_bytes()
    listing = exported(run, plan, *options)
    lock_path(plan).unlink()
    assert run("import", str(listing))[0] == 0
    assert lock_path(plan).read_bytes() == before
    # Nothing changes where it is the lock already.
    assert run("import", str(listing))[0] == 0
    assert run("lock", "--yes")[1].endswith("nothing to do\n")


def test_every_prefix_of_the_lock_is_exported_with_a_status_of_netbox(run, plan):
    rows = json.loads(exported(run, plan).read_text())["prefixes"]
    lock = load_lock(lock_path(plan))
    subnets = {str(prefix) for prefix in all_subnets(lock)}
    assert subnets <= {row["prefix"] for row in rows if row["status"] == "active"}
    for site, allocations in lock.sites.items():
        own = {row["prefix"] for row in rows if (row["site"], row["role"]) == (site, "prefix")}
        assert own == {str(held.prefix) for held in allocations}
    assert {row["status"] for row in rows} <= {"container", "active", "reserved", "deprecated"}


def test_a_csv_has_netboxes_columns_and_each_prefix_once(run, plan):
    rows = table(exported(run, plan, "--csv"))
    columns = "prefix vrf status role scope_type scope_name description comments"
    assert list(rows[0]) == columns.split()
    prefixes = [row["prefix"] for row in rows]
    assert len(set(prefixes)) == len(prefixes)
    assert all(len(row["description"]) <= 200 for row in rows)


def test_tombstones_are_deprecated(run, plan):
    plan.write_text(
        yaml.dump(yaml.safe_load(plan.read_text()) | {"clusters": {}, "pinned": {}, "exclude": []})
    )
    assert run("lock", "--yes")[0] == 0
    listing = exported(run, plan)
    rows = json.loads(listing.read_text())["prefixes"]
    sites = [row for row in rows if row["role"] in {"nodes and pods", "NAT hosts", "Services"}]
    assert {row["status"] for row in sites} == {"deprecated"}
    before = lock_path(plan).read_bytes()
    lock_path(plan).unlink()
    assert run("import", str(listing))[0] == 0
    assert lock_path(plan).read_bytes() == before


def test_a_table_from_netbox_has_titles_another_order_and_prefixes_of_others(run, plan):
    before = lock_path(plan).read_bytes()
    listing = exported(run, plan, "--csv")
    rows = [{"id": "7", **row, "status": row["status"].title()} for row in reversed(table(listing))]
    other = {"prefix": "192.168.7.0/24", "comments": "a *printer*"}
    rows.append(dict.fromkeys(rows[0], "") | other)
    write_table(listing, rows, id="ID", prefix="Prefix", comments="Comments")
    lock_path(plan).unlink()
    code, text = run("import", str(listing))
    assert code == 0
    assert "left out: 192.168.7.0/24; if it is in use, write it under exclude" in text
    assert lock_path(plan).read_bytes() == before


@pytest.mark.parametrize("damage", ["moved", "missing", "uncommented", "headless", "edited"])
def test_a_list_that_was_changed_makes_no_lock(run, plan, refused, damage):
    listing = exported(run, plan, "--csv")
    lock_path(plan).unlink()
    rows = table(listing)
    site = next(row for row in rows if row["role"] == "nodes and pods")
    holder = next(row for row in rows if '"hub":' in row["comments"])
    match damage:
        case "moved":
            site["prefix"] = "10.254.0.0/24"
        case "missing":
            rows.remove(site)
        case "uncommented":
            holder["comments"] = ""
        case "headless":
            rows.remove(next(row for row in rows if '"": {' in row["comments"]))
        case "edited":
            another = ('"addresses": [', '"addresses": ["10.255.0.9", ')
            holder["comments"] = holder["comments"].replace(*another)
    write_table(listing, rows)
    whole = damage in {"moved", "missing", "edited"}
    expected = "rows are missing or were changed: " if whole else "is no whole export of the plan"
    assert f"{listing}: {expected}" in refused("import", str(listing))
    assert not lock_path(plan).exists()


def test_another_lock_is_not_replaced(run, plan, refused):
    listing = exported(run, plan)
    grown = f"{plan.read_text()}\n# grown\n"
    plan.write_text(grown.replace("researchers: 250", "researchers: 700"))
    assert run("lock", "--yes")[0] == 0
    before = lock_path(plan).read_bytes()
    said = refused("import", str(listing))
    assert "is another lock, whose addresses may be in use" in said
    assert lock_path(plan).read_bytes() == before


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "{" + '"a":[' * 9000,
        "prefix,description\n'1\0,2\n",
        '{"prefixes": [1]}',
        "a,b\n1,2\n",
        '{"prefixes": {',
    ],
)
def test_what_is_no_export_is_refused(refused, plan, text):
    (plan.parent / "list").write_text(text)
    assert "is no whole export of the plan" in refused("import", "list")


def test_an_export_of_another_plan_is_refused(run, plan, refused):
    listing = exported(run, plan)
    name = load_plan(plan).name
    plan.write_text(plan.read_text().replace(f"name: {name}", "name: elsewhere"))
    lock_path(plan).unlink()
    assert "is no whole export of the plan elsewhere" in refused("import", str(listing))
