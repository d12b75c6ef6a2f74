"""Machines' documents that contradict each other or their plan are refused with both documents and
lines.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from netmgr.cli.plan import app

GOLDEN = Path(__file__).parent.parent / "golden" / "render"


def check(folder: Path) -> Result:
    return CliRunner().invoke(
        app, ["check", "--documents", str(folder / "all"), "-f", str(folder / "plan.yaml")]
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A plan with few nodes, its lock, and every machine's document in `all`."""
    text = (GOLDEN / "plan.yaml").read_text()
    for many, few in (("nodes: 7000", "nodes: 2"), ("nodes: 40,", "nodes: 1,"), ("300", "2")):
        text = text.replace(many, few)
    (tmp_path / "plan.yaml").write_text(text)
    (tmp_path / "plan.lock.yaml").write_text((GOLDEN / "plan.lock.yaml").read_text())
    for command in (["lock", "--yes"], ["render", "machines", "--to", str(tmp_path / "all")]):
        done = CliRunner().invoke(app, [*command, "-f", str(tmp_path / "plan.yaml")])
        assert done.exit_code == 0
    return tmp_path


def altered(folder: Path, name: str, old: str, new: str) -> None:
    path = folder / "all" / f"{name}.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_rendered_documents_agree(folder):
    done = check(folder)
    assert done.exit_code == 0, done.output
    assert "The documents agree with" in done.output


NAT, RANGE = "nat.services[0]", "vip_range: 172.23.192.0/18"


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        (
            "nat-0.evals",
            RANGE,
            "vip_range: 172.23.128.0/17",
            f"{NAT}.service_cidr: 100.64.0.0/18 is not of the length and family of 172.23.128.0/17",
        ),
        (
            "nat-0.evals",
            RANGE,
            "vip_range: 172.20.0.0/18",
            f"nat-0.evals.yaml:19: {NAT}.vip_range: 172.20.0.0/18 lies in no VIP range",
        ),
        (
            "evals-cpu-1",
            "10.128.0.0/12",
            "10.44.0.0/14",
            "evals-cpu-1.yaml:14: sites[2].prefixes[0]: 10.44.0.0/14 of training overlaps 10.45",
        ),
    ],
)
def test_a_document_that_is_wrong_by_itself_is_refused(folder, name, old, new, expected):
    altered(folder, name, old, new)
    done = check(folder)
    assert done.exit_code == 1
    assert expected in str(done.exception)


@pytest.mark.parametrize(
    ("name", "old", "new", "fault", "beside"),
    [
        (
            "router-1.hub",
            "10.128.0.0/12",
            "10.128.0.0/13",
            "14: sites[2]: training has 10.128.0.0/13, 10.251.232.0/21, fd00:10:9b:4000::/56, ",
            "evals-cpu-0.yaml:13: sites[2]); all",
        ),
        (
            "router-1.hub",
            "name: evals",
            "name: other",
            "12: sites[1].prefixes[0]: 10.45.0.0/16 of other overlaps 10.45.0.0/16 of evals",
            "evals-cpu-0.yaml:11: sites[1].prefixes[0]); an address is of one site",
        ),
        (
            "router-1.hub",
            "name: evals",
            "name: other",
            "8: sites: evals is missing",
            "evals-cpu-0.yaml:10: sites[1]); all machines must",
        ),
        (
            "evals-cpu-1",
            "10.45.2.0/28",
            "10.45.1.240/28",
            "20: ranges[0]: 10.45.1.240/28 of evals-cpu-1 overlaps 10.45.1.240/28 of evals-cpu-0",
            "evals-cpu-0.yaml:20: ranges[0]); an address has one owner: correct one of them",
        ),
        (
            "evals-cpu-1",
            "10.45.2.0/28",
            "10.45.32.0/28",
            "nat-0.evals.yaml:5: node.addresses[0]: 10.45.32.4 of nat-0.evals overlaps 10.45.32",
            "evals-cpu-1.yaml:20: ranges[0]); an address has one owner",
        ),
        (
            "nat-1.training",
            "source: snat",
            "source: preserve",
            f"19: {NAT}.vip_range: 172.20.0.0/16 of nat-1.training is claimed by nat-0.training",
            f"nat-0.training.yaml:19: {NAT}.vip_range); let one",
        ),
        (
            "nat-1.training",
            "name: nat-1.training",
            "name: nat-0.training",
            "4: node.name: nat-0.training is another machine's name, too",
            "nat-0.training.yaml:4: node.name); give every machine",
        ),
        (
            "nat-0.evals",
            "service_cidr: 100.64.0.0/18",
            "service_cidr: 100.64.64.0/18",
            "17: nat: is 172.23.192.0/18 for 100.64.64.0/18 (preserve by 10.45.32.4), and 172.23.1",
            "plan.lock.yaml:21: clusters.evals.services); render the document again",
        ),
        (
            "evals-cpu-1",
            "via: 10.45.32.4",
            "via: 10.45.32.5",
            "16: routes: is 10.254.254.0/24 via 10.45.32.5, and 10.254.254.0/24 via 10.45.32.4",
            "plan.lock.yaml:22: clusters.evals.nat); render",
        ),
        (
            "evals-cpu-1",
            "name: evals-cpu-1",
            "name: evals-cpu-90000",
            "4: node.name: the plan has no machine evals-cpu-90000",
            "plan.lock.yaml:16: clusters)",
        ),
        (
            "training-system-0",
            "172.16.0.0/12, ",
            "",
            "19: internal: is 10.0.0.0/8, 100.64.0.0/10, 192.168.0.0/16, fc00::/7, and",
            "",
        ),
    ],
)
def test_two_documents_that_disagree_are_told_with_both_lines(
    folder, name, old, new, fault, beside
):
    altered(folder, name, old, new)
    done = check(folder)
    assert done.exit_code == 1
    where = "" if fault.startswith("nat-0") else f"{name}.yaml:"
    assert f"{where}{fault}" in done.output
    place = folder / (beside if beside.startswith("plan") else f"all/{beside}")
    assert not beside or f"({place}" in done.output


def test_two_spokes_hosts_that_claim_one_range_are_refused(folder):
    """Each document is sound by itself: each believes that the range is its own spoke's."""
    altered(folder, "nat-0.evals", "172.23.192.0/18", "172.20.64.0/18")
    altered(folder, "nat-0.evals", "services: [172.20.0.0/16]", "services: [172.24.0.0/16]")
    done = check(folder)
    assert done.exit_code == 1
    assert (
        "nat-0.training.yaml:19: nat.services[0].vip_range: 172.20.0.0/16 of nat-0.training "
        "is claimed by nat-0.evals as "
        f"172.20.64.0/18 ({folder / 'all' / 'nat-0.evals.yaml'}:19: nat.services[0].vip_range)"
    ) in done.output


def test_without_a_plan_documents_are_held_against_each_other(folder, monkeypatch):
    monkeypatch.chdir(folder / "all")
    alone = ["check", "--documents", "."]
    assert "there is no plan.yaml to compare" in CliRunner().invoke(app, alone).output
    altered(folder, "evals-cpu-1", "10.45.2.0/28", "10.45.1.240/28")
    done = CliRunner().invoke(app, [*alone, "-o", "json"])
    assert done.exit_code == 1
    assert [line.partition(": ")[0] for line in json.loads(done.stdout)["errors"]] == [
        "evals-cpu-1.yaml:20"
    ]


def test_a_folder_without_documents_is_refused_with_what_to_run(folder):
    for path in (folder / "all").iterdir():
        path.unlink()
    done = check(folder)
    assert done.exit_code == 1
    assert "holds no document; run: netmgr plan render machines --to" in str(done.exception)
