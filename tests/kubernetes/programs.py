"""Where kube-apiserver, etcd and kustomize are: in KUBEBUILDER_ASSETS, or where `make test-all`
puts them.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.built import built

MODULE = Path(__file__).parent / "envtest"
NEEDED = ("kube-apiserver", "etcd")
BUILDERS = ("kustomize", "kubectl")
"""Either builds a kustomization."""


def folder() -> Path:
    """The folder that has them, or would have."""
    if named := os.environ.get("KUBEBUILDER_ASSETS"):
        return Path(named)
    return built(MODULE, "envtest")


def missing() -> str:
    """Why tests cannot run, in one line; empty when they can."""
    if all(map(_has, NEEDED)) and any(map(_has, BUILDERS)):
        return ""
    return (
        f"no kube-apiserver, etcd and kubectl in {folder()}: `make test-all` builds them once, in "
        "ten minutes; or name a folder that has them in KUBEBUILDER_ASSETS"
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
