"""Locks of two branches, merged by a real git with `netmgr plan merge` as its driver."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from netmgr.plan import files
from tests.repositories import git

pytestmark = [pytest.mark.programs, pytest.mark.usefixtures("netmgr_on_path")]

PLAN = """\
apiVersion: netmgr.io/v1alpha1
kind: NetworkPlan
name: small
pools:
  nodes: [10.0.0.0/11, 'fd00:10::/40']
  services: [172.16.0.0/12, 'fd00:5e::/104']
clusters:
  alpha:
    services: {length: 20}
    node_pools:
      gpu: {nodes: 500, pods_per_node: 31}

  beta:
    services: {length: 20}
    node_pools:
      cpu: {nodes: 100, pods_per_node: 40, grow_to: 300}
"""
BETA = PLAN[PLAN.index("  beta:") :]
GAMMA = """\
  gamma:
    services: {length: 24}
    node_pools:
      all: {nodes: 40}
"""
DELTA = GAMMA.replace("gamma", "delta").replace("40", "60")
DRIVER = "netmgr plan merge %O %A %B %P"

Commit = Callable[..., bytes]


def first(text: str, cluster: str) -> str:
    """The plan with a cluster before all others; git merges that with one behind them."""
    return text.replace("clusters:\n", f"clusters:\n{cluster}")


def clusters_of(lock: Path) -> dict[str, Any]:
    return yaml.safe_load(lock.read_text())["clusters"]


@pytest.fixture
def folder(lock: Path) -> Path:
    """A repository with the driver, on `main`, with the plan and its lock."""
    folder = lock.parent
    assert git(folder, "init", "-b", "main").returncode == 0
    git(folder, "config", "merge.netmgr-lock.driver", DRIVER)
    (folder / ".gitattributes").write_text("plan.lock.yaml merge=netmgr-lock\n")
    git(folder, "add", ".")
    assert git(folder, "commit", "-m", "main").returncode == 0
    return folder


@pytest.fixture
def branch(folder: Path, plan: Path, run) -> Commit:
    """Commits a plan on a new branch of `main`, with its lock; gives the lock's bytes."""

    def commit(name: str, text: str, *after: str) -> bytes:
        git(folder, "checkout", "-f", "-b", name, "main")
        plan.write_text(text)
        assert run("lock", "--yes")[0] == 0
        if after:
            assert run(*after, "--yes")[0] == 0
        return save(folder, name)

    return commit


def save(folder: Path, message: str) -> bytes:
    git(folder, "add", "--all")
    assert git(folder, "commit", "-m", message).returncode == 0
    return (folder / "plan.lock.yaml").read_bytes()


def merge(folder: Path, into: str, other: str) -> subprocess.CompletedProcess[str]:
    git(folder, "checkout", "-f", into)
    return git(folder, "merge", "-m", "merged", other)


@pytest.fixture
def without_beta(folder: Path, plan: Path, run) -> str:
    """The plan once beta has left it, on `main`; its addresses are still held."""
    plan.write_text(PLAN.replace(BETA, ""))
    assert run("lock", "--yes")[0] == 0
    save(folder, "beta leaves")
    return plan.read_text()


def assert_refused(folder: Path, done: subprocess.CompletedProcess[str], ours: bytes) -> str:
    """The merge stopped, and our lock is what it was; gives what was said."""
    assert done.returncode == 1
    assert "CONFLICT" in done.stdout
    assert (folder / "plan.lock.yaml").read_bytes() == ours
    assert files.load_lock(folder / "plan.lock.yaml")
    assert list(folder.glob(".merge_file*")) == []
    return done.stdout + done.stderr


def test_branches_that_each_add_a_cluster_are_merged(folder, lock, branch, run):
    branch("ours", first(PLAN, GAMMA))
    held = {"gamma": clusters_of(lock)["gamma"]}
    branch("theirs", PLAN + DELTA)
    held["delta"] = clusters_of(lock)["delta"]
    assert merge(folder, "ours", "theirs").returncode == 0
    merged = clusters_of(lock)
    assert list(merged) == ["alpha", "beta", "delta", "gamma"]
    assert {name: merged[name] for name in held} == held
    assert run("lock", "--yes") == (0, f"{lock} is up to date: nothing to do\n")
    assert run("check")[0] == 0


def test_branches_that_give_out_the_same_addresses_are_refused_with_what_would_move(
    folder, plan, lock, branch, run
):
    pinned = ("length: 24", "length: 24, prefix: 172.20.4.0/24")
    ours = branch("ours", first(PLAN, GAMMA.replace(*pinned)))
    branch("theirs", PLAN + DELTA.replace(*pinned))
    text = assert_refused(folder, merge(folder, "ours", "theirs"), ours)
    assert "-/+ clusters.delta" in text
    assert "ours 172.20.4.0/24 of gamma" in text
    assert "theirs 172.20.4.0/24 of delta" in text
    assert "plan.lock.yaml: cannot be merged; take the whole lock of the side" in text
    # The advice: one side's lock, and the other's cluster is planned again.
    plan.write_text(plan.read_text().replace(", prefix: 172.20.4.0/24", "", 1))
    assert git(folder, "checkout", "--theirs", "plan.lock.yaml").returncode == 0
    assert run("lock", "--yes")[0] == 0
    assert set(clusters_of(lock)) == {"alpha", "beta", "gamma", "delta"}


def test_an_entry_that_both_sides_changed_is_refused(folder, branch):
    ours = branch("ours", PLAN.replace("nodes: 500", "nodes: 2000"))
    branch("theirs", PLAN.replace("nodes: 500", "nodes: 4000"))
    text = assert_refused(folder, merge(folder, "ours", "theirs"), ours)
    assert "-/+ clusters.alpha.node_pools.gpu[1]" in text
    assert "both sides changed this entry" in text


def test_the_same_change_on_both_sides_is_one(folder, plan, branch, run):
    branch("ours", first(PLAN, GAMMA))
    branch("theirs", first(PLAN, GAMMA))
    plan.write_text(plan.read_text() + DELTA)
    assert run("lock", "--yes")[0] == 0
    save(folder, "delta")
    branch("others", PLAN.replace("nodes: 500", "nodes: 501"))
    assert merge(folder, "others", "ours").returncode == 0
    assert run("check")[0] == 0
    assert merge(folder, "others", "theirs").returncode == 0
    code, text = run("lock", "--yes")
    assert code == 0
    assert "No address changes; only the plan's digest" in text


def test_what_one_side_released_stays_released(folder, lock, branch, run, without_beta):
    branch("ours", without_beta, "release", "beta")
    branch("theirs", first(without_beta, GAMMA))
    assert merge(folder, "ours", "theirs").returncode == 0
    assert set(clusters_of(lock)) == {"alpha", "gamma"}
    assert run("check")[0] == 0


def test_what_one_side_released_and_the_other_uses_again_is_refused(folder, branch, without_beta):
    ours = branch("ours", without_beta, "release", "beta")
    branch("theirs", PLAN)
    text = assert_refused(folder, merge(folder, "ours", "theirs"), ours)
    assert "-/+ clusters.beta.prefixes" in text


def test_a_damaged_lock_is_refused_by_its_side_and_line(folder, lock, branch):
    ours = branch("ours", first(PLAN, GAMMA))
    branch("theirs", PLAN + DELTA)
    lock.write_text(lock.read_text().replace("nodes: ", "nodes: 1", 1))
    line = lock.read_text().count("\n")
    save(folder, "edited")
    text = assert_refused(folder, merge(folder, "ours", "theirs"), ours)
    assert f"plan.lock.yaml (theirs):{line}: digest: is not that of what the file says" in text


def test_locks_that_both_sides_made_first_are_merged(folder, lock, branch, run):
    git(folder, "rm", "plan.lock.yaml")
    git(folder, "commit", "-m", "no lock")
    branch("ours", first(PLAN, GAMMA))
    branch("theirs", PLAN + DELTA)
    assert merge(folder, "ours", "theirs").returncode == 0
    assert set(clusters_of(lock)) == {"alpha", "beta", "gamma", "delta"}
    code, text = run("lock", "--yes")
    assert code == 0
    assert "No address changes" in text


def test_locks_of_different_plans_are_refused(netmgr, run, plan, lock, tmp_path):
    ours, base = tmp_path / "ours.yaml", tmp_path / "base.yaml"
    before = lock.read_bytes()
    ours.write_bytes(before)
    base.touch()
    lock.unlink()
    plan.write_text(PLAN.replace("name: small", "name: large"))
    assert run("lock", "--yes")[0] == 0
    code, _, text = netmgr("plan", "merge", str(base), str(ours), str(lock))
    assert code == 2
    assert "the locks belong to different plans, 'small' and 'large'" in text
    assert ours.read_bytes() == before
