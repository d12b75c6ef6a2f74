"""Puts the compiled launcher into a wheel, so that a node needs no compiler."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ARCHITECTURES = "NETMGR_ARCHITECTURES"
"""Variable with the architectures to build for, separated by spaces (default: this machine's)."""

LIBCS = ("manylinux2014", "musllinux_1_1")
"""Platform tags that pip takes on glibc and on musl (PEP 600, PEP 656)."""


class LauncherHook(BuildHookInterface[Any]):
    """Builds `cni/bin/netmgr-cni-<architecture>` before the wheel's files are collected."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name the results, which version control ignores."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)  # a build runs in an environment that holds nothing of ours
        from cni import build  # noqa: PLC0415 (importable from here on only)

        architectures = os.environ.get(ARCHITECTURES, build.host_architecture()).split()
        for architecture in architectures:
            path = build.launcher(architecture)
            build_data["artifacts"].append(f"/{path.relative_to(Path(self.root).resolve())}")
        if self.target_name == "wheel":
            # Any Python, but not any machine. The launcher is static, so that neither C library is
            # asked for.
            platforms = [
                f"{libc}_{build.MACHINES[each]}" for each in architectures for libc in LIBCS
            ]
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{'.'.join(platforms)}"
