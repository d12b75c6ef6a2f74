"""What kustomize makes of configs/kubernetes, applied as `kubectl apply` does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import yaml

from tests.kubernetes import programs
from tests.kubernetes.control_plane import ControlPlane, Object
from tests.waiting import PATIENCE

HERE = Path(__file__).parents[2] / "configs" / "kubernetes"
OVERLAYS = sorted(path.name for path in (HERE / "overlays").iterdir())
INSTALLED = ("controller", "nat-host", "flat", "cni")
"""Those that the tests' server has."""


def build(folder: Path) -> list[Object]:
    """The objects of a kustomization, in the order to apply them."""
    text = subprocess.run(
        [*programs.kustomize(), folder],
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    ).stdout
    return list(yaml.load_all(text, Loader=yaml.CSafeLoader))


@cache
def overlay(name: str) -> list[Object]:
    """The objects of an overlay."""
    return build(HERE / "overlays" / name)


def extended(folder: Path, overlay: str, *components: str) -> Path:
    """A kustomization in `folder` that adds components to an overlay."""
    above = os.path.relpath(HERE, folder.resolve())
    lines = [
        f"resources: [{above}/overlays/{overlay}]",
        f"components: [{', '.join(f'{above}/components/{each}' for each in components)}]",
    ]
    (folder / "kustomization.yaml").write_text("\n".join(lines))
    return folder


def with_component(folder: Path, overlay: str, component: str) -> list[Object]:
    """The objects of an overlay with one more component; `folder` gets the kustomization."""
    return build(extended(folder, overlay, component))


def keyed(objects: list[Object]) -> dict[tuple[str, str, str], Object]:
    """Objects by what names them in a cluster."""
    by_name = {
        (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each
        for each in objects
    }
    assert len(by_name) == len(objects)
    return by_name


def apply(plane: ControlPlane, found: Object, *, dry_run: bool = False) -> Object:
    """Server-side apply, by one owner; fields the server does not know are refused."""
    options = "fieldManager=test&fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
    return plane.ask("PATCH", f"{path_of(plane, found)}?{options}", found, kind="apply-patch+yaml")


def path_of(plane: ControlPlane, found: Object) -> str:
    """Where an object stands, as the server's discovery tells."""
    version, metadata = found["apiVersion"], found["metadata"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    kinds = {
        each["kind"]: each
        for each in plane.ask("GET", root)["resources"]
        if "/" not in each["name"]
    }
    kind = kinds[found["kind"]]
    scope = f"/namespaces/{metadata['namespace']}" if kind["namespaced"] else ""
    return f"{root}{scope}/{kind['name']}/{metadata['name']}"


@contextmanager
def granted(plane: ControlPlane, component: str, namespace: str) -> Iterator[None]:
    """A component's rights for the length of the block, and a namespace without Events after it."""
    path = HERE / "components" / component / "rbac.yaml"
    rights = list(yaml.safe_load_all(path.read_text()))
    for wanted in rights:
        apply(plane, wanted)
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    plane.answer("POST", "/api/v1/namespaces", body)
    yield
    plane.ask("DELETE", f"/api/v1/namespaces/{namespace}/events")
    for wanted in rights:
        plane.ask("DELETE", path_of(plane, wanted))
