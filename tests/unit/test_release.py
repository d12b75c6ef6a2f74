"""`make release` refuses what no commit says; `netmgr version` says what netmgr was built from, and
says so if nobody knows.

A whole release is built and tried by `make artifacts` (`tests/helm/release.py`).
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from netmgr import programs, provenance
from netmgr.provenance import COMMIT, Provenance

ROOT = Path(__file__).parents[2]
SETTINGS = {"image": "registry.example.com/netmgr", "documentation": "https://docs.example.com"}
WHEN = "2026-02-03T04:05:06+00:00"
BUILT_FROM = "0123456789abcdef0123456789abcdef01234567"

pytestmark = pytest.mark.programs


def git(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "GIT_COMMITTER_DATE": WHEN}
    command = ("git", "-C", folder, *arguments)
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return done.stdout.strip()


def checkout(folder: Path, tag: str = "v1.2.3", **settings: str) -> Path:
    """A commit with these settings, tagged, which `.ci/release` belongs to."""
    (folder / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "release", folder / ".ci")
    (folder / "netmgr").mkdir()
    (folder / "netmgr" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    lines = (f'{key} = "{value}"\n' for key, value in settings.items())
    (folder / "pyproject.toml").write_text(f"[tool.netmgr.release]\n{''.join(lines)}")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "first")
    git(folder, "tag", tag)
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A commit that could be released."""
    return checkout(tmp_path / "source", **SETTINGS)


def refusal(folder: Path) -> str:
    done = programs.run([sys.executable, str(folder / ".ci" / "release")])
    assert done.returncode == 1
    assert not (folder / "dist").exists()
    return done.stderr.decode()


@pytest.mark.parametrize(
    ("missing", "settings"),
    [("image", SETTINGS | {"image": ""}), ("documentation", {"image": SETTINGS["image"]})],
    ids=["empty", "absent"],
)
def test_a_release_is_refused_while_a_setting_is_unset(missing, settings, tmp_path):
    error = refusal(checkout(tmp_path / "source", **settings))
    assert error.startswith(f"release: pyproject.toml: [tool.netmgr.release] has no {missing}: ")
    assert error.count("release: ") == 1


def test_a_setting_with_a_typo_is_refused(tmp_path):
    error = refusal(checkout(tmp_path / "source", **SETTINGS, documantation="https://a.example"))
    assert error == "release: pyproject.toml: [tool.netmgr.release] knows no documantation\n"


@pytest.mark.parametrize("name", ["netmgr/__init__.py", "new.py"])
def test_a_release_is_refused_from_what_is_not_committed(name, source):
    with (source / name).open("a") as file:
        file.write("# changed\n")
    error = refusal(source)
    assert "the working tree differs from its commit; commit or remove:\n" in error
    assert name in error
    assert error.count("release: ") == 1


@pytest.mark.parametrize("tag", ["v1.2.4", "1.2.3", "v1.2.3-1"])
def test_a_release_is_refused_without_the_versions_tag(tag, tmp_path):
    error = refusal(checkout(tmp_path / "source", tag, **SETTINGS))
    assert error == (
        f"release: HEAD has no tag v1.2.3, which is netmgr.__version__, but {tag}; "
        "tag the commit of the release: git tag --sign v1.2.3\n"
    )


def test_the_tag_of_an_earlier_commit_is_none_of_this_one(source):
    git(source, "commit", "--quiet", "--allow-empty", "--message", "second")
    assert "HEAD has no tag v1.2.3, which is netmgr.__version__, but none;" in refusal(source)


def test_all_reasons_are_given_at_once(tmp_path):
    source = checkout(tmp_path / "source", "other")
    (source / "new.py").touch()
    lines = refusal(source).splitlines()
    assert len([line for line in lines if line.startswith("release: ")]) == 4


def test_the_debian_package_leaves_out_what_the_image_leaves_out():
    unused = runpy.run_path(str(ROOT / ".ci" / "debian-package"))["UNUSED"]
    dockerfile = (ROOT / "Dockerfile").read_text()
    (line,) = [line for line in dockerfile.splitlines() if line.split()[:1] == ["aiohttp-retry"]]
    assert set(line.split()) == set(unused)
    folders = ("netmgr", "cni", "exporter")
    product = [path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py")]
    imported = set(re.findall(r"^(?:import|from) (\w+)", "\n".join(product), re.MULTILINE))
    assert "pydantic" in imported
    assert not imported & {name.replace("-", "_") for name in unused}


def test_the_image_has_what_builds_the_launchers_before_the_rest_is_copied(tmp_path):
    dockerfile = (ROOT / "Dockerfile").read_text()
    for package in ("cni", "netmgr"):
        (line,) = re.findall(rf"^COPY ({package}/.*) {package}/$", dockerfile, re.MULTILINE)
        (tmp_path / package).mkdir()
        for name in line.split():
            shutil.copy(ROOT / name, tmp_path / name)
    # -I: this environment has netmgr, too.
    begin = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from cni import build; "
    done = programs.run([sys.executable, "-I", "-c", f"{begin}print(build.__file__)"])
    assert done.stdout.decode().strip() == str(tmp_path / "cni" / "build.py"), done.stderr


def test_base_is_refused_without_the_program_that_builds_images(source, tmp_path):
    git_only = tmp_path / "bin"
    git_only.mkdir()
    (git_only / "git").symlink_to(shutil.which("git") or "")
    environment = {"PATH": str(git_only), "BASE": "debian@sha256:0"}
    command = [sys.executable, str(source / ".ci" / "release"), "--check"]
    done = programs.run(command, env=environment)
    assert done.returncode == 1
    assert b"podman is missing, which builds the image: apt-get install podman\n" in done.stderr


def test_a_checkout_is_its_commit_and_whether_it_was_changed(source):
    commit = git(source, "rev-parse", "HEAD")
    assert provenance.of_checkout(source, {}) == Provenance(commit, WHEN, dirty=False)
    (source / "pyproject.toml").write_text("changed")
    assert provenance.of_checkout(source, {}) == Provenance(commit, WHEN, dirty=True)


def test_a_folder_within_another_repository_is_not_taken_for_it(source):
    assert provenance.of_checkout(source / "netmgr", {}) == Provenance()


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


RECORDED = Provenance(BUILT_FROM, WHEN, dirty=False)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (provenance.as_json(RECORDED), RECORDED),
        *((damaged, Provenance()) for damaged in ("", "[]", "{", '{"unknown": 1}')),
    ],
)
def test_what_a_build_recorded_is_read_back_and_a_damaged_record_is_no_fault_of_the_command(
    tmp_path, monkeypatch, content, expected
):
    monkeypatch.setattr(provenance, "RECORD", tmp_path / "build.json")
    provenance.RECORD.write_text(content)
    assert provenance.read() == expected
