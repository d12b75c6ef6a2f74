"""Where kube-apiserver, etcd and kustomize are: in KUBEBUILDER_ASSETS, or where `make test` puts
them.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

MODULE = Path(__file__).parent / "envtest"
NEEDED = ("kube-apiserver", "etcd")
BUILDERS = ("kustomize", "kubectl")
"""Either builds a kustomization."""


def folder() -> Path:
    """The folder that has them, or would have."""
    if named := os.environ.get("KUBEBUILDER_ASSETS"):
        return Path(named)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    versions = hashlib.sha256(
        (MODULE / "go.mod").read_bytes() + (MODULE / "go.sum").read_bytes()
    ).hexdigest()
    return cache / "netmgr" / "envtest" / versions[:12]


def missing() -> str:
    """Why tests cannot run, in one line; empty when they can."""
    if all(map(_has, NEEDED)) and any(map(_has, BUILDERS)):
        return ""
    return (
        f"no kube-apiserver, etcd and kubectl in {folder()}: `make test` builds them once, in ten "
        "minutes; or name a folder that has them in KUBEBUILDER_ASSETS"
    )


def kustomize() -> list[str]:
    """The command that builds a kustomization."""
    return (
        [str(folder() / "kustomize"), "build"]
        if _has("kustomize")
        else [str(folder() / "kubectl"), "kustomize"]
    )


def _has(program: str) -> bool:
    return os.access(folder() / program, os.X_OK)
