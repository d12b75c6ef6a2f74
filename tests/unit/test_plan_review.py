"""What changed since an earlier lock, for people who review it, the hook and the workflow."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from netmgr.cli.plan_report import MOST_ROWS
from netmgr.plan import files
from tests.builders import SMALL_PLAN as PLAN
from tests.repositories import git
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.programs, pytest.mark.usefixtures("netmgr_on_path")]

CONFIGS = Path(__file__).parents[2] / "configs" / "plan"
WORKFLOW = yaml.safe_load((CONFIGS / "pull-request.yml").read_text())
ALPINE = "  alpine: {services: {length: 22}, node_pools: {all: {nodes: 3}}}\n"

Run = Callable[..., tuple[int, str]]


def program(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """What a command does with this netmgr on its PATH."""
    environment = {**os.environ, "NO_COLOR": "1", **variables}
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.fixture
def folder(lock: Path) -> Path:
    """A repository whose only commit has the plan and its lock."""
    for arguments in (("init", "-b", "main"), ("add", "."), ("commit", "-m", "main")):
        assert git(lock.parent, *arguments).returncode == 0
    return lock.parent


def test_a_revision_or_a_file_is_compared_with_the_lock_of_today(folder, plan, lock, locked):
    before = folder / "before.yaml"
    before.write_bytes(lock.read_bytes())
    assert locked("diff", "--before", "HEAD") == (0, "Nothing changed since HEAD.\n")
    plan.write_text(PLAN + ALPINE)
    # As it will be locked, and as it is locked.
    for command in (("diff",), ("lock", "--yes")):
        for earlier in ("HEAD", "main", str(before)):
            code, text = locked("diff", "--before", earlier)
            assert code == 3
            assert "+ clusters.alpine.prefixes" in text
            assert "0 to renumber" in text
        locked(*command)
    assert locked("diff")[0] == 0
    changes = json.loads(locked("diff", "--before", "HEAD", "-o", "json")[1])["changes"]
    assert {change["kind"] for change in changes} == {"+"}


def test_a_plan_in_a_folder_of_the_repository_has_its_earlier_lock_there(
    folder, plan, lock, netmgr
):
    inner = folder / "net"
    inner.mkdir()
    for path in (plan, lock):
        git(folder, "mv", path.name, f"net/{path.name}")
    assert git(folder, "commit", "-m", "moved").returncode == 0
    for name in ("HEAD", "HEAD~1"):
        code, out, err = netmgr("plan", "diff", "--before", name, "-f", f"{inner}/plan.yaml")
        assert (code, "has no plan.lock.yaml" in out + err) == ((0, False), (2, True))[
            name != "HEAD"
        ]


@pytest.mark.parametrize("command", [("diff",), ("check", "--report", "markdown")])
def test_what_is_no_earlier_lock_is_refused(folder, plan, refused, command):
    said = refused(*command, "--before", "no-such-branch")
    assert "--before no-such-branch: is no file, and no revision that git has here" in said
    # With git's suffix for a commit no option of git is one.
    assert "is no file, and no revision" in refused(*command, "--before=--all")
    git(folder, "rm", "--cached", "plan.lock.yaml")
    git(folder, "commit", "-m", "no lock")
    said = refused(*command, "--before", "HEAD")
    assert "--before HEAD: has no plan.lock.yaml; name a revision that has one" in said
    said = refused(*command, "--before", str(plan))
    assert "kind: is NetworkPlan, and this has to be a NetworkPlanLock" in said
    git(folder, "update-ref", "-d", "refs/heads/main")
    refused(*command, "--before", "HEAD")


@pytest.mark.usefixtures("lock")
def test_without_a_repository_no_revision_is_known(refused, plan, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(plan.parent.parent))
    assert "not a git repository" in refused("diff", "--before", "HEAD")


@pytest.mark.usefixtures("folder")
def test_the_report_says_what_moves_what_grows_and_what_is_left(plan, locked, golden):
    plan.write_text(PLAN.replace("nodes: 500", "nodes: 2000") + ALPINE)
    code, text = locked("check", "--report", "markdown")
    assert code == 3
    assert locked("lock", "--yes")[0] == 0
    code, since = locked("check", "--report", "markdown", "--before", "HEAD")
    assert code == 0
    behind = "plan.lock.yaml does not answer the plan yet: run `netmgr plan lock`."
    assert text.endswith(f"\n{behind}\n")
    assert behind not in since
    # The changes are those that the lock then had.
    assert text.partition("### Findings")[0] in since
    golden("plan/report.md", since)


def test_the_report_shows_what_would_be_renumbered(plan, locked):
    plan.write_text(PLAN.replace("pods_per_node: 31", "pods_per_node: 33"))
    code, text = locked("check", "--report", "markdown")
    assert code == 1
    assert "**1 entries move**" in text
    assert "| `-/+` | clusters.alpha.node_pools.gpu[0] |" in text
    assert "| error | " in text


def test_a_report_has_an_end(plan, run):
    small = ALPINE.replace("22", "26")
    many = "".join(small.replace("alpine", f"c{number}") for number in range(60))
    plan.write_text(PLAN + many)
    code, text = run("check", "--report", "markdown")
    assert code == 3
    assert text.count("| `+` |") == MOST_ROWS
    assert " more.\n" in text


def test_what_is_written_is_said_to_programs(plan, run):
    code, text = run("lock", "-o", "json")
    said = json.loads(text.partition("To write")[0])
    assert (code, said["written"], said["version"]) == (3, False, 1)
    assert not files.lock_path(plan).exists()
    code, text = run("lock", "--yes", "-o", "json")
    assert code == 0
    assert json.loads(text) == {**said, "written": True}
    assert run("lock", "--yes", "-o", "json")[0] == 0
    plan.write_text(PLAN[: PLAN.index("  beta:")])
    assert run("lock", "--yes")[0] == 0
    code, text = run("release", "beta", "--yes", "-o", "json")
    released = json.loads(text)
    assert code == 0
    assert {change["kind"] for change in released["changes"]} == {"-"}
    assert released.keys() == said.keys()
    existing = plan.with_name("existing.csv")
    existing.write_text("vpn 10.200.0.0/16\n")
    code, text = run("adopt", str(existing), "-o", "json")
    pinned = {"kind": "+", "key": "pinned.vpn", "before": "", "after": "10.200.0.0/16"}
    assert code == 3
    said = json.loads(text.partition("To write")[0])
    assert said["changes"] == [{**pinned, "note": "taken"}]
    code, text = run("adopt", str(existing), "--yes", "-o", "json")
    assert (code, json.loads(text)) == (0, {**said, "written": True})
    code, text = run("adopt", str(existing), "--yes", "-o", "json")
    assert (code, json.loads(text)) == (0, {"version": 1, "changes": [], "written": False})


@pytest.fixture
def hooked(folder: Path) -> Path:
    for name in ("pre-commit", "pre-merge-commit"):
        shutil.copy(CONFIGS / "pre-commit", folder / ".git" / "hooks" / name)
    return folder


def test_the_hook_refuses_a_commit_whose_lock_does_not_answer_its_plan(hooked, plan, locked):
    plan.write_text(PLAN + ALPINE)
    refused = git(hooked, "commit", "-am", "forgotten")
    assert refused.returncode == 1
    assert "plan.lock.yaml is out of date; run: netmgr plan lock" in refused.stderr
    # Locked, but the lock is not staged.
    assert locked("lock", "--yes")[0] == 0
    git(hooked, "add", "plan.yaml")
    assert git(hooked, "commit", "-m", "half").returncode == 1
    (hooked / "note").write_text("")
    git(hooked, "add", "plan.lock.yaml", "note")
    # What the work tree has is not committed.
    plan.write_text("not a plan")
    done = git(hooked, "commit", "-m", "whole")
    assert (done.returncode, done.stderr) == (0, "")
    # And what does not concern the plan is no matter of the hook.
    (hooked / "note").write_text("more")
    assert git(hooked, "commit", "-m", "a note", "note").returncode == 0
    git(hooked, "checkout", "plan.yaml")
    git(hooked, "rm", "plan.yaml", "plan.lock.yaml")
    assert git(hooked, "commit", "-m", "no plan").returncode == 0


def test_the_hook_refuses_an_edited_lock_and_examines_a_plan_of_another_name(hooked):
    inner = hooked / "net"
    inner.mkdir()
    for name in ("plan.yaml", "plan.lock.yaml"):
        git(hooked, "mv", name, f"net/{name.replace('plan', 'site plan')}")
    assert git(hooked, "commit", "-m", "moved").returncode == 0
    lock = inner / "site plan.lock.yaml"
    lock.write_text(lock.read_text().replace("nodes: ", "nodes: 1", 1))
    commit = ("commit", "-am", "edited")
    refused = program(hooked, "git", *commit, NETMGR_PLAN="net/site plan.yaml")
    assert refused.returncode == 1
    assert "net/site plan.lock.yaml:" in refused.stderr
    assert "it was edited or merged by hand" in refused.stderr


def changed(folder: Path, plan: Path, text: str, run: Run | None = None, *options: str) -> None:
    """Commits another plan on a branch, locked if there is a command to lock it with."""
    git(folder, "checkout", "-b", "change")
    plan.write_text(text)
    assert run is None or run("lock", "--yes", *options)[0] == 0
    assert git(folder, "commit", "-am", "change").returncode == 0


def test_the_hook_refuses_a_merge_whose_lock_contradicts_the_merged_plan(
    hooked, plan, lock, locked
):
    git(hooked, "config", "merge.netmgr-lock.driver", "netmgr plan merge %O %A %B %P")
    (hooked / ".git" / "info" / "attributes").write_text("plan.lock.yaml merge=netmgr-lock\n")
    changed(hooked, plan, PLAN + ALPINE, locked)
    (prefix,) = files.load_lock(lock).clusters["alpine"].prefixes
    git(hooked, "checkout", "main")
    pin = f"pinned:\n  vpn: [{prefix.prefix}]\n"
    plan.write_text(PLAN.replace("name: small\n", f"name: small\n{pin}"))
    assert locked("lock", "--yes")[0] == 0
    assert git(hooked, "commit", "-am", "pinned").returncode == 0
    refused = git(hooked, "merge", "-m", "merged", "change")
    # Both files were merged; only together they are wrong.
    assert "CONFLICT" not in refused.stdout
    assert refused.returncode == 1
    assert f"{prefix.prefix} is pinned to vpn, but alpine holds" in refused.stderr


@pytest.fixture
def workflow(folder: Path, tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs the commands of a step of the workflow, in a clone, as GitHub does."""
    clone = tmp_path / "clone"

    def step(name: str) -> subprocess.CompletedProcess[str]:
        if not clone.exists():
            done = git(folder, "clone", "--branch", "change", str(folder), str(clone))
            assert done.returncode == 0
        steps: list[dict[str, Any]] = WORKFLOW["jobs"]["check"]["steps"]
        (command,) = (step["run"] for step in steps if step.get("name", "").startswith(name))
        summary = str(tmp_path / "summary.md")
        shell = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command)
        return program(clone, *shell, BASE="main", GITHUB_STEP_SUMMARY=summary)

    return step


def test_the_workflow_reports_a_change_that_moves_nothing(folder, plan, locked, workflow, tmp_path):
    changed(folder, plan, PLAN + ALPINE, locked)
    for name in ("report", "addresses"):
        done = workflow(name)
        assert done.returncode == 0, done
    summary = (tmp_path / "summary.md").read_text()
    assert "**Nothing moves**" in summary
    assert "| alpine | 0 |" in summary


def test_the_workflow_fails_where_addresses_in_use_move(folder, plan, locked, workflow, tmp_path):
    text = PLAN.replace("pods_per_node: 31", "pods_per_node: 33")
    changed(folder, plan, text, locked, "--renumber")
    assert workflow("report").returncode == 0
    assert "**1 entries move**" in (tmp_path / "summary.md").read_text()
    assert workflow("addresses").returncode == 1


def test_the_workflow_fails_for_a_lock_that_does_not_answer(folder, plan, workflow):
    changed(folder, plan, PLAN + ALPINE)
    assert workflow("report").returncode == 3


def test_the_workflow_takes_the_first_lock(folder, workflow):
    git(folder, "rm", "--cached", "plan.lock.yaml")
    assert git(folder, "commit", "-m", "no lock").returncode == 0
    git(folder, "checkout", "-b", "change")
    git(folder, "add", "plan.lock.yaml")
    assert git(folder, "commit", "-m", "first").returncode == 0
    for name in ("report", "addresses"):
        assert workflow(name).returncode == 0
