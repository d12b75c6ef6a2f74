"""Taking over what runs already: VNets with their subnets as the cloud prints them, node pools'
subnets, Services.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from netmgr.cli import plan_lock
from netmgr.errors import Exit
from netmgr.plan import files, machines
from netmgr.prefixes import Address, Prefix
from tests.locks import all_subnets, listed_networks, lock_of

PLAN = """\
apiVersion: netmgr.io/v1alpha1
kind: NetworkPlan
name: small
pools:
  nodes: [10.0.0.0/12]
  services: [172.16.0.0/14]
clusters:
  alpha:
    services: {length: 20}
    node_pools:
      gpu: {nodes: 500, pods_per_node: 31}
      small: {nodes: 20}
  beta:
    node_pools:
      cpu: {nodes: 100}
"""
TAKEN_OVER = (
    PLAN.replace("clusters:", "pinned:\n  alpha: [10.4.0.0/16]\nclusters:")
    .replace("length: 20", "length: 20, prefix: 172.18.64.0/20")
    .replace(
        "{nodes: 500, pods_per_node: 31}",
        """
        nodes: 500
        pods_per_node: 31
        subnets:
          - 10.4.16.0/20
          - 10.4.32.0/19""",
    )
)
VNETS = [
    {
        "addressSpace": {"addressPrefixes": ["10.4.0.0/16"]},
        "dhcpOptions": {"dnsServers": []},
        "location": "eastus",
        "name": "Alpha",
        "subnets": [
            {"addressPrefix": "10.4.0.0/17", "name": "nodes", "ipConfigurations": []},
            {
                "name": "b",
                "addressPrefix": None,
                "addressPrefixes": ["10.4.192.0/24", "10.4.193.0/24"],
            },
        ],
        "virtualNetworkPeerings": [],
    },
    {"name": "hub", "addressSpace": {"addressPrefixes": ["10.9.0.0/24"]}, "subnets": []},
    {
        "name": "corp",
        "addressSpace": {"addressPrefixes": ["10.8.0.0/16"]},
        "subnets": [{"name": "a", "addressPrefix": "10.8.1.0/24"}],
    },
]
"""As `az network vnet list` prints them, shortened: one prefix of a subnet alone, several in a
list.
"""
LIVE = ("10.4.0.0/17", "10.4.192.0/24", "10.4.193.0/24")


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    (tmp_path / "vnets.json").write_text(json.dumps(VNETS))
    return path


def read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("exclude", ["", "exclude:\n- prefix: 10.15.0.0/16\n  reason: office\n"])
def test_nothing_is_allocated_from_a_live_subnet(run, plan, exclude):
    plan.write_text(PLAN + exclude)
    code, text = run("adopt", "vnets.json", "--yes")
    assert code == 0
    assert "  + exclude: 10.4.0.0/17 (subnet nodes of alpha, left as it is)" in text
    after = read(plan)
    assert [each["prefix"] for each in after["exclude"][:3]] == list(LIVE)
    own = {"alpha": ["10.4.0.0/16"], "hub": ["10.9.0.0/24"], "corp": ["10.8.0.0/16"]}
    assert after["pinned"] == own
    assert run("adopt", "vnets.json", "--yes")[1].endswith("nothing to do\n")
    assert run("lock", "--yes")[0] == 0
    assert run("check")[0] == 0
    live, subnets = map(Prefix.parse, LIVE), list(all_subnets(lock_of(plan)))
    assert not any(prefix.overlaps(other) for other in live for prefix in subnets)
    assert "exclude[0] subnet nodes of alpha" in run("explain", "10.4.0.5")[1]
    assert any(Prefix.parse("10.4.0.0/16").covers(prefix) for prefix in subnets)
    assert run("lock", "--yes")[1].endswith("nothing to do\n")


def test_an_edit_that_was_made_while_the_question_waited_is_kept(run, plan, monkeypatch):
    edited = f"{PLAN}# by a colleague\n"

    def asks(path: Path, _output: object) -> bool:
        path.write_text(edited)
        return True

    monkeypatch.setattr(plan_lock, "is_wanted", asks)
    code, text = run("adopt", "vnets.json")
    assert (code, plan.read_text()) == (Exit.FAILURE, edited)
    assert f"{plan}: was changed meanwhile; run the command again" in text


def test_a_range_is_pinned_as_the_prefixes_that_it_consists_of(run, plan):
    listed = "name,prefix\noffice,10.8.0.0-10.8.2.255\nlab,2001:db8::5-2001:db8::7\n"
    (plan.parent / "ipam.csv").write_text(listed)
    assert run("adopt", "ipam.csv", "--yes")[0] == 0
    assert read(plan)["pinned"] == {
        "lab": ["2001:db8::5/128", "2001:db8::6/127"],
        "office": ["10.8.0.0/23", "10.8.2.0/24"],
    }


def test_subnets_that_netmgr_made_itself_are_not_live_ones(locked, plan):
    networks = listed_networks(plan)
    assert sum(len(vnet["subnets"]) for vnet in networks) == 7
    (plan.parent / "own.json").write_text(json.dumps(networks))
    assert locked("adopt", "own.json", "--yes")[0] == 0
    assert "exclude" not in read(plan)
    assert "No address changes" in locked("lock", "--yes")[1]


def test_a_live_subnet_that_was_locked_over_is_named(run, plan, contradicted):
    plan.write_text(PLAN + "pinned:\n  alpha:\n    - 10.4.0.0/16\n")
    assert run("lock", "--yes")[0] == 0
    assert run("adopt", "vnets.json", "--yes")[0] == 0
    contradicted("exclude[0]: 10.4.0.0/17 is excluded, but alpha has its subnet 10.4.")


def test_a_network_of_another_name_is_taken_for_the_cluster_that_is_named(run, plan, refused):
    listed = plan.parent / "vnets.json"
    listed.write_text(listed.read_text().replace('"Alpha"', '"vnet_ALPHA.prod"'))
    for wrong, expected in (
        ("other=alpha", "the list has no 'other'"),
        ("alpha", "--as alpha: has to be OWNER=SITE"),
        ("corp=gamma", "the plan has no cluster 'gamma'"),
    ):
        assert expected in refused("adopt", "vnets.json", "--as", wrong)
    both = ("--as", "vnet_ALPHA.prod=alpha", "--as", "corp=beta")
    assert run("adopt", "vnets.json", *both, "--yes")[0] == 0
    after = read(plan)
    own = {"alpha": ["10.4.0.0/16"], "hub": ["10.9.0.0/24"], "beta": ["10.8.0.0/16"]}
    assert after["pinned"] == own
    assert [each["prefix"] for each in after["exclude"]] == [*LIVE, "10.8.1.0/24"]


def test_a_running_cluster_keeps_its_subnets_and_services(run, plan):
    plan.write_text(TAKEN_OVER)
    assert run("lock", "--yes")[0] == 0
    assert run("check")[0] == 0
    lock = lock_of(plan)
    alpha = lock.clusters["alpha"]
    assert str(alpha.services.prefix) == str(alpha.services.hub_prefix) == "172.18.64.0/20"
    first, second, third = alpha.node_pools["gpu"].segments
    assert [str(each.v4.subnet) for each in (first, second)] == ["10.4.16.0/20", "10.4.32.0/19"]
    assert (first.nodes, second.first, second.nodes) == (123, 123, 247)
    assert alpha.node_pools["gpu"].capacity >= 550
    assert third.first == 370
    node = machines.node_owning(lock, Address.parse("10.4.32.5"))
    assert (node.name, [str(each) for each in node.hosts]) == ("alpha-gpu-124", ["10.4.32.5"])
    assert run("render", "node", "alpha-gpu-123")[0] == 0
    assert run("lock", "--yes")[1].endswith("nothing to do\n")
    plan.write_text(TAKEN_OVER.replace("nodes: 500", "nodes: 1500"))
    assert run("lock", "--yes")[0] == 0
    grown = lock_of(plan).clusters["alpha"]
    assert grown.node_pools["gpu"].segments[:3] == alpha.node_pools["gpu"].segments


def test_a_pin_that_comes_later_moves_nothing(run, plan, refused):
    plan.write_text(PLAN.replace("clusters:", "pinned:\n  alpha: [10.4.0.0/16]\nclusters:"))
    assert run("lock", "--yes")[0] == 0
    plan.write_text(TAKEN_OVER)
    text = refused("lock", "--yes")
    assert "services.prefix: is pinned to 172.18.64.0/20, but alpha has its Services at 172" in text
    assert "subnets[0]: is pinned, but nodes from 0 on have 10.4." in text
    assert run("lock", "--yes", "--renumber")[0] == 0
    assert run("check")[0] == 0
    assert Prefix.parse("10.4.16.0/20") in set(all_subnets(lock_of(plan)))


FIRST, SECOND, SERVICES = "10.4.16.0/20", "10.4.32.0/19", "172.18.64.0/20"


@pytest.mark.parametrize(
    ("old", "new", "key", "expected"),
    [
        (FIRST, "10.6.0.0/25", "subnets[0]", "10.6.0.0/25 lies in no prefix that is"),
        (SECOND, "10.4.16.0/24", "subnets[1]", "10.4.16.0/24 overlaps 10.4.16.0/20 ("),
        (SECOND, "10.4.1.0/30", "subnets[1]", "no node fits"),
        (SECOND, "[10.4.32.0/19, 'fd00::/65']", "subnets[1]", "fd00::/65 is smaller than a /64"),
        (SECOND, "[10.4.32.0/20, 10.4.48.0/20]", "subnets[1]", "a subnet has one IPv4 prefix"),
        (SERVICES, "172.30.64.0/20", "services.prefix", "172.30.64.0/20 lies in no pool"),
        (SERVICES, "172.18.64.0/21", "services.prefix", "is a /21; say length: 21 beside it"),
        (
            f"{SERVICES}}}",
            f"{SERVICES}, prefix_v6: 172.18.64.0/20}}",
            "services.prefix_v6",
            "is not IPv6",
        ),
        (
            "  beta:\n",
            f"  beta:\n    services: {{length: 20, prefix: {SERVICES}}}\n",
            "beta.services.prefix",
            f"{SERVICES} overlaps {SERVICES} (line 11)",
        ),
        (FIRST, "'fd00::/64'", "subnets[0]", "a subnet has one IPv4 prefix"),
        (
            "clusters:",
            "exclude: [{prefix: 10.4.16.0/24}]\nclusters:",
            "exclude[0]",
            "10.4.16.0/24 overlaps 10.4.16.0/20 (line 18)",
        ),
    ],
)
def test_a_pin_that_cannot_be_is_refused_by_its_key(refused, plan, old, new, key, expected):
    assert old in TAKEN_OVER
    plan.write_text(TAKEN_OVER.replace(old, new, 1))
    assert f"{key}: {expected}" in refused("lock", "--yes")
    assert not files.lock_path(plan).exists()
