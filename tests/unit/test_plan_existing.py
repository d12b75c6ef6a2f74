"""What runs already: networks as Azure's tools print them, and what changed there since."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from netmgr.plan import files
from netmgr.plan.allocate.space import enclosing
from netmgr.prefixes import Prefix
from tests.locks import all_subnets, listed_networks, lock_of

PLAN = """\
apiVersion: netmgr.io/v1alpha1
kind: NetworkPlan
name: small
pools:
  nodes: [10.0.0.0/8]
  services: [172.20.0.0/14]
clusters:
  alpha:
    services: {length: 20}
    node_pools:
      gpu: {nodes: 10}
"""
SUBSCRIPTION = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups"


def resource(group: str, name: str) -> str:
    return f"{SUBSCRIPTION}/{group}/providers/Microsoft.Network/virtualNetworks/{name}"


def vnet(group: str, name: str, *prefixes: str, **subnets: str) -> dict[str, Any]:
    return {
        "id": resource(group, name),
        "name": name,
        "resourceGroup": group,
        "addressSpace": {"addressPrefixes": list(prefixes)},
        "subnets": [
            {"name": subnet, "addressPrefix": prefix, "addressPrefixes": None}
            for subnet, prefix in subnets.items()
        ],
        "virtualNetworkPeerings": [],
    }


PROD = vnet("rg-prod", "aks-vnet", "10.224.0.0/12", aks="10.224.0.0/16")
DEV = vnet("rg-dev", "aks-vnet", "10.224.0.0/12", aks="10.224.0.0/16")
DATA = vnet("rg-data", "data", "10.50.0.0/22")


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    write(path, [PROD, DEV, DATA])
    return path


def write(plan: Path, listing: object) -> None:
    text = listing if isinstance(listing, str) else json.dumps(listing)
    (plan.parent / "vnets.json").write_text(text)


def pinned(plan: Path) -> dict[str, list[str]]:
    return yaml.safe_load(plan.read_text()).get("pinned", {})


def test_networks_of_one_name_in_two_groups_are_two_owners(run, plan, refused):
    text = refused("adopt", "vnets.json", "--yes")
    assert "vnets.json: 10.224.0.0/12 overlaps 10.224.0.0/12; they are of aks-vnet-rg-" in text
    assert f"for example --skip {SUBSCRIPTION}/rg-" in text
    assert plan.read_text() == PLAN
    write(plan, [PROD, {**DEV, "addressSpace": {"addressPrefixes": ["10.60.0.0/16"]}}])
    assert run("adopt", "vnets.json", "--yes")[0] == 0
    assert sorted(pinned(plan).values()) == [["10.224.0.0/12"], ["10.60.0.0/16"]]
    assert all(len(name) <= 32 for name in pinned(plan))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--skip", resource("RG-DEV", "aks-vnet")], ["10.224.0.0/12", "10.50.0.0/22"]),
        (["--only", "data"], ["10.50.0.0/22"]),
        (
            ["--only", resource("rg-dev", "aks-vnet"), "--only", "data", "--skip", "data"],
            ["10.224.0.0/12"],
        ),
    ],
)
def test_owners_are_chosen_and_left_out_by_name_and_id(run, plan, options, expected):
    assert run("adopt", "vnets.json", "--yes", *options)[0] == 0
    assert sorted(prefix for prefixes in pinned(plan).values() for prefix in prefixes) == expected


@pytest.mark.parametrize("option", ["--only", "--skip"])
def test_an_owner_that_is_not_listed_is_refused(refused, option):
    text = refused("adopt", "vnets.json", "--yes", option, "aks-vnet")
    assert f"{option}: the list has no 'aks-vnet'; it has aks-vnet-rg-prod" in text


def test_several_networks_of_a_clusters_name_are_not_taken_for_others(run, plan, refused):
    first, second = vnet("a", "alpha", "10.4.0.0/16"), vnet("b", "Alpha", "10.5.0.0/16")
    write(plan, [first, second])
    assert "may be the plan's alpha" in refused("adopt", "vnets.json", "--yes")
    assert run("adopt", "vnets.json", "--yes", "--as", f"{second['id']}=alpha")[0] == 0
    assert pinned(plan)["alpha"] == ["10.5.0.0/16"]
    assert ["10.4.0.0/16"] in pinned(plan).values()


def as_rest(entry: dict[str, Any]) -> dict[str, Any]:
    subnets = [
        {"name": held["name"], "properties": {"addressPrefix": held["addressPrefix"]}}
        for held in entry["subnets"]
    ]
    inner = {"addressSpace": entry["addressSpace"], "subnets": subnets}
    return {"name": entry["name"], "id": entry["id"], "properties": inner}


@pytest.mark.parametrize("shape", [PROD, [PROD], {"value": [as_rest(PROD)]}, as_rest(PROD)])
def test_what_az_and_the_rest_api_print_is_read_alike(run, plan, shape):
    write(plan, shape)
    assert run("adopt", "vnets.json", "--yes", "--as", "aks-vnet=alpha")[0] == 0
    assert pinned(plan) == {"alpha": ["10.224.0.0/12"]}
    assert "subnet aks of alpha" in plan.read_text()


NO_PREFIX = "a subnet has no name, or neither addressPrefix nor address"
NO_RANGE = "is no range: its first address has to come before"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[]", "lists no network and no prefix\n  az prints those of one subscription"),
        ('{"value": []}', "lists no network and no prefix"),
        ("", "lists no network and no prefix"),
        ('[{"name": "a",', "is no whole JSON"),
        ('{"value": [{"name": "a"}], "nextLink": "more"}', "is one page of several (nextLink)"),
        (json.dumps(PROD | {"subnets": 5}), "subnets is no list"),
        (json.dumps(PROD | {"virtualNetworkPeerings": "x"}), "virtualNetworkPeerings is no list"),
        ('{"value": [{"name": "a"}]}', "an entry has no name or no addressSpace"),
        (json.dumps(PROD | {"subnets": [{"name": "a"}]}), f"aks-vnet: {NO_PREFIX}"),
        ("office 10.8.2.0-10.8.0.0\n", f"office: 10.8.2.0-10.8.0.0 {NO_RANGE}"),
        ("office 10.8.0.0-fd00::1\n", f"office: 10.8.0.0-fd00::1 {NO_RANGE}"),
        (
            "alpha 10.4.0.0/16\nName  Group  Location\n",
            ":2: is not a name and a prefix: 'Name  Group  Location'; of az",
        ),
    ],
)
def test_what_is_no_list_is_refused_plainly(refused, plan, text, expected):
    write(plan, text)
    said = refused("adopt", "vnets.json", "--yes")
    assert f"vnets.json{'' if expected[0] == ':' else ': '}{expected}" in said
    assert plan.read_text() == PLAN


def test_a_peer_that_is_not_listed_is_avoided_and_never_taken_for_the_hub(run, plan, refused):
    peered, hub = deepcopy(DATA), resource("connectivity", "hub")
    for remote in (PROD["id"], hub):
        space = {"addressPrefixes": ["10.100.0.0/16"]}
        peering = {"remoteVirtualNetwork": {"id": remote}, "remoteAddressSpace": space}
        peered["virtualNetworkPeerings"].append(peering)
    write(plan, [PROD, peered])
    assert f"hub-peer ({hub}) may be the plan's hub" in refused("adopt", "vnets.json", "--yes")
    write(plan, [PROD, json.loads(json.dumps(peered).replace("/hub", "/office"))])
    assert run("adopt", "vnets.json", "--yes")[0] == 0
    assert pinned(plan)["office-peer"] == ["10.100.0.0/16"]
    assert len(pinned(plan)) == 3


def prefixes_of(plan: Path) -> list[tuple[str, str]]:
    held = lock_of(plan).clusters["alpha"].prefixes
    return [(str(allocation.prefix), str(allocation.reserve)) for allocation in held]


@pytest.mark.parametrize("growth", ["nodes: 10", "nodes: 60", "nodes: 10, grow_to: 200"])
def test_a_pinned_prefix_keeps_its_size(run, plan, growth):
    plan.write_text(f"{PLAN}pinned: {{alpha: [10.4.0.0/22]}}\n".replace("nodes: 10", growth))
    assert run("lock", "--yes")[0] == 0
    first, *others = prefixes_of(plan)
    assert first == ("10.4.0.0/22", "10.4.0.0/22")
    assert bool(others) == (growth != "nodes: 10")
    plan.write_text(plan.read_text().replace(growth, "nodes: 300"))
    assert run("lock", "--yes")[0] == 0
    assert run("check")[0] == 0
    assert ("10.4.0.0/22", "10.4.0.0/22") in prefixes_of(plan)


def test_neighbours_of_one_network_stay_two_prefixes(run, plan):
    plan.write_text(f"{PLAN}pinned: {{alpha: [10.4.0.0/22, 10.4.4.0/22]}}\n")
    assert run("lock", "--yes")[0] == 0
    spaces = {held["name"]: held["addressSpace"] for held in listed_networks(plan)}
    assert spaces["alpha"] == {"addressPrefixes": ["10.4.0.0/22", "10.4.4.0/22"]}


def test_what_was_locked_in_a_prefix_that_is_pinned_later_becomes_part_of_it(run, plan):
    run("lock", "--yes")
    ((held, _),) = prefixes_of(plan)
    before = list(all_subnets(lock_of(plan)))
    whole = str(enclosing(Prefix.parse(held), 20))
    plan.write_text(f"{PLAN}pinned: {{alpha: [{whole}]}}\n")
    assert run("lock", "--yes")[0] == 0
    assert prefixes_of(plan) == [(whole, whole)]
    assert list(all_subnets(lock_of(plan))) == before


def test_hosts_and_pods_share_an_existing_subnet_that_is_the_whole_network(run, plan):
    adopted = f"{PLAN}pinned: {{alpha: [10.4.0.0/20]}}\n"
    plan.write_text(adopted.replace("{nodes: 10}", "{nodes: 10, subnets: [10.4.0.0/20]}"))
    assert run("lock", "--yes")[0] == 0
    assert run("check")[0] == 0
    (segment,) = lock_of(plan).clusters["alpha"].node_pools["gpu"].segments
    assert str(segment.v4.subnet) == "10.4.0.0/20"
    assert segment.v4.subnet.holds(segment.v4.host(0))
    assert segment.v4.subnet.covers(segment.v4.node_blocks(segment.nodes - 1)[-1])


PINNED = f"{PLAN}pinned: {{alpha: [10.4.0.0/22]}}\nexclude: [{{prefix: 10.4.3.0/24}}]\n"


def altered(networks: list[dict[str, Any]], change: str) -> list[dict[str, Any]]:
    """The hub's network and the cluster's with one change, or another network."""
    (alpha,) = (held for held in networks if held["name"] == "alpha")
    subnets = {subnet["name"]: subnet for subnet in alpha["subnets"]}
    spaces = {
        "grown network": ["10.4.0.0/21"],
        "another prefix": ["10.4.0.0/22", "10.77.0.0/24"],
        "shrunk network": ["10.4.0.0/23"],
        "divided": ["10.4.0.0/23", "10.4.2.0/23"],
    }
    added = {
        "shrunk subnet": {"name": "alpha-gpu", "addressPrefixes": ["10.4.0.0/24"]},
        "foreign subnet": {"name": "bastion", "addressPrefix": "10.4.2.64/26"},
        "excluded subnet": {"name": "live", "addressPrefix": "10.4.3.0/26"},
    }
    if change in spaces:
        alpha["addressSpace"]["addressPrefixes"] = spaces[change]
    elif change in added:
        alpha["subnets"] = list((subnets | {added[change]["name"]: added[change]}).values())
    elif change == "gone subnet":
        alpha["subnets"].remove(subnets["alpha-gpu"])
    elif change == "gone network":
        networks.remove(alpha)
    elif change != "none":
        networks.append(vnet("rg", "other", change.partition(" at ")[2]))
    return networks


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("none", None),
        ("divided", None),
        ("excluded subnet", None),
        ("network at 192.168.0.0/16", None),
        ("grown network", ("clusters.alpha", "grown: network alpha 10.4.0.0/22 is 10.4.0.0/21")),
        ("another prefix", ("clusters.alpha", "grown: network alpha 10.77.0.0/24")),
        ("shrunk network", ("clusters.alpha", "shrunk: network alpha 10.4.0.0/22 is 10.4.0.0/23")),
        (
            "shrunk subnet",
            ("clusters.alpha", "shrunk: subnet of alpha 10.4.0.0/23 is 10.4.0.0/24"),
        ),
        ("foreign subnet", ("clusters.alpha", "foreign: subnet of alpha 10.4.2.64/26")),
        ("gone subnet", ("clusters.alpha", "gone: subnet of alpha 10.4.0.0/23")),
        ("gone network", ("clusters.alpha", "gone: network alpha 10.4.0.0/22")),
        (
            "network at 10.6.0.0/16",
            ("pools", "foreign: network other, neither pinned nor excluded, 10.6.0.0/16"),
        ),
    ],
)
def test_drift_of_the_cloud_is_an_error_a_line(run, plan, change, expected):
    plan.write_text(PINNED)
    assert run("lock", "--yes")[0] == 0
    write(plan, altered(listed_networks(plan), change))
    code, text = run("check", "--existing", "vnets.json", "-o", "json")
    errors = [finding for finding in json.loads(text)["findings"] if finding["severity"] == "error"]
    assert [(line["key"], line["message"]) for line in errors] == ([expected] if expected else [])
    assert code == (1 if expected else 0)
    if expected:
        assert f"{expected[0]}: {expected[1]}\n" in run("check", "--existing", "vnets.json")[1]


def test_a_network_of_another_name_is_compared_as_the_cluster_that_is_named(run, plan):
    plan.write_text(PINNED)
    assert run("lock", "--yes")[0] == 0
    text = json.dumps(listed_networks(plan)).replace('"alpha"', '"vnet_ALPHA.prod"')
    text = text.replace("/alpha", "/x")
    write(plan, text)
    assert "gone: network alpha" in run("check", "--existing", "vnets.json")[1]
    named = ("--existing", "vnets.json", "--as", "vnet_ALPHA.prod=alpha")
    assert run("check", *named)[0] == 0
    write(plan, [*json.loads(text), DATA])
    assert run("check", *named)[0] == 1
    assert run("check", *named, "--skip", "data")[0] == 0


def test_a_list_of_prefixes_has_no_subnets_that_could_be_gone(run, plan):
    plan.write_text(PINNED)
    run("lock", "--yes")
    hub = lock_of(plan).hub.prefixes[0].prefix
    write(plan, f"hub {hub}\nalpha 10.4.0.0/22\n")
    assert run("check", "--existing", "vnets.json")[0] == 0


def test_drift_before_the_first_lock_names_the_command(refused):
    text = refused("check", "--existing", "vnets.json", "--skip", DEV["id"])
    assert "run: netmgr plan lock" in text


AKS = (
    PLAN.replace("[172.20.0.0/14]", "[10.0.0.0/16]")
    .replace("{length: 20}", "{length: 16, prefix: 10.0.0.0/16}")
    .replace("clusters:", "exclude: [{prefix: 10.0.0.0/15, reason: AKS}]\nclusters:")
)
KUBEADM = PLAN.replace("{length: 20}", "{mode: shared, length: 20}").replace(
    "clusters:",
    "exclude: [{prefix: 10.96.0.0/12}]\nshared_services: 10.96.0.0/12\nclusters:",
)


@pytest.mark.parametrize(("text", "expected"), [(AKS, "10.0.0.0/16"), (KUBEADM, "10.96.0.0/20")])
def test_services_may_have_what_is_excluded_from_the_nodes(run, plan, text, expected):
    plan.write_text(text)
    for command in (("lock", "--yes"), ("check",), ("reach",), ("render", "terraform")):
        assert run(*command)[0] == 0
    lock = lock_of(plan)
    assert str(lock.clusters["alpha"].services.prefix) == expected
    excluded = files.load_plan(plan).exclude[0].prefix
    assert not any(prefix.overlaps(excluded) for prefix in all_subnets(lock))
    run("render", "machines", "--to", "all")
    assert run("check", "--documents", "all")[0] == 0
    assert run("lock", "--yes")[1].endswith("nothing to do\n")


@pytest.mark.parametrize(
    ("text", "old", "new", "expected"),
    [
        (AKS, "10.0.0.0/15", "10.0.0.0/17", "pools.services[0]: 10.0.0.0/16 overlaps 10.0.0.0/8"),
        (AKS, "[10.0.0.0/8]", "[10.0.0.0/17]", "nothing is free"),
        (KUBEADM, "prefix: 10.96.0.0/12", "prefix: 10.96.0.0/13", "shared_services: 10.96.0.0/12"),
    ],
)
def test_services_may_not_have_what_nodes_may_get(refused, plan, text, old, new, expected):
    assert old in text
    plan.write_text(text.replace(old, new))
    assert expected in refused("lock", "--yes")


def test_what_is_excluded_within_a_pool_of_services_stays_so(run, plan):
    """All but one range of the cluster's size is."""
    inner = ("10.0.0.0/18", "10.0.80.0/20", "10.0.96.0/19", "10.0.128.0/17")
    excluded = "".join(f"- prefix: {prefix}\n" for prefix in ("10.0.0.0/15", *inner))
    text = PLAN.replace("[172.20.0.0/14]", "[10.0.0.0/16]") + f"exclude:\n{excluded}"
    plan.write_text(text)
    assert run("lock", "--yes")[0] == 0
    assert str(lock_of(plan).clusters["alpha"].services.prefix) == "10.0.64.0/20"
    plan.write_text(text.replace("{length: 20}", "{length: 20, prefix: 10.0.16.0/20}"))
    assert "10.0.16.0/20 overlaps 10.0.0.0/18" in run("lock", "--yes")[1]
