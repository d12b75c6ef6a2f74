"""Where a cluster's programs are: each Go module's in a folder where `.ci/programs` puts them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from tests.built import built

MODULE = Path(__file__).parent / "programs"
"""The newest minor version of Kubernetes, and what every cluster needs beside it."""

PREVIOUS = MODULE / "previous"
"""The minor version before."""

CONTAINERD_2 = MODULE / "containerd"
IN_BOTH = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubelet",
)
NEEDED = {
    MODULE: ("etcd", "kubectl", *IN_BOTH),
    PREVIOUS: IN_BOTH,
    CONTAINERD_2: ("containerd", "containerd-shim-runc-v2", "ctr"),
}
"""Without these no cluster can be made; one of the newest version does without PREVIOUS."""


def folder(module: Path = MODULE) -> Path:
    """The folder that has what the Go module at `module` builds, or would have."""
    return built(module, "e2e")


def kubernetes(name: str, *, is_previous: bool = False) -> Path:
    """A program of Kubernetes, or one that both minor versions share."""
    return folder(PREVIOUS if is_previous and name in IN_BOTH else MODULE) / name


def version(*, is_previous: bool = False) -> str:
    """The version of Kubernetes that its programs report, as in "v1.30.0"."""
    versions = (PREVIOUS if is_previous else MODULE) / "go.mod"
    found = re.search(r"k8s\.io/kubernetes (v[0-9.]+)", versions.read_text())
    assert found, f"{versions} requires no k8s.io/kubernetes"
    return found[1]


def missing(*, with_previous: bool = True) -> str:
    """Why no cluster can be made, in one line; empty when it can.

    Without the minor version before the newest, its programs need not be there.
    """
    modules = [module for module in NEEDED if with_previous or module != PREVIOUS]
    return next(filter(None, (missing_of(module, NEEDED[module]) for module in modules)), "")


def missing_of(module: Path, needed: Iterable[str]) -> str:
    """Why what needs these programs of a module cannot run, in one line; empty when it can."""
    found = folder(module)
    absent = [name for name in needed if not os.access(found / name, os.X_OK)]
    if not absent:
        return ""
    return f"no {', '.join(absent)} in {found}: build them with `make e2e` (up to an hour, once)"
