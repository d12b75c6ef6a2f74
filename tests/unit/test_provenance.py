"""`netmgr version` says what this netmgr was built from, and says so if nobody knows."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from netmgr import provenance
from netmgr.provenance import COMMIT, Provenance

SOMEBODY = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.com")
WHEN = "2026-02-03T04:05:06+00:00"
BUILT_FROM = "0123456789abcdef0123456789abcdef01234567"


def git(folder: Path, *arguments: str) -> str:
    command = ("git", "-C", folder, *SOMEBODY, *arguments)
    environment = {"GIT_COMMITTER_DATE": WHEN, "GIT_CONFIG_GLOBAL": "/dev/null", "PATH": "/usr/bin"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("as committed")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    return tmp_path


@pytest.mark.programs
def test_a_checkout_is_its_commit_and_whether_it_was_changed(checkout):
    commit = git(checkout, "rev-parse", "HEAD")
    git(checkout, "tag", "v1.0.0")
    assert provenance.of_checkout(checkout, {}) == Provenance(commit, WHEN, dirty=False)
    (checkout / "file").write_text("changed")
    assert provenance.of_checkout(checkout, {}) == Provenance(commit, WHEN, dirty=True)


@pytest.mark.programs
def test_a_folder_within_another_repository_is_not_taken_for_it(checkout):
    (checkout / "inside").mkdir()
    assert provenance.of_checkout(checkout / "inside", {}) == Provenance()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({COMMIT: BUILT_FROM}, Provenance(BUILT_FROM, None, dirty=False)),
        (
            {COMMIT: f"{BUILT_FROM}-dirty", "SOURCE_DATE_EPOCH": "1770091506"},
            Provenance(BUILT_FROM, WHEN, dirty=True),
        ),
        ({COMMIT: ""}, Provenance()),
    ],
)
def test_a_build_without_gits_data_is_what_its_environment_says(tmp_path, environment, expected):
    assert provenance.of_checkout(tmp_path, environment) == expected


def test_what_a_build_recorded_is_read_back(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "RECORD", tmp_path / "build.json")
    built = Provenance(BUILT_FROM, WHEN, dirty=False)
    provenance.RECORD.write_text(provenance.as_json(built))
    assert provenance.read() == built


@pytest.mark.parametrize("content", ["", "[]", "{", json.dumps({"unknown": 1})])
def test_a_damaged_record_is_no_fault_of_the_command(tmp_path, monkeypatch, content):
    monkeypatch.setattr(provenance, "RECORD", tmp_path / "build.json")
    provenance.RECORD.write_text(content)
    assert provenance.read() == Provenance()
