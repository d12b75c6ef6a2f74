"""Locks that were edited, damaged or merged by hand: found, named by line, and cured by what the
message says.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from netmgr.cli.plan_common import load
from netmgr.plan import files
from netmgr.plan.lock import LOCK_VERSION, LockDocument

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

Run = Callable[..., tuple[int, str]]
Keys = tuple[str | int, ...]


@pytest.fixture
def lock(plan: Path, run: Run) -> Path:
    assert run("lock", "--yes")[0] == 0
    return files.lock_path(plan)


def read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())


def write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump(document, sort_keys=False))


def leaves(value: Any, above: Keys = ()) -> Iterator[Keys]:
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    found = list(items)
    for key, item in found:
        yield from leaves(item, (*above, key))
    if not isinstance(value, dict | list):
        yield above


def at(document: Any, keys: Keys) -> Any:
    for key in keys:
        document = document[key]
    return document


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


def test_every_edit_of_a_lock_is_found(lock: Path) -> None:
    whole = read(lock)
    edits = [keys for keys in leaves(whole) if keys != ("version",)]
    assert len(edits) > 60
    for keys in edits:
        document = read(lock)
        place = at(document, keys[:-1])
        place[keys[-1]] = changed(place[keys[-1]])
        damaged = lock.with_name("damaged.lock.yaml")
        write(damaged, document)
        with pytest.raises(files.ConfigError) as refused:
            files.load_lock(damaged)
        assert f"{damaged}:" in str(refused.value), keys


def test_more_places_than_a_virtual_network_has_mappings_are_shown(run: Run, plan: Path) -> None:
    plan.write_text(PLAN.replace("nodes: 500, pods_per_node: 31", "nodes: 9000, pods_per_node: 31"))
    assert run("lock", "--yes")[0] == 0
    path = files.lock_path(plan)
    document = files.to_plain(files.load_lock(path))
    (segment,) = document["clusters"]["alpha"]["node_pools"]["gpu"]["segments"]
    segment["nodes"] = 16_000
    files.write_lock(path, LockDocument.model_validate(document))
    text = run("check")[1]
    assert "warning" in text
    assert "the places that the lock has in VNet alpha take 80,072 mappings, it has 65,536" in text


@pytest.mark.parametrize("damage", ["nodes: 1019", "digest: sha256:"])
def test_the_cure_names_the_file(plan: Path, lock: Path, run: Run, damage: str) -> None:
    assert run("check")[0] == 0
    other = plan.with_name("other.yaml")
    other.write_text(plan.read_text())
    text = lock.read_text()
    assert damage in text
    lock_of_it = files.lock_path(other)
    lock_of_it.write_text(text.replace(damage, f"{damage}0"))
    with pytest.raises(files.ConfigError, match=r"--theirs other\.lock\.yaml during a merge"):
        load(other)


@pytest.mark.parametrize("command", [("lock", "--yes"), ("lock", "--yes", "--renumber"), ("show",)])
def test_an_edit_is_refused_by_line_with_the_cure(run: Run, lock: Path, command: Keys) -> None:
    document = read(lock)
    document["clusters"]["alpha"]["node_pools"]["gpu"]["segments"][0]["nodes"] -= 1
    write(lock, document)
    before = lock.read_bytes()
    code, text = run(*command)
    assert code == 1
    line = before.decode().count("\n")
    assert f"{lock}:{line}: digest: is not that of what the file says" in text
    assert CURE in text
    assert lock.read_bytes() == before


def test_a_lock_without_a_digest_was_edited(run: Run, lock: Path) -> None:
    document = read(lock)
    del document["digest"]
    write(lock, document)
    code, text = run("check")
    assert code == 1
    assert "digest: is missing: it was edited or merged by hand" in text


@pytest.mark.parametrize(("version", "who"), [(LOCK_VERSION - 1, "an earlier"), (99, "a newer")])
def test_a_lock_of_another_version_is_refused(run: Run, lock: Path, version: int, who: str) -> None:
    lock.write_text(lock.read_text().replace(f"version: {LOCK_VERSION}", f"version: {version}"))
    before = lock.read_bytes()
    code, text = run("lock", "--yes")
    assert code == 1
    assert f"version: was written by {who} netmgr (version {version}; this one reads" in text
    assert lock.read_bytes() == before


def test_a_plan_of_the_same_content_is_answered_and_another_is_not(
    run: Run, plan: Path, lock: Path
) -> None:
    small = "small: {nodes: 3, addressing: single, pods_per_node: 9}"
    reordered = "small: {pods_per_node: 9, addressing: single, surge: 10%, nodes: 3}  # reordered"
    plan.write_text("# Another comment.\n" + PLAN.replace(small, reordered))
    assert run("check")[0] == 0
    assert run("render", "node", "alpha-gpu-0")[0] == 0
    plan.write_text(PLAN.replace("{nodes: 3,", "{nodes: 4,"))
    assert run("check")[0] == 2
    code, text = run("render", "node", "alpha-gpu-0")
    assert code == 1
    assert f"{lock}: is out of date; run: netmgr plan lock -f {plan}" in text
    before = read(lock)
    for command, expected in ((("diff",), 2), (("lock", "--yes"), 0)):
        code, text = run(*command)
        assert code == expected
        assert f"No address changes; only the plan's digest in {lock} does." in text
    after = read(lock)
    changed_keys = {key for key in before if before[key] != after[key]}
    assert changed_keys == {"plan_digest", "digest"}
    assert run("check")[0] == 0


@pytest.mark.parametrize("name", [None, "alpaca"])
def test_a_lost_or_renamed_cluster_is_not_given_other_addresses(
    run: Run, lock: Path, name: str | None
) -> None:
    document = read(lock)
    held = document["clusters"].pop("alpha")
    if name:
        document["clusters"][name] = held
    write(lock, document)
    assert run("lock", "--yes")[0] == 1


def test_a_cluster_that_is_renamed_in_the_plan_keeps_its_addresses_or_says_so(
    run: Run, plan: Path, lock: Path
) -> None:
    before = lock.read_bytes()
    plan.write_text(PLAN.replace("  alpha:", "  alpaca:"))
    code, text = run("lock", "--yes")
    assert code == 1
    assert (
        f"{plan}:9: clusters.alpaca: is new, and alpha, which left the plan, has the same "
        "node pools"
    ) in text
    assert lock.read_bytes() == before
    assert run("lock", "--yes", "--renumber")[0] == 0
    assert read(lock)["clusters"]["alpha"]["tombstone"] is True


def test_a_cluster_may_leave_while_another_comes(run: Run, plan: Path, lock: Path) -> None:
    alpha = PLAN[PLAN.index("  alpha:") : PLAN.index("  beta:")]
    plan.write_text(PLAN.replace(alpha, "") + GAMMA)
    assert run("lock", "--yes")[0] == 0
    assert set(read(lock)["clusters"]) == {"alpha", "beta", "gamma"}


def test_the_services_of_a_tombstone_are_nobody_elses(run: Run, plan: Path, lock: Path) -> None:
    held = read(lock)["clusters"]["beta"]["services"]["hub_prefix"]
    without = PLAN[: PLAN.index("  beta:")]
    plan.write_text(without)
    assert run("lock", "--yes")[0] == 0
    plan.write_text(without + f"pinned:\n  vpn: [{held}]\n")
    for command in (("lock", "--yes"), ("check",)):
        code, text = run(*command)
        assert code == 1
        assert (
            f"pinned.vpn[0]: {held} is pinned to vpn, but beta has its Services at {held}" in text
        )
        assert "netmgr plan release beta" in text
    plan.write_text(without)
    assert run("release", "beta", "--yes")[0] == 0
    plan.write_text(without + f"pinned:\n  vpn: [{held}]\n")
    assert run("lock", "--yes")[0] == 0


def git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *who, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def merged(run: Run, plan: Path) -> Path:
    """The folder after a merge of two branches, each of which locked a cluster of its own; the lock
    conflicts.
    """
    folder = plan.parent
    assert run("lock", "--yes")[0] == 0
    assert git(folder, "init", "-b", "main").returncode == 0
    for branch, text in (("main", ""), ("one", GAMMA), ("other", DELTA)):
        if branch != "main":
            git(folder, "checkout", "-b", branch, "main")
        plan.write_text(PLAN + text)
        assert run("lock", "--yes")[0] == 0
        git(folder, "add", "plan.yaml", "plan.lock.yaml")
        assert git(folder, "commit", "-m", branch).returncode == 0
    assert git(folder, "merge", "one").returncode == 1
    plan.write_text(PLAN + GAMMA + DELTA)
    return folder


@pytest.mark.programs
@pytest.mark.usefixtures("merged")
def test_marks_of_an_unfinished_merge_are_named_with_their_line_and_cure(
    run: Run, plan: Path
) -> None:
    lock = files.lock_path(plan)
    line = next(
        n for n, text in enumerate(lock.read_text().splitlines(), 1) if text.startswith("<<<<<<<")
    )
    for command in ("check", "lock", "diff", "show"):
        code, text = run(command)
        assert code == 1
        assert f"{lock}:{line}: has the marks of an unfinished git merge; {CURE}" in text
    plan.write_text(PLAN + "<<<<<<< HEAD\n" + GAMMA + "=======\n" + DELTA + ">>>>>>> one\n")
    code, text = run("check")
    assert code == 1
    assert (
        f"{plan}:{PLAN.count(chr(10)) + 1}: has the marks of an unfinished git merge; resolve"
        in text
    )


@pytest.mark.programs
@pytest.mark.parametrize("side", ["--ours", "--theirs"])
def test_the_advice_after_a_merge_cures_it(run: Run, merged: Path, side: str, plan: Path) -> None:
    lock = files.lock_path(plan)
    advice = run("check")[1]
    assert "git checkout --ours" in advice
    assert git(merged, "checkout", side, "plan.lock.yaml").returncode == 0
    kept = read(lock)["clusters"]
    assert run("check")[0] == 2
    assert run("lock", "--yes")[0] == 0
    assert run("check")[0] == 0
    assert read(lock)["clusters"].items() >= kept.items()


@pytest.mark.programs
def test_a_lock_that_was_merged_by_hand_is_found(run: Run, merged: Path, plan: Path) -> None:
    lock = files.lock_path(plan)
    one, other = (
        yaml.safe_load(git(merged, "show", f"{branch}:plan.lock.yaml").stdout)
        for branch in ("one", "other")
    )
    other["clusters"]["gamma"] = one["clusters"]["gamma"]
    write(lock, other)
    code, said = run("check")
    assert code == 1
    assert CURE in said


@pytest.mark.usefixtures("lock")
def test_a_plan_that_outgrew_its_lock_ends_in_two(run: Run, plan: Path) -> None:
    plan.write_text(PLAN.replace("nodes: 500,", "nodes: 3000,"))
    code, text = run("check")
    assert code == 2
    assert "is out of date; run: netmgr plan lock" in text
    assert run("lock", "--yes")[0] == 0
    assert run("check")[0] == 0
