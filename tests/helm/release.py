"""A whole release, built from a tagged clone of this checkout's commit (`make artifacts`)."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

import netmgr
from cni import build
from tests.helm import programs
from tests.helm.conftest import IMAGE, git

pytestmark = [pytest.mark.programs, pytest.mark.timeout(1200)]

VERSION = netmgr.__version__
OVERLAYS = ("cni", "flat", "observer", "uninstall")


@pytest.fixture(scope="module")
def release(clone: Path) -> Path:
    return clone / "dist" / "release"


def containers(objects: list[Any]) -> list[Any]:
    pods = [
        each["spec"]["template"]["spec"] for each in objects if "template" in each.get("spec", {})
    ]
    return [each for pod in pods for each in (*pod.get("initContainers", ()), *pod["containers"])]


def test_everything_is_there_and_has_its_checksum(release: Path):
    names = {path.name for path in release.iterdir()}
    machines = [f"manylinux2014_{each}.musllinux_1_1_{each}" for each in ("x86_64", "aarch64")]
    assert names == {
        *(f"netmgr-{VERSION}-py3-none-{machine}.whl" for machine in machines),
        *(f"netmgr_{VERSION}_{each}.deb" for each in build.MACHINES),
        *(f"netmgr-{VERSION}.{kind}" for kind in ("tar.gz", "tgz", "cdx.json")),
        *(f"install-{overlay}.yaml" for overlay in OVERLAYS),
        "SHA256SUMS",
    }
    command = ("sha256sum", "--check", "--strict", "SHA256SUMS")
    done = subprocess.run(command, cwd=release, check=True, capture_output=True, text=True)
    assert done.stdout.count(": OK") == len(names) - 1


@pytest.mark.parametrize("architecture", build.MACHINES)
def test_a_wheel_has_the_launcher_of_its_machine_and_the_commit(
    architecture: str, clone: Path, release: Path
):
    (path,) = release.glob(f"*{build.MACHINES[architecture]}.whl")
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        launchers = [name for name in names if name.startswith("cni/bin/")]
        assert launchers == [f"cni/bin/netmgr-cni-{architecture}"]
        record = json.loads(wheel.read("netmgr/build.json"))
        # An ELF header's machine, of 16 bits (elf.h).
        machine = int.from_bytes(wheel.read(launchers[0])[18:20], "little")
    assert machine == {"amd64": 62, "arm64": 183}[architecture]
    assert (record["commit"], record["dirty"]) == (git(clone, "rev-parse", "HEAD"), False)


def test_the_source_archive_has_no_launcher_and_a_whole_chart(release: Path):
    with tarfile.open(release / f"netmgr-{VERSION}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"cni/launcher.c", "Makefile", "Dockerfile", "configs/helm/netmgr/Chart.yaml"} <= names
    assert "netmgr/build.json" in names
    assert [name for name in names if name.startswith("cni/bin")] == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_manifests_name_the_image_of_the_release(overlay: str, release: Path):
    objects = list(yaml.safe_load_all((release / f"install-{overlay}.yaml").read_text()))
    assert {each["image"] for each in containers(objects)} == {IMAGE}


def test_the_chart_is_complete_and_names_image_and_documentation(release: Path):
    chart = release / f"netmgr-{VERSION}.tgz"
    assert programs.run("lint", "--strict", chart, "--namespace", "netmgr").returncode == 0
    for mode in ("observer", "flat", "nat-host"):
        options = ("--namespace", "netmgr", "--set", f"mode={mode}")
        done = programs.run("template", "a", chart, *options)
        assert done.returncode == 0, done.stderr
        found = containers([each for each in yaml.safe_load_all(done.stdout) if each])
        assert {each["image"] for each in found} == {IMAGE}
    shown = yaml.safe_load(programs.run("show", "chart", chart).stdout)
    assert shown["home"] == "https://docs.example.com"
    assert shown["version"] == shown["appVersion"] == VERSION


def test_the_list_of_materials_follows_its_schema_and_has_each_launcher(release: Path):
    text = (release / f"netmgr-{VERSION}.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    purls = {each["purl"] for each in document["components"]}
    assert f"pkg:pypi/netmgr@{VERSION}" in purls
    assert any(purl.startswith("pkg:pypi/python-iptables@") for purl in purls)
    launchers = {each["ref"] for each in document["dependencies"]}
    assert launchers == {f"pkg:generic/netmgr-cni-{each}@{VERSION}" for each in build.MACHINES}
    assert all(set(each["dependsOn"]) <= purls for each in document["dependencies"])


@pytest.mark.parametrize("architecture", build.MACHINES)
def test_a_debian_package_has_its_machines_modules_and_the_list_of_materials_names_all(
    architecture: str, release: Path, tmp_path: Path
):
    path = release / f"netmgr_{VERSION}_{architecture}.deb"
    subprocess.run(["dpkg-deb", "--raw-extract", path, tmp_path], check=True)
    site = tmp_path / "opt" / "netmgr" / "lib" / "python3" / "site-packages"
    contents = [each.read_bytes() for each in site.rglob("*") if each.is_file()]
    # An ELF header's machine, of 16 bits (elf.h).
    machines = {
        int.from_bytes(each[18:20], "little") for each in contents if each[:4] == b"\x7fELF"
    }
    assert machines == {{"amd64": 62, "arm64": 183}[architecture]}
    for module in ("pydantic_core/_pydantic_core", "yaml/_yaml"):
        found = {path.name.split("-")[1] for path in site.glob(f"{module}.cpython-*.so")}
        assert found == {"311", "312", "313"}
    assert (site / "libxtwrapper.so").exists()
    listed = json.loads((release / f"netmgr-{VERSION}.cdx.json").read_text())["components"]
    purls = {each["purl"] for each in listed}
    packaged = [*importlib.metadata.distributions(path=[str(site)])]
    assert len(packaged) > 20
    for each in packaged:
        name = re.sub(r"[-_.]+", "-", each.metadata["Name"]).lower()
        assert f"pkg:pypi/{name}@{each.version}" in purls
