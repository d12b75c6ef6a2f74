"""What the image is made of is listed in a standard form; a release's base is one that stays."""

from __future__ import annotations

import importlib.metadata
import json
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import netmgr
from netmgr import programs

ROOT = Path(__file__).parents[2]
STATUS = """\
Package: {name}
Status: install ok installed
Architecture: amd64
Version: {version}
Description: one of several lines
 Version: not this one
"""
DIGEST = "sha256:" + "0123456789abcdef" * 4
SCRIPT = SimpleNamespace(**runpy.run_path(str(ROOT / ".ci" / "image-sbom")))


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metadata of netmgr itself, as in the image; `make pythons` runs the tree uninstalled."""
    try:
        importlib.metadata.version("netmgr")
    except importlib.metadata.PackageNotFoundError:
        made = tmp_path / "site" / f"netmgr-{netmgr.__version__}.dist-info"
        made.mkdir(parents=True)
        text = f"Metadata-Version: 2.1\nName: netmgr\nVersion: {netmgr.__version__}\n"
        (made / "METADATA").write_text(text)
        monkeypatch.syspath_prepend(made.parent)


@pytest.fixture
def listed(tmp_path: Path) -> dict[str, Any]:
    """The list for two of Debian's packages and this environment's Python packages."""
    packages = tmp_path / "var/lib/dpkg/status.d"
    packages.mkdir(parents=True)
    for name, version in (("libc6", "2.36-9+deb12u10"), ("libstdc++6", "1:12.2.0-14~x")):
        (packages / name).write_text(STATUS.format(name=name, version=version))
    launcher = SCRIPT.component("application", "netmgr-cni-amd64", "1", "pkg:generic/netmgr-cni@1")
    libc = SCRIPT.debian(STATUS.format(name="libc6-dev", version="2.36-9"))
    return SCRIPT.document(tmp_path, [(launcher, libc)])


def test_the_list_is_valid_by_the_formats_own_schema(listed: dict[str, Any]):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(listed)) is None
    assert validator.validate_str(json.dumps(listed | {"components": [{"name": "x"}]})) is not None


def test_the_list_names_packages_as_scanners_look_for_them(listed: dict[str, Any]):
    found = {part["purl"]: part["version"] for part in listed["components"]}
    assert found["pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64"] == "2.36-9+deb12u10"
    assert found["pkg:deb/debian/libstdc%2B%2B6@1%3A12.2.0-14~x?arch=amd64"] == "1:12.2.0-14~x"
    assert any(purl.startswith("pkg:pypi/python-iptables@") for purl in found)
    assert any(purl.startswith("pkg:pypi/netmgr@") for purl in found)
    (dependency,) = listed["dependencies"]
    assert {dependency["ref"], *dependency["dependsOn"]} <= found.keys()


def test_the_same_content_is_listed_with_the_same_bytes(tmp_path: Path):
    (tmp_path / "var/lib/dpkg/status.d").mkdir(parents=True)
    first, second = (json.dumps(SCRIPT.document(tmp_path, [])) for _ in range(2))
    assert first == second


@pytest.mark.programs
@pytest.mark.parametrize(
    ("base", "complaint"),
    [
        *((base, b"a release names its base by digest") for base in ("", "debian:bookworm-slim")),
        ("debian@sha256:0123", b"a release names its base by digest"),
        (f"debian@{DIGEST}", b""),
    ],
)
def test_a_release_is_built_only_on_a_base_that_a_digest_names(base: str, complaint: bytes):
    """`false` is the engine: where nothing is complained of, its build fails."""
    given = {"PATH": "/usr/bin:/bin", "ENGINE": "false", "BASE": base}
    done = programs.run([str(ROOT / ".ci/image"), "--release", "netmgr:test"], env=given)
    assert done.returncode == 1
    assert complaint in done.stderr
    assert complaint or not done.stderr
