"""The fake of kustomize makes what kustomize makes, of every overlay and with every component."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.fakes import kustomize
from tests.kubernetes import manifests, programs
from tests.kubernetes.control_plane import Object

pytestmark = pytest.mark.kubernetes

COMPONENTS = sorted(path.name for path in (manifests.HERE / "components").iterdir())
OFTEN_EXTENDED = ("cni", "observer", "controller")
Key = tuple[str, str, str]


@pytest.fixture(autouse=True)
def _built() -> None:
    if reason := programs.missing():
        pytest.skip(reason)


def keyed(objects: list[Object]) -> dict[Key, Object]:
    found = {}
    for each in objects:
        metadata = each["metadata"]
        found[each["kind"], metadata.get("namespace", ""), metadata["name"]] = each
    assert len(found) == len(objects)
    return found


def folder_of(overlay: str) -> Path:
    return manifests.HERE / "overlays" / overlay


def with_components(overlay: str, components: list[str], folder: Path) -> Path:
    """A kustomization that adds components to an overlay."""
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(folder_of(overlay), folder)],
        "components": [
            os.path.relpath(manifests.HERE / "components" / each, folder) for each in components
        ],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
    return folder


@pytest.mark.parametrize("overlay", manifests.OVERLAYS)
def test_an_overlay(overlay: str):
    folder = folder_of(overlay)
    assert keyed(kustomize.build(folder)) == keyed(manifests.build(folder))


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_on_overlays_that_can_have_it_and_on_others(component: str, tmp_path: Path):
    built = 0
    for overlay in OFTEN_EXTENDED:
        folder = with_components(overlay, [component], tmp_path)
        try:
            real = keyed(manifests.build(folder))
        except subprocess.CalledProcessError:
            with pytest.raises((AssertionError, IndexError, KeyError)):
                kustomize.build(folder)
        else:
            assert keyed(kustomize.build(folder)) == real
            built += 1
    assert built, "no overlay can have it"


def test_several_components_in_a_kustomization_of_ones_own(tmp_path: Path):
    chosen = ["host-ports", "quota-events", "node-health", "pod-monitor", "host-network-pods"]
    folder = with_components("flat", chosen, tmp_path)
    assert keyed(kustomize.build(folder)) == keyed(manifests.build(folder))
