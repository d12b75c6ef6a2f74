"""Puts launcher and build record into a wheel, and the record into source archives.

So a node needs no compiler, and `netmgr version` says what it was built from.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ARCHITECTURES = "NETMGR_ARCHITECTURES"
"""Variable with the architectures to build for, separated by spaces (default: this machine's)."""

# Platform tags that pip takes on glibc and on musl (PEP 600, PEP 656).
LIBCS = ("manylinux2014", "musllinux_1_1")


class BuildHook(BuildHookInterface[Any]):
    """Builds `cni/bin/netmgr-cni-<architecture>` before the wheel's files are collected."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Record, compile, and name the results, which version control ignores."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)  # a build runs in an environment that holds nothing of ours
        self._record(build_data)
        if self.target_name == "wheel":
            self._compile(build_data)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was made beside the source."""
        del version, build_data, artifact_path
        if hasattr(self, "_scratch"):
            self._scratch.cleanup()

    def _record(self, build_data: dict[str, Any]) -> None:
        from netmgr import provenance  # noqa: PLC0415 (importable from here on only)

        if provenance.RECORD.exists():  # this is an unpacked source archive
            return
        self._scratch = tempfile.TemporaryDirectory()
        record = Path(self._scratch.name, provenance.RECORD.name)
        source = provenance.of_checkout(Path(self.root))
        record.write_text(provenance.as_json(source), encoding="ascii")
        build_data["force_include"][str(record)] = f"netmgr/{record.name}"

    def _compile(self, build_data: dict[str, Any]) -> None:
        from cni import build  # noqa: PLC0415 (as above)

        architectures = os.environ.get(ARCHITECTURES, build.host_architecture()).split()
        for architecture in architectures:
            path = build.launcher(architecture)
            build_data["artifacts"].append(f"/{path.relative_to(Path(self.root).resolve())}")
        # Any Python, but not any machine. The launcher is static, so that neither C library is
        # asked for.
        platforms = [
            f"{libc}_{build.MACHINES[architecture]}"
            for architecture in architectures
            for libc in LIBCS
        ]
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{'.'.join(platforms)}"
