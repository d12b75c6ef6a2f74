"""Locks that were edited, damaged or merged by hand: found, named by line, and cured by what the
message says.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from netmgr.cli.plan_common import load
from netmgr.plan import files
from netmgr.plan.lock import LOCK_VERSION
from tests.repositories import git

PLAN = """\
apiVersion: netmgr.io/v1alpha1
kind: NetworkPlan
name: small
pools:
  nodes: [10.0.0.0/11, 'fd00:10::/40']
  services: [172.16.0.0/12, 'fd00:5e::/104']
shared_services: [100.64.0.0/16, 'fd00:5a::/112']
clusters:
  alpha:
    services: {length: 20}
    node_pools:
      gpu: {nodes: 500, pods_per_node: 31}
      small: {nodes: 3, addressing: single, pods_per_node: 9}
  beta:
    services: {mode: shared}
    node_pools:
      cpu: {nodes: 100, pods_per_node: 40, grow_to: 300}
"""
GAMMA = """\
  gamma:
    node_pools:
      all: {nodes: 40}
"""
DELTA = GAMMA.replace("gamma", "delta").replace("40", "60")
CURE = "take the whole file of one side"

Keys = tuple[str | int, ...]


def read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())


def write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump(document, sort_keys=False))


def leaves(value: Any, above: Keys = ()) -> Iterator[Keys]:
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, (*above, key))
    else:
        yield above


def changed(value: object) -> object:
    """Another value of the same kind: the next address or prefix, one more, another name."""
    if isinstance(value, int):
        return value + 1
    text = str(value)
    if re.fullmatch(r"[\d.]+/\d+", text):
        network, _, length = text.partition("/")
        parts = network.split(".")
        return f"{parts[0]}.{int(parts[1]) ^ 1}.{parts[2]}.{parts[3]}/{length}"
    if text.count(".") == 3:
        return f"{text.rpartition('.')[0]}.{int(text.rpartition('.')[2]) ^ 1}"
    return text.replace("fd00", "fd01") if text.startswith("fd00") else f"{text}x"


def test_every_edit_of_a_lock_is_found(lock):
    edits = [keys for keys in leaves(read(lock)) if keys != ("version",)]
    assert len(edits) > 60
    for keys in edits:
        document = read(lock)
        place = functools.reduce(operator.getitem, keys[:-1], document)
        place[keys[-1]] = changed(place[keys[-1]])
        damaged = lock.with_name("damaged.lock.yaml")
        write(damaged, document)
        with pytest.raises(files.ConfigError) as refused:
            files.load_lock(damaged)
        assert f"{damaged}:" in str(refused.value), keys


def test_the_cure_names_the_file(lock):
    other = lock.with_name("other.yaml")
    other.write_text(PLAN)
    files.lock_path(other).write_text(lock.read_text().replace("nodes: 992", "nodes: 991"))
    with pytest.raises(files.ConfigError, match=r"--theirs other\.lock\.yaml during a merge"):
        load(other)


@pytest.mark.parametrize("command", [("lock", "--yes"), ("lock", "--yes", "--renumber"), ("show",)])
def test_an_edit_is_refused_by_line_with_the_cure(refused, lock, command):
    document = read(lock)
    document["clusters"]["alpha"]["node_pools"]["gpu"]["segments"][0]["nodes"] -= 1
    write(lock, document)
    before = lock.read_bytes()
    text = refused(*command)
    line = before.decode().count("\n")
    assert f"{lock}:{line}: digest: is not that of what the file says" in text
    assert CURE in text
    assert lock.read_bytes() == before


def test_a_lock_without_a_digest_was_edited(refused, lock):
    document = read(lock)
    del document["digest"]
    write(lock, document)
    assert "digest: is missing: it was edited or merged by hand" in refused("check")


@pytest.mark.parametrize(("version", "who"), [(LOCK_VERSION - 1, "an earlier"), (99, "a newer")])
def test_a_lock_of_another_version_is_refused(refused, lock, version, who):
    lock.write_text(lock.read_text().replace(f"version: {LOCK_VERSION}", f"version: {version}"))
    before = lock.read_bytes()
    text = refused("lock", "--yes")
    assert f"version: was written by {who} netmgr (version {version}; this one reads" in text
    assert lock.read_bytes() == before


def test_a_plan_of_the_same_content_is_answered_and_another_is_not(run, plan, lock, refused):
    small = "small: {nodes: 3, addressing: single, pods_per_node: 9}"
    reordered = "small: {pods_per_node: 9, addressing: single, surge: 10%, nodes: 3}  # reordered"
    plan.write_text("# Another comment.\n" + PLAN.replace(small, reordered))
    assert run("check")[0] == 0
    assert run("render", "node", "alpha-gpu-0")[0] == 0
    plan.write_text(PLAN.replace("{nodes: 3,", "{nodes: 4,"))
    assert run("check")[0] == 3
    text = refused("render", "node", "alpha-gpu-0")
    assert f"{lock}: is out of date; run: netmgr plan lock -f {plan}" in text
    before = read(lock)
    for command, expected in ((("diff",), 3), (("lock", "--yes"), 0)):
        code, text = run(*command)
        assert code == expected
        assert f"No address changes; only the plan's digest in {lock} does." in text
    after = read(lock)
    changed_keys = {key for key in before if before[key] != after[key]}
    assert changed_keys == {"plan_digest", "digest"}
    assert run("check")[0] == 0


def test_the_services_of_a_tombstone_are_nobody_elses(run, plan, lock, contradicted):
    held = read(lock)["clusters"]["beta"]["services"]["hub_prefix"]
    without = PLAN[: PLAN.index("  beta:")]
    plan.write_text(without)
    assert run("lock", "--yes")[0] == 0
    plan.write_text(without + f"pinned:\n  vpn: [{held}]\n")
    contradicted(f"{held} is pinned to vpn, but beta has its Services at {held}")
    contradicted("netmgr plan release beta")
    plan.write_text(without)
    assert run("release", "beta", "--yes")[0] == 0
    plan.write_text(without + f"pinned:\n  vpn: [{held}]\n")
    assert run("lock", "--yes")[0] == 0


@pytest.fixture
def merged(locked, plan: Path) -> Path:
    """The folder after a merge of branches that locked a cluster each; the lock conflicts."""
    folder = plan.parent
    assert git(folder, "init", "-b", "main").returncode == 0
    for branch, text in (("main", ""), ("one", GAMMA), ("other", DELTA)):
        if branch != "main":
            git(folder, "checkout", "-b", branch, "main")
        plan.write_text(PLAN + text)
        assert locked("lock", "--yes")[0] == 0
        git(folder, "add", "plan.yaml", "plan.lock.yaml")
        assert git(folder, "commit", "-m", branch).returncode == 0
    assert git(folder, "merge", "one").returncode == 1
    plan.write_text(PLAN + GAMMA + DELTA)
    return folder


@pytest.mark.programs
@pytest.mark.usefixtures("merged")
def test_marks_of_an_unfinished_merge_are_named_with_their_line_and_cure(plan, refused):
    lock = files.lock_path(plan)
    line = lock.read_text().partition("<<<<<<<")[0].count("\n") + 1
    for command in ("check", "lock", "diff", "show"):
        said = refused(command)
        assert f"{lock}:{line}: has the marks of an unfinished git merge; {CURE}" in said
    plan.write_text(PLAN + "<<<<<<< HEAD\n" + GAMMA + "=======\n" + DELTA + ">>>>>>> one\n")
    line = PLAN.count("\n") + 1
    said = refused("check")
    assert f"{plan}:{line}: has the marks of an unfinished git merge; resolve" in said


@pytest.mark.programs
def test_the_advice_after_a_merge_cures_it(run, merged, plan):
    lock = files.lock_path(plan)
    assert "git checkout --ours" in run("check")[1]
    assert git(merged, "checkout", "--ours", "plan.lock.yaml").returncode == 0
    kept = read(lock)["clusters"]
    assert run("check")[0] == 3
    assert run("lock", "--yes")[0] == 0
    assert run("check")[0] == 0
    assert read(lock)["clusters"].items() >= kept.items()
