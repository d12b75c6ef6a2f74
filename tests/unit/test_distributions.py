"""Wheel and source archive: what is in them, and who may install them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

import netmgr
from cni import build
from netmgr.provenance import COMMIT

pytestmark = [pytest.mark.programs, pytest.mark.slow]

SOURCE = Path(__file__).parents[2]
HOST = build.host_architecture()
BUILT_FROM = "0123456789abcdef0123456789abcdef01234567"
RECORD = {"commit": BUILT_FROM, "committed": "2026-02-03T04:05:06+00:00", "dirty": True}
ENVIRONMENT = {COMMIT: f"{BUILT_FROM}-dirty", "SOURCE_DATE_EPOCH": "1770091506"}


def built(kind: str, source: Path, target: Path, **environment: str) -> Path:
    """The archive that hatchling builds of a source folder."""
    command = (sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", target)
    subprocess.run(command, cwd=source, env={**os.environ, **environment}, check=True)
    (found,) = target.iterdir()
    return found


@pytest.fixture(scope="module")
def source_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("sdist", SOURCE, tmp_path_factory.mktemp("sdist"), **ENVIRONMENT)


@pytest.fixture(scope="module")
def unpacked(source_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    subprocess.run(["tar", "-x", "-C", folder, "-f", source_archive], check=True)
    return folder / f"netmgr-{netmgr.__version__}"


def test_a_wheel_is_for_the_machine_whose_program_it_carries(tmp_path: Path):
    wheel = built("wheel", SOURCE, tmp_path, **ENVIRONMENT)
    _, _, _, tags = parse_wheel_filename(wheel.name)
    assert tags & {*sys_tags()}
    for libc in ("manylinux2014", "musllinux_1_1"):
        assert f"{libc}_{build.MACHINES[HOST]}" in {each.platform for each in tags}
    with zipfile.ZipFile(wheel) as packed:
        assert [name for name in packed.namelist() if name.startswith("cni/bin/")] == [
            f"cni/bin/netmgr-cni-{HOST}"
        ]
        assert json.loads(packed.read("netmgr/build.json")) == RECORD


def installing(wheel: Path) -> subprocess.CompletedProcess[str]:
    """What pip would do with a wheel."""
    options = ("install", "--dry-run", "--no-deps", "--no-index", "--force-reinstall")
    command = (sys.executable, "-m", "pip", *options, wheel)
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_source_archive_is_the_tree_and_nothing_that_was_built(unpacked: Path):
    tree = git("ls-files", "--cached", "--others", "--exclude-standard") - git("ls-files", "-d")
    archived = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    # The chart has a link to the manifests; in the archive it has a copy of them.
    manifests, link = "configs/kubernetes/", "configs/helm/netmgr/kubernetes"
    copied = {
        f"{link}/{name.removeprefix(manifests)}" for name in tree if name.startswith(manifests)
    }
    assert archived == tree - {link} | copied | {"PKG-INFO", "netmgr/build.json"}


def git(*arguments: str) -> set[str]:
    """The lines that git answers about this source."""
    command = ("git", "-C", SOURCE, *arguments)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {*done.stdout.splitlines()}


@pytest.mark.parametrize("architecture", build.MACHINES)
def test_a_wheel_of_a_source_archive_has_its_record_and_is_installed_on_its_machine_alone(
    architecture: str, unpacked: Path, tmp_path: Path
):
    """Elsewhere pip refuses it, instead of installing a plugin that cannot run there."""
    source = shutil.copytree(unpacked, tmp_path / "source")
    launcher = source / "cni" / "bin" / f"netmgr-cni-{architecture}"
    launcher.parent.mkdir()
    # It only looks like one that was compiled.
    launcher.write_bytes(build.MARK + build.digest().encode())
    wheel = built("wheel", source, tmp_path / "wheel", NETMGR_ARCHITECTURES=architecture)
    with zipfile.ZipFile(wheel) as packed:
        assert json.loads(packed.read("netmgr/build.json")) == RECORD
        names = [name for name in packed.namelist() if name.startswith(("cni/bin/", "tests/"))]
        assert names == [f"cni/bin/{launcher.name}"]
    done = installing(wheel)
    assert (done.returncode == 0) is (architecture == HOST), done.stderr
    refusal = "is not a supported wheel on this platform"
    assert (refusal in done.stderr) is (architecture != HOST)
