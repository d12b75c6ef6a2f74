"""Where a cluster's programs are: in NETMGR_E2E_PROGRAMS, or where `.ci/programs` puts them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

MODULE = Path(__file__).parent / "programs"
NEEDED = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
)


def folder(module: Path = MODULE) -> Path:
    """The folder that has what the Go module at `module` builds, or would have."""
    if named := os.environ.get("NETMGR_E2E_PROGRAMS"):
        return Path(named)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    versions = (module / "go.mod").read_bytes() + (module / "go.sum").read_bytes()
    return cache / "netmgr" / "e2e" / hashlib.sha256(versions).hexdigest()[:12]


def missing(module: Path = MODULE, needed: Iterable[str] = NEEDED) -> str:
    """Why no cluster can be made, or what needs the programs of another module cannot run, in one
    line; empty when it can.
    """
    found = folder(module)
    absent = [name for name in needed if not os.access(found / name, os.X_OK)]
    if not absent:
        return ""
    return (
        f"no {', '.join(absent)} in {found}: build them with `make e2e` (half an hour, once), "
        "or name a folder that has them in NETMGR_E2E_PROGRAMS"
    )
