"""Everything of a release is installed and tried: Debian packages on bare Debian 12 and 13, wheels,
source, manifests (`make artifacts`).

NETMGR_RELEASE names the folder with the release; without it, one is built in a clone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import netmgr
from cni import build
from tests.helm.conftest import ROOT
from tests.helm.debian import Debian, extract
from tests.kubernetes import manifests
from tests.kubernetes.control_plane import ControlPlane
from tests.waiting import eventually

pytestmark = [pytest.mark.programs, pytest.mark.root, pytest.mark.timeout(1200)]

VERSION = netmgr.__version__
PYTHON = "/opt/netmgr/bin/python"
POD = Path(__file__).with_name("pod.sh")
ENABLED = "/etc/systemd/system/multi-user.target.wants/netmgr-agent.service"
PROGRAMS = (
    *("busybox-static", "iproute2", "ipset", "iptables", "iputils-ping", "kmod", "libnftables1"),
    *("nftables", "procps", "python3"),
)
"""What a lab needs, on a machine that boots."""

VOLATILE = (
    "/proc/",
    "/sys/",
    "/dev/",
    "/run/",
    "/tmp/",  # noqa: S108 - it is the other system's
    "/var/cache/",
    "/var/log/",
    "/var/lib/dpkg/",
)


@pytest.fixture(scope="module")
def release(request: pytest.FixtureRequest) -> Path:
    if folder := os.environ.get("NETMGR_RELEASE"):
        return Path(folder)
    return Path(request.getfixturevalue("clone")) / "dist" / "release"


@pytest.fixture(scope="module")
def package(release: Path) -> Path:
    return release / f"netmgr_{VERSION}_{build.host_architecture()}.deb"


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def debian(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, package: Path
) -> Iterator[Debian]:
    """A bare Debian with the package, and with what the tests themselves use."""
    folder = tmp_path_factory.mktemp(request.param)
    made = Debian.make(request.param, folder / "root")
    shutil.copy(package, made.root / "netmgr.deb")
    made.install("/netmgr.deb")
    made.install("iproute2", "iptables", "procps", "systemd")
    shutil.copy(POD, made.root)
    yield made
    shutil.rmtree(folder)


def files(debian: Debian) -> set[str]:
    """All paths, but for what changes by itself."""
    found = debian.run("find", "/", "-xdev", "-printf", "%p/\n").split("\n")
    return {path for path in found if not path.startswith(VOLATILE)}


def test_the_package_is_as_it_was_built_and_enables_nothing(debian: Debian):
    assert debian.run("dpkg", "--verify", "netmgr") == ""
    about = json.loads(debian.run("netmgr", "version", "-o", "json"))
    assert about["release"] == VERSION
    assert about["launchers"][build.host_architecture()] == "current"
    assert not (debian.root / ENABLED[1:]).exists()
    for unit in ("agent", "exporter"):
        path = debian.root / f"usr/lib/systemd/system/netmgr-{unit}.service"
        (started,) = [
            line for line in path.read_text().splitlines() if line.startswith("ExecStart=")
        ]
        assert debian.run(started.split()[0].partition("=")[2], unit, "--help")
    debian.run("bash", "-n", "/usr/share/bash-completion/completions/netmgr")
    assert debian.run("getent", "group", "netmgr").startswith("netmgr:")
    # The C parser of YAML, and the wrapper of the legacy tables.
    debian.run(PYTHON, "-c", "import yaml; yaml.CSafeLoader")
    debian.run(PYTHON, "-W", "ignore", "-c", "import iptc")


def test_every_module_has_byte_code_for_this_debians_python(debian: Debian):
    assert debian.run("dpkg-reconfigure", "netmgr", check=False) == ""
    # Most of them no test has imported, which would have written it as well.
    modules = [*(debian.root / "opt/netmgr/lib/python3/site-packages/netmgr").rglob("*.py")]
    cached = [next((one.parent / "__pycache__").glob(f"{one.stem}.*.pyc"), None) for one in modules]
    assert modules
    assert all(cached)


def test_doctor_and_the_planner_work(debian: Debian):
    node = "/etc/netmgr/node.example.yaml"
    assert "valid" in debian.run("netmgr", "agent", "--check", "--config", node)
    assert "privileges" in debian.run("netmgr", "doctor")
    for plan in (ROOT / "configs" / "plan").iterdir():
        shutil.copy(plan, debian.root / "root" / plan.name)
        debian.run("netmgr", "plan", "lock", "--yes", "-f", f"/root/{plan.name}")
        assert "The plan is sound." in debian.run(
            "netmgr", "plan", "check", "-f", f"/root/{plan.name}"
        )


@pytest.fixture(params=["alone", "units"])
def group(request: pytest.FixtureRequest) -> Iterator[str]:
    """The control group of systemd, which is removed in the end; none for an agent without it."""
    name = f"netmgr-test-{os.getpid()}" if request.param == "units" else ""
    yield name
    if name:
        remove = (
            'mount -t cgroup2 cgroup2 /sys/fs/cgroup && find "/sys/fs/cgroup/$0" -depth -type d '
            "-exec rmdir {} +"
        )
        command = ("unshare", "--mount", "sh", "-c", remove, name)
        eventually(lambda: subprocess.run(command, check=False).returncode == 0)


@pytest.mark.parametrize("backend", ["nftables", "iptables-legacy"])
def test_a_pod_comes_and_goes(backend: str, group: str, debian: Debian):
    printed = debian.run("sh", "/pod.sh", backend, group)
    assert f"node a is ready · {backend}" in printed
    assert ("restarted by its upgrade" in printed) is bool(group)
    (answer,) = [line for line in printed.splitlines() if line.startswith("added: ")]
    addresses = [each["address"] for each in json.loads(answer.removeprefix("added: "))["ips"]]
    assert len(addresses) == 2
    assert all(f" {address} " in printed for address in addresses)
    assert 'left: Device "eth0" does not exist.' in printed


def test_another_python_gets_byte_code_of_its_own(debian: Debian):
    shutil.rmtree(debian.root / "opt/netmgr/lib/python3/site-packages/netmgr/__pycache__")
    debian.run("dpkg-trigger", "--by-package=python3-minimal", "/usr/bin/python3")
    debian.run("dpkg", "--triggers-only", "--pending")
    assert (debian.root / "opt/netmgr/lib/python3/site-packages/netmgr/__pycache__").exists()


def test_purging_removes_what_the_package_made_and_keeps_leases_and_totals(debian: Debian):
    debian.run("dpkg", "--purge", "netmgr")
    wanted_by = debian.root / ENABLED[1:]
    wanted_by.parent.mkdir(parents=True, exist_ok=True)
    kept = debian.root / "var/lib/netmgr/ipam.sqlite"
    kept.parent.mkdir(exist_ok=True)
    kept.touch()
    before = files(debian)

    debian.run("dpkg", "--install", "/netmgr.deb")
    assert len(files(debian) - before) > 1000
    wanted_by.symlink_to("/usr/lib/systemd/system/netmgr-agent.service")
    debian.run("netmgr", "version")
    debian.run("dpkg", "--remove", "netmgr")
    assert (debian.root / "etc/netmgr/node.example.yaml").exists()
    assert "kept /var/lib/netmgr" in debian.run("dpkg", "--purge", "netmgr")
    assert files(debian) == before
    assert debian.run("getent", "group", "netmgr", check=False) == ""


@pytest.mark.parametrize(
    ("suite", "backend"), [("bookworm", "iptables-legacy"), ("trixie", "nftables")]
)
def test_on_a_kernel_of_arm64_the_package_counts_every_byte_of_a_lab(
    suite: str, backend: str, release: Path, tmp_path: Path
):
    made = Debian.unpack(suite, "arm64", tmp_path / "root", *PROGRAMS, "linux-image-arm64")
    extract(release / f"netmgr_{VERSION}_arm64.deb", made.root)
    # The lab is the clone's; what it starts is the package's.
    shutil.copytree(ROOT / "tests" / "lab", made.root / "tests" / "lab")
    (kernel,) = tmp_path.glob("linux-image-[0-9]*_arm64.deb")
    command = f"ldconfig && netmgr version && {PYTHON} -m tests.lab run --backend {backend}"
    done = subprocess.run(
        [ROOT / ".ci" / "vm", kernel, "sh", "-c", command],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"ROOT": str(made.root)},
    )
    shutil.rmtree(made.root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f" on aarch64 ({PYTHON})" in done.stdout
    assert "arm64: current" in done.stdout
    assert f" · {backend} · " in done.stdout
    assert "bytes to and from the internet by 8 pods: every byte counted." in done.stdout


def test_the_wheel_installs_without_a_package_index(release: Path, tmp_path: Path):
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    options = ("--no-deps", "--no-build-isolation", "--use-pep517", "--require-hashes")
    lock = ROOT / ".ci" / "runtime.lock"
    subprocess.run(
        [*pip, "wheel", *options, "--requirement", lock, "--wheel-dir", tmp_path / "wheels"],
        check=True,
    )
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    (wheel,) = release.glob(f"*{build.MACHINES[build.host_architecture()]}.whl")
    own = (tmp_path / "venv" / "bin" / "python", *pip[1:])
    dependencies = (tmp_path / "wheels").iterdir()
    subprocess.run([*own, "install", "--no-index", *dependencies, wheel], check=True)
    program = tmp_path / "venv" / "bin" / "netmgr"
    done = subprocess.run([program, "version", "-o", "json"], check=True, capture_output=True)
    assert json.loads(done.stdout)["release"] == VERSION


def test_the_source_builds(release: Path, tmp_path: Path):
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", tmp_path)
    source = release / f"netmgr-{VERSION}.tar.gz"
    subprocess.run([*pip, "wheel", *options, source], check=True)
    (wheel,) = tmp_path.iterdir()
    assert wheel.name.startswith(f"netmgr-{VERSION}-py3-none-")


def test_an_api_server_takes_the_manifests(release: Path, tmp_path: Path):
    with ControlPlane(tmp_path).running() as plane:
        paths = sorted(release.glob("install-*.yaml"))
        assert len(paths) == 4
        for path in paths:
            for each in yaml.safe_load_all(path.read_text()):
                manifests.apply(plane, each)


def test_the_image_archive_lists_an_image_of_this_machine(release: Path):
    path = release / f"netmgr-image-{VERSION}.tar"
    if not path.exists():  # built without BASE: then nothing promises one
        assert "image" not in (release / "SHA256SUMS").read_text()
        return
    with tarfile.open(path) as archive:

        def read(name: str) -> Any:
            member = archive.extractfile(name)
            assert member
            return json.load(member)

        (entry,) = read("index.json")["manifests"]
        listed = read(f"blobs/{entry['digest'].replace(':', '/')}")["manifests"]
        found = {each["platform"]["architecture"]: each["digest"] for each in listed}
        image = read(f"blobs/{found[build.host_architecture()].replace(':', '/')}")
        config = read(f"blobs/{image['config']['digest'].replace(':', '/')}")["config"]
    assert config["Entrypoint"] == ["netmgr"]
    assert config["Labels"]["org.opencontainers.image.base.digest"].startswith("sha256:")
    for architecture in found:
        materials = release / f"netmgr-image-{VERSION}-{architecture}.cdx.json"
        assert json.loads(materials.read_text())["components"]
