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
COPY packages {site_packages}
"""


@dataclass(frozen=True, slots=True)
class Archive:
    """An image as a file, with the name it has there, and those under which pods ask for it."""

    path: Path
    name: str
    aliases: tuple[str, ...] = ()


def make(folder: Path) -> list[Archive]:
    """Make all of them in `folder`, whose name no other cluster has."""
    busybox = Archive(folder / "busybox.tar", PAUSE_IMAGE)
    busybox.path.write_bytes(
        oci_archive(PAUSE_IMAGE, ["sleep", "1000000"], root_files(build_probe(folder)))
    )
    name = f"localhost/netmgr-{folder.name}:latest"
    netmgr = Archive(folder / "netmgr.tar", name, (NETMGR_IMAGE, NEXT_IMAGE))
    _add_this_source(os.environ.get("NETMGR_E2E_IMAGE", "netmgr:dev"), name)
    try:
        _podman("save", "--format=docker-archive", f"--output={netmgr.path}", name)
    finally:
        _podman("rmi", "--force", name)
    return [busybox, netmgr]


def _add_this_source(base: str, name: str) -> None:
    """Replace netmgr in the image `base`, whatever version it has, by this folder's."""
    root = Path(_podman("image", "mount", base).strip())
    try:
        (installed,) = root.glob("opt/netmgr/lib/python3*/site-packages")
        site_packages = f"/{installed.relative_to(root)}"
    finally:
        _podman("image", "unmount", base)
    with TemporaryDirectory() as context:
        packages = Path(context, "packages")
        for each in PACKAGES:
            shutil.copytree(
                SOURCE / each, packages / each, ignore=shutil.ignore_patterns("__pycache__")
            )
        compileall.compile_dir(
            packages,
            quiet=1,
            stripdir=str(packages),
            prependdir=site_packages,
            invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
        )
        Path(context, "Containerfile").write_text(
            CONTAINERFILE.format(base=base, site_packages=site_packages)
        )
        _podman("build", "--quiet", f"--tag={name}", context)


def _podman(*arguments: str) -> str:
    done = subprocess.run(["podman", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"podman {' '.join(arguments)}: {done.stderr}"
    return done.stdout
