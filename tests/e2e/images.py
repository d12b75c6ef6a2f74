"""The images of a cluster, as archives that a node imports instead of pulling them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.e2e.node import PAUSE_IMAGE
from tests.runtimes.images import build_probe, oci_archive

NETMGR_IMAGE = "registry.example.com/netmgr:0.1.0"
"""As configs/kubernetes/components/image names it."""


def archives(folder: Path) -> list[Path]:
    """All of them, made in `folder` when they are not there yet."""
    return [folder / "busybox.tar", folder / "netmgr.tar"]


def make(folder: Path) -> None:
    """Make the archives in `folder`."""
    probe = build_probe(folder)
    archive = oci_archive(PAUSE_IMAGE, ["sleep", "1000000"], probe)
    (folder / "busybox.tar").write_bytes(archive)
    source = os.environ.get("NETMGR_E2E_IMAGE", "netmgr:dev")
    subprocess.run(["podman", "tag", source, NETMGR_IMAGE], check=True)
    target = folder / "netmgr.tar"
    subprocess.run(
        ["podman", "save", "--quiet", "--format=docker-archive", "--output", target, NETMGR_IMAGE],
        check=True,
        capture_output=True,
    )
