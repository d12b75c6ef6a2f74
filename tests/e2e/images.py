"""The images of a cluster, as archives that a node imports instead of pulling them."""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode
from tempfile import TemporaryDirectory

from cni import build
from tests.runtimes.images import build_probe, oci_archive, root_files

SOURCE = Path(__file__).parents[2]
PAUSE_IMAGE = "netmgr.test/busybox:1"
PACKAGES = ("cni", "exporter", "netmgr")
NETMGR_IMAGE = "registry.example.com/netmgr:0.1.0"
"""As configs/kubernetes/components/image names it."""

NEXT_IMAGE = "registry.example.com/netmgr:0.1.1"
"""The same under the tag of an upgrade."""

CONTAINERFILE = """
FROM {base}
USER 0
RUN ["python3", "-c", "import shutil; [shutil.rmtree('{site_packages}/' + p) for p in {packages}]"]
USER 65534:65534
COPY packages {site_packages}
"""
"""The packages are removed first, since another version may have a module where one is a package.
"""


@dataclass(frozen=True, slots=True)
class Archive:
    """An image as a file, with the name it has there, and those under which pods ask for it."""

    path: Path
    name: str
    aliases: tuple[str, ...] = ()


_ATTEMPTS = 5


def make(folder: Path) -> list[Archive]:
    """Make all of them in `folder`, whose name no other cluster has."""
    busybox = Archive(folder / "busybox.tar", PAUSE_IMAGE)
    busybox.path.write_bytes(
        oci_archive(PAUSE_IMAGE, ["sleep", "1000000"], root_files(build_probe(folder)))
    )
    return [busybox, of_source(SOURCE, folder, NETMGR_IMAGE, NEXT_IMAGE)]


def of_source(source: Path, folder: Path, *aliases: str) -> Archive:
    """Make an image of netmgr's source in `folder`, whose name no other cluster has."""
    tag = aliases[0].rpartition(":")[2]
    name = f"localhost/netmgr-{folder.name}:{tag}"
    archive = Archive(folder / f"netmgr-{tag}.tar", name, aliases)
    _add_source(source, os.environ.get("NETMGR_E2E_IMAGE", "netmgr:dev"), name)
    try:
        _podman("save", "--format=docker-archive", f"--output={archive.path}", name)
    finally:
        _podman("rmi", "--force", name)
    return archive


def _add_source(source: Path, base: str, name: str) -> None:
    """Replace netmgr in the image `base`, whatever version it has, by that of another folder."""
    root = Path(_podman("image", "mount", base).strip())
    try:
        (installed,) = root.glob("opt/netmgr/lib/python3*/site-packages")
        site_packages = f"/{installed.relative_to(root)}"
    finally:
        _podman("image", "unmount", base)
    build.launcher()  # compiled here if its sources have changed: the image has no compiler
    with TemporaryDirectory() as context:
        packages = Path(context, "packages")
        for each in PACKAGES:
            shutil.copytree(
                source / each, packages / each, ignore=shutil.ignore_patterns("__pycache__")
            )
        compileall.compile_dir(
            packages,
            quiet=1,
            stripdir=str(packages),
            prependdir=site_packages,
            invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
        )
        Path(context, "Containerfile").write_text(
            CONTAINERFILE.format(base=base, site_packages=site_packages, packages=PACKAGES)
        )
        _podman("build", "--quiet", "--isolation=chroot", f"--tag={name}", context)


def _podman(*arguments: str) -> str:
    for _ in range(_ATTEMPTS):
        done = subprocess.run(["podman", *arguments], capture_output=True, text=True, check=False)
        # crun seals a copy of itself in memory. The kernel refuses that (EBUSY) while it happens to
        # look at one of the pages, for example to find what can be reclaimed.
        if "sealing memfd" not in done.stderr:
            break
    assert done.returncode == 0, f"podman {' '.join(arguments)}: {done.stderr}"
    return done.stdout
