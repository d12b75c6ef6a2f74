"""The commands of `netmgr plan`, as their user meets them: what they print, write and exit with."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from netmgr.cli.plan_common import answer, load
from netmgr.cli.plan_lock import _settle
from netmgr.errors import StateError
from netmgr.plan.files import lock_path
from tests.builders import SMALL_PLAN as PLAN

SAMPLES = Path(__file__).parents[2] / "configs" / "plan"


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def read(path: Path) -> dict:
    return yaml.safe_load(path.read_text())


def test_nothing_is_written_without_consent(run, plan):
    code, text = run("lock")
    assert code == 3
    assert "+ clusters.alpha.prefixes" in text
    assert "Nothing was written" in text
    assert not lock_path(plan).exists()


def test_a_lock_that_answers_its_plan_is_left_alone(locked, lock):
    before = lock.stat()
    assert locked("lock", "--yes") == (0, f"{lock} is up to date: nothing to do\n")
    assert lock.stat().st_mtime_ns == before.st_mtime_ns
    assert locked("diff")[0] == 0


def test_renumbering_is_refused_and_shown(locked, plan, lock, refused):
    before = lock.read_bytes()
    # As many pods as fit into the blocks that there are renumber nobody.
    edit(plan, "pods_per_node: 31", "pods_per_node: 32")
    assert "No address changes" in locked("diff")[1]
    edit(plan, "pods_per_node: 32", "pods_per_node: 33")
    assert "--renumber" in refused("lock", "--yes")
    assert lock.read_bytes() == before
    code, text = locked("diff")
    assert (code, "-/+ clusters.alpha.node_pools.gpu[0]" in text) == (3, True)
    assert locked("lock", "--yes", "--renumber")[0] == 0
    assert locked("diff")[0] == 0


def test_a_removed_cluster_keeps_its_addresses_until_it_is_released(locked, plan, lock, refused):
    held = read(lock)["clusters"]["alpha"]
    without = PLAN[: PLAN.index("  alpha:")] + PLAN[PLAN.index("  beta:") :]
    plan.write_text(without)
    assert "tombstone" in locked("lock", "--yes")[1]
    assert read(lock)["clusters"]["alpha"] == {"tombstone": True, **held}
    plan.write_text(PLAN)
    assert "back in the plan" in locked("lock", "--yes")[1]
    assert read(lock)["clusters"]["alpha"] == held
    assert "take it out of plan.yaml first" in refused("release", "alpha", "--yes")
    plan.write_text(without)
    assert locked("lock", "--yes")[0] == 0
    assert locked("release", "alpha", "--yes")[0] == 0
    assert "alpha" not in read(lock)["clusters"]
    refused("release", "alpha", "--yes")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "nodes: 500, pods_per_node: 31",
            "nodes: 5, addressing: single, pods_per_node: 300",
            "addresses of a scale set's NIC",
        ),
        ("clusters:", "limits: {mappings_per_peered_group: 1500}\nclusters:", "hub and its peers"),
        (
            "[10.0.0.0/12]\n  services: [172.16.0.0/16]",
            (
                "[10.0.0.0/12, 168.63.0.0/16]\n  services: [172.16.0.0/16]\npinned: {alpha: "
                "[168.63.128.0/20]}"
            ),
            "168.63.129.16/32, which Azure forbids",
        ),
    ],
)
def test_what_its_own_check_would_not_accept_is_not_locked(
    plan, refused, contradicted, old, new, says
):
    edit(plan, old, new)
    contradicted(says)
    assert "plan.yaml:" in refused("lock", "--yes")
    assert not lock_path(plan).exists()


def test_growth_that_fits_is_free(locked):
    code, text = locked("grow", "beta", "--nodes", "300")
    assert "scale" in text
    assert "Nothing moves" in text
    assert "widen" not in text
    assert code == 3


def test_growth_beyond_the_subnets_lists_what_must_follow(locked, lock):
    before = lock.read_bytes()
    code, text = locked("grow", "alpha", "--nodes", "1500", "-o", "json")
    found = json.loads(text)
    assert code == 3
    assert found["kept"] == found["of"] > 900
    assert {change["kind"] for change in found["changes"]} <= {"+", "~"}
    todo = {step["what"] for step in found["to_do"]}
    assert {"widen address space", "sync peering", "make subnet", "stays", "make machines"} <= todo
    assert lock.read_bytes() == before


def test_growth_that_takes_address_space_from_a_live_network_says_so_and_in_which_order(
    locked, plan
):
    edit(plan, "10.0.0.0/12", "10.0.0.0/9")
    lock_path(plan).unlink()
    assert locked("lock", "--yes")[0] == 0
    found = json.loads(locked("grow", "alpha", "--nodes", "26000", "-o", "json")[1])["to_do"]
    listed = [(step["what"], step["where"]) for step in found]
    assert listed[:3] == [
        ("narrow address space", "alpha"),
        ("sync peering", "hub_to_alpha"),
        ("make VNet", "alpha_2"),
    ]
    assert ("widen address space", "alpha") not in listed
    assert listed.count(("sync peering", "hub_to_alpha")) == 1
    edit(plan, "nodes: 500", "nodes: 26000")
    first = "terraform apply -target=azurerm_virtual_network_peering.hub_to_alpha"
    for command in (("diff",), ("lock", "--yes")):
        text = locked(*command)[1]
        assert "VNet alpha loses address space: 10.104.0.0/16 becomes 10.104.0.0/17" in text
        assert first in text
    assert "loses address space" not in locked("grow", "beta", "--nodes", "300")[1]


def test_growth_that_does_not_fit_says_what_is_missing_and_in_the_way(locked, plan):
    code, text = locked("grow", "alpha", "--nodes", "60000")
    assert code == 1
    assert f"{plan}:11: clusters.alpha.node_pools.gpu.nodes: " in text
    assert "too few; the largest request is clusters.alpha.node_pools.gpu" in text
    assert "in the way of growing in place" in text


@pytest.mark.parametrize("asked", ["15000", "60000"])
def test_growth_that_does_not_fit_says_how_many_nodes_would(locked, plan, refused, asked):
    text = locked("grow", "beta", "--nodes", asked)[1]
    nodes = int(re.search(r"([\d,]+) nodes of beta/cpu would fit", text)[1].replace(",", ""))
    assert 400 < nodes < int(asked)
    assert locked("grow", "beta", "--nodes", str(nodes))[0] == 3
    assert locked("grow", "beta", "--nodes", str(nodes + 1))[0] == 1
    # Nodes that are declared are nodes that must fit.
    edit(plan, "grow_to: 400", f"grow_to: {asked}")
    assert f"{nodes:,} nodes of beta/cpu would fit" in refused("lock", "--yes")


def test_a_cluster_that_finds_no_room_at_all_is_told_so(plan, refused):
    edit(plan, "10.0.0.0/12", "10.0.0.0/22")
    edit(plan, "nodes: 500", "nodes: 3")
    edit(plan, "nodes: 100, pods_per_node: 60, grow_to: 400", "nodes: 9")
    said = refused("lock", "--yes")
    assert "no node of alpha/gpu fits; add a prefix to pools.nodes" in said


def test_the_node_pool_that_grows_can_be_chosen(locked, plan, refused):
    edit(plan, "31}", "31}\n      small: {nodes: 10, surge: 0}")
    assert locked("lock", "--yes")[0] == 0
    grow = ("grow", "alpha", "--nodes", "700", "--pool")
    changes = json.loads(locked(*grow, "small", "-o", "json")[1])["changes"]
    grown = [change["key"] for change in changes if "node_pools" in change["key"]]
    assert grown == ["clusters.alpha.node_pools.small[1]"]
    for wrong in (
        (*grow, "none"),
        ("grow", "alpha", "--nodes", "7"),
        ("grow", "gamma", "--nodes", "7"),
    ):
        refused(*wrong)


def test_the_hub_grows_without_moving(locked, plan, lock):
    before = read(lock)["hub"]
    plan.write_text(plan.read_text() + "hub: {researchers: 900, routers: 6}\n")
    assert locked("lock", "--yes")[0] == 0
    after = read(lock)["hub"]
    assert after["researchers"][:1] == before["researchers"]
    assert len(after["researchers"]) == 2
    assert after["routers"]["addresses"][:2] == before["routers"]["addresses"]
    assert len(after["routers"]["addresses"]) == 6


def test_a_lock_that_somebody_else_wrote_meanwhile_is_not_overwritten(locked, plan, lock):
    edit(plan, "nodes: 500", "nodes: 3000")
    mine = load(plan)
    edit(plan, "nodes: 3000", "nodes: 6000")
    assert locked("lock", "--yes")[0] == 0
    theirs = lock.read_bytes()
    with pytest.raises(StateError, match="was changed meanwhile; run the command again"):
        _settle(mine, answer(mine), yes=True)
    assert lock.read_bytes() == theirs


@pytest.mark.parametrize(
    ("address", "role", "more"),
    [
        ("10.8.0.4", "node", "alpha-gpu-0"),
        ("10.8.3.240", "pod", "alpha-gpu-0"),
        ("8.8.8.8", "internet", "masqueraded"),
        ("169.254.1.1", "special use", "RFC 6890"),
    ],
)
def test_an_address_is_explained(locked, address, role, more):
    code, text = locked("explain", address, "-o", "json")
    assert code == 0
    assert json.loads(text)["role"] == role
    assert more in text


def test_everything_locked_is_explained_by_its_owner(locked, lock):
    hub, (alpha, beta) = read(lock)["hub"], read(lock)["clusters"].values()
    asked = {
        hub["routers"]["addresses"][0]: ("router", "hub"),
        alpha["nat"]["addresses"][1]: ("NAT host", "alpha"),
        beta["node_pools"]["cpu"]["segments"][0]["v4"]["host_base"]: ("node", "beta"),
        alpha["services"]["prefix"].partition("/")[0]: ("Service", "alpha"),
        hub["researchers"][0]["prefix"].partition("/")[0]: ("researcher", "hub"),
    }
    for address, (role, cluster) in asked.items():
        found = json.loads(locked("explain", address, "-o", "json")[1])
        assert (found["role"], found["cluster"]) == (role, cluster)
        assert found["because"].startswith("lock: ")


def test_an_upgrade_that_would_run_out_of_places_is_found_by_its_surge(locked, plan):
    edit(plan, "pods_per_node: 31}", "pods_per_node: 31, surge: 400}")
    assert locked("check")[0] == 3
    edit(plan, "surge: 400", "surge: 5000")
    code, text = locked("check")
    assert code == 3
    assert "5,500 nodes with surge, but places for 992 in the lock" in text
    edit(plan, "surge: 5000", "surge: 60000")
    code, text = locked("check")
    assert code == 2
    assert "too few" in text


def test_adopted_prefixes_are_pinned_and_the_rest_of_the_plan_is_untouched(run, plan, tmp_path):
    before = plan.read_text()
    listed = tmp_path / "list"
    listed.write_text("Alpha 10.4.0.0/16\n")
    assert run("adopt", str(listed))[0] == 3
    assert plan.read_text() == before
    assert run("adopt", str(listed), "--yes")[0] == 0
    listed.write_text("name,prefix\ncorp,10.8.0.0/16\n")
    assert run("adopt", str(listed), "--yes")[0] == 0
    assert run("adopt", str(listed), "--yes")[1].endswith("nothing to do\n")
    assert plan.read_text().startswith(before)
    assert read(plan)["pinned"] == {"corp": ["10.8.0.0/16"], "alpha": ["10.4.0.0/16"]}
    assert run("lock", "--yes")[0] == 0
    assert read(lock_path(plan))["clusters"]["alpha"]["prefixes"] == [
        {"prefix": "10.4.0.0/16", "reserve": "10.4.0.0/16"}
    ]


def test_what_is_locked_is_shown_as_table_tree_json_and_yaml(locked, lock):
    document = read(lock)
    prefix = document["clusters"]["alpha"]["prefixes"][0]["prefix"]
    assert prefix in locked("show")[1]
    assert prefix in locked("show", "--tree")[1]
    assert json.loads(locked("show", "-o", "json")[1]) == document
    assert yaml.safe_load(locked("show", "-o", "yaml")[1]) == document


def test_twenty_clusters_of_7500_nodes_are_locked_and_sound(run, plan):
    plan.write_text((SAMPLES / "twenty-clusters.yaml").read_text())
    assert run("lock", "--yes")[0] == 0
    code, text = run("check", "-o", "json")
    found = json.loads(text)
    assert code == 0
    assert sum(each["nodes"] for each in found["growth"]) == 20 * 7500
    over = [line["what"] for line in found["limits"] if line["status"] == "over"]
    assert {what for what in over if "Kubernetes" not in what} == {"public IPs of a region"}


def test_the_sample_is_locked_checked_and_grown_as_the_golden_files_say(run, plan, golden):
    plan.write_text((SAMPLES / "plan.yaml").read_text())
    assert run("lock", "--yes")[0] == 0
    golden("plan/sample.lock.yaml", lock_path(plan).read_text())
    shown = [run("check", "--all"), run("grow", "training", "--nodes", "6000")]
    assert [code for code, _ in shown] == [0, 3]
    text = "\n".join(text for _, text in shown).replace(str(plan), "plan.yaml")
    golden("plan/sample.txt", re.sub(r"are \d+ months old", "are N months old", text))
