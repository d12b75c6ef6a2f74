"""`netmgr plan init`: what it writes can be locked and checked, and it replaces nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from netmgr.plan import files
from netmgr.prefixes import Prefix

CLUSTERS = [f"--cluster=spoke-{number}" for number in range(40)]
ANSWERS = [
    (),
    ("--cloud=azure", "--cluster=training", "--cluster=evals", "--nodes=900", "--pods-per-node=60"),
    CLUSTERS,
    (*CLUSTERS, "--services=172.20.0.0/16", "--services=192.168.0.0/16"),
    ("--pool=10.0.0.0/12", "--pool=fd00:10::/40", "--services=172.16.0.0/16"),
    (
        *("--pool=10.0.0.0/8", "--pool=fd00:10::/40"),
        *("--services=172.16.0.0/12", "--services=fd00:20::/100"),
    ),
    ("--name=on", "--cluster=on", "--cluster=null", "--cluster=y"),
    ("--pool=10.0.0.0/20", "--researchers=30", "--routers=1", "--nodes=1", "--pods-per-node=1"),
]


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, netmgr: Callable[..., tuple[int, str, str]]
) -> Callable[..., tuple[int, str]]:
    """Runs `netmgr plan …` in an empty folder; gives its exit code and all that it printed."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[int, str]:
        code, out, err = netmgr("plan", *arguments)
        return code, out + err

    return command


@pytest.mark.parametrize("answers", ANSWERS, ids=lambda each: " ".join(each[:3]))
def test_what_is_written_can_be_locked_and_is_sound(run, answers):
    for line in (("init", *answers), ("lock", "--yes"), ("check",)):
        code, said = run(*line)
        assert code == 0, said
    assert "error" not in said


# docker0's, and what AKS refuses ("Configure Azure CNI networking", prerequisites).
TAKEN = ("172.17.0.0/16", "169.254.0.0/16", "172.30.0.0/16", "172.31.0.0/16", "192.0.2.0/24")


def test_nothing_is_given_out_that_hosts_or_aks_use_already(run):
    run("init")
    pools = files.load_plan(Path("plan.yaml")).pools
    given = [*pools.nodes, *pools.services]
    assert not [
        (pool, taken) for pool in given for taken in TAKEN if Prefix.parse(taken).overlaps(pool)
    ]


def test_a_check_says_that_there_is_no_lock_yet(run):
    run("init")
    code, said = run("check")
    assert (code, "plan.lock.yaml is not there yet; run: netmgr plan lock" in said) == (3, True)


def test_limits_that_no_cloud_sets_are_shown_only_on_request(run):
    run("init", "--cloud=none")
    run("lock", "--yes")
    shown, every = run("check")[1], run("check", "--all")[1]
    assert "nodes (tested by Kubernetes)" in shown
    assert "unknown" not in shown
    assert "peerings" in every


def test_the_plan_has_what_was_answered(run, tmp_path):
    run(
        *("init", "--file=other.yaml", "--name=lab", "--cloud=azure", "--pool=10.0.0.0/12"),
        *("--services=172.16.0.0/16", "--cluster=one", "--cluster=two", "--nodes=7"),
        *("--pods-per-node=20", "--researchers=40", "--routers=3"),
    )
    plan = files.load_plan(tmp_path / "other.yaml")
    assert (plan.name, plan.cloud) == ("lab", "azure")
    assert [*map(str, plan.pools.nodes)] == ["10.0.0.0/12"]
    assert [*map(str, plan.pools.services)] == ["172.16.0.0/16"]
    assert (plan.hub.researchers, plan.hub.routers) == (40, 3)
    assert [*plan.clusters] == ["one", "two"]
    for cluster in plan.clusters.values():
        (pool,) = cluster.node_pools.values()
        assert (pool.nodes, pool.pods_per_node) == (7, 20)


@pytest.mark.parametrize("cloud", ["none", "azure"])
def test_every_example_in_a_comment_is_one(run, tmp_path, cloud):
    run("init", "--cloud", cloud)
    path = tmp_path / "plan.yaml"
    head, _, rest = path.read_text().partition("apiVersion")
    examples = re.findall(r"^ *# (.*)$", rest, flags=re.MULTILINE)
    assert len(examples) == 6
    path.write_text(head + "apiVersion" + re.sub(r"^( *)# ", r"\1", rest, flags=re.MULTILINE))
    assert run("lock", "--yes")[0] == 0
    plan = files.load_plan(path)
    assert plan.exclude
    assert plan.clusters["cluster-1"].grow_to == 400


@pytest.mark.parametrize("name", ["plan.yaml", "plan.lock.yaml"])
def test_nothing_is_replaced(refused, tmp_path, name):
    (tmp_path / name).write_text("mine")
    assert f"{name}: is there already, and is not replaced" in refused("init")
    assert (tmp_path / name).read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (["--pool=10.0.0.0/24"], "hub.researchers: hub needs"),
        (["--pool=10.0.0.1/24"], "--pool: '10.0.0.1/24' has host bits set"),
        (["--services=nonsense"], "--services: "),
        (["--cluster=Training"], "clusters.Training"),
        (["--cluster=one", "--cluster=one"], "clusters.one: given twice"),
        (["--pool=fd00::/40"], "has no IPv4 prefix"),
        (["--nodes=0"], "--nodes"),
        (["--cloud=azure", "--nodes=60000"], "mappings"),
        (["--file=missing/plan.yaml"], "missing/plan.yaml: No such file"),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else "",
)
def test_a_plan_that_could_not_be_locked_is_not_written(run, tmp_path, answers, said):
    code, text = run("init", *answers)
    assert code == (1 if "No such file" in said else 2)
    assert said in text
    assert not list(tmp_path.iterdir())
