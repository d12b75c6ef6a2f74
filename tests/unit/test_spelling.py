"""'Did you mean': what is near a misspelt key, command or option is named, and nothing else."""

from __future__ import annotations

import pytest
import yaml

from netmgr.documents import loader
from netmgr.documents.node import NodeDocument
from netmgr.errors import ConfigError
from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import LockDocument
from tests.builders import NODE_KEYS, SMALL_PLAN

NODE = {**NODE_KEYS, "node": {"name": "one"}, "ranges": ["10.9.0.0/28"]}
SITES = [{"name": "hub", "prefixes": ["10.0.0.0/20"]}]


def refusal(content: object, model: type = NodeDocument) -> str:
    with pytest.raises(ConfigError) as refused:
        loader.parse(yaml.safe_dump(content), "document", model)
    return str(refused.value)


@pytest.mark.parametrize(
    ("content", "key", "meant"),
    [
        *(
            ({key: 1}, key, meant)
            for key, meant in (
                ("rnages", "ranges"),
                ("mut", "mtu"),
                ("cin", "cni"),
                ("masqerade", "masquerade"),
                ("reader-group", "reader_group"),
                ("logLevel", "log_level"),
                ("api_version", "apiVersion"),
            )
        ),
        ({"pool": {"cooldown_second": 1}}, "pool.cooldown_second", "cooldown_seconds"),
        ({"node": {"name": "one", "adresses": []}}, "node.adresses", "addresses"),
        ({"sites": [{**SITES[0], "service": []}]}, "sites[0].service", "services"),
        ({"nat": {"service": []}}, "nat.service", "services"),
        ({"accounting": {"classes": [{"name": "hub", "sites": ""}]}}, "classes[0].sites", "site"),
        (
            {"limits": [{"pods": "a/b", "per-day": {"internet_out": "1G", "internet-uot": 1}}]},
            "limits[0].per-day.internet-uot",
            "internet-out",
        ),
        ({"limits": [{"pods": "a/b", "per-dya": {}}]}, "limits[0].per-dya", "per-day"),
    ],
    ids=lambda argument: argument if isinstance(argument, str) else "",
)
def test_a_misspelt_key_of_a_node_is_recognised_at_any_depth(content, key, meant):
    assert f"{key}: unknown key; did you mean {meant}?" in refusal({**NODE, **content})


@pytest.mark.parametrize(
    ("path", "key", "meant"),
    [
        ("", "polls", "pools"),
        ("hub.", "router", "routers"),
        ("clusters.alpha.", "nodepools", "node_pools"),
        ("clusters.services.services.", "lenght", "length"),
        ("clusters.services.", "nodepools", "node_pools"),
        ("clusters.alpha.node_pools.surge.", "pod_per_node", "pods_per_node"),
    ],
)
def test_names_in_a_plan_are_not_taken_for_its_keys(path, key, meant):
    plan = yaml.safe_load(SMALL_PLAN)
    cluster = next(iter(plan["clusters"].values()))
    plan["clusters"] = {
        "alpha": {**cluster, "node_pools": {"surge": {"nodes": 3}}},
        "services": {**cluster, "services": {}},
    }
    part = plan
    for name in path.split(".")[:-1]:
        part = part.setdefault(name, {})
    part[key] = 1
    assert f"{path}{key}: unknown key; did you mean {meant}?" in refusal(plan, PlanDocument)


def test_a_misspelt_key_of_a_lock_is_recognised():
    assert "cluster: unknown key; did you mean clusters?" in refusal({"cluster": {}}, LockDocument)


@pytest.mark.parametrize(
    "key", ["foo", "log", "internet", "rules", "mode", "spec", "ipam", "podCIDR", "gateway", "x"]
)
def test_nothing_is_suggested_for_a_key_that_is_like_none(key):
    said = refusal({**NODE, key: 1})
    assert f"{key}: unknown key; remove it or correct its spelling" in said


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("noode", "Did you mean 'node'?"),
        ("node stauts", "Did you mean 'status'?"),
        ("plan rendr", "Did you mean 'render'?"),
        ("plan render kubernets", "Did you mean 'kubernetes'"),
        ("node status --sockt x", "--socket"),
        ("plan grow alpha --nodse 3", "--nodes"),
    ],
)
def test_misspelt_commands_and_options_are_recognised(netmgr, line, meant):
    assert meant in netmgr(*line.split())[2]


@pytest.mark.parametrize(
    "line", ["frobnicate", "node delete", "plan apply", "plan grow --frobnicate"]
)
def test_nothing_is_suggested_for_what_is_like_none(netmgr, line):
    said = netmgr(*line.split())[2]
    assert "No such" in said
    assert "mean" not in said
    assert "Possible" not in said
