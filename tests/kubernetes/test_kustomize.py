"""The fake of kustomize makes what kustomize makes, of every overlay and with every component."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.fakes import kustomize
from tests.kubernetes import manifests, programs
from tests.kubernetes.manifests import keyed

pytestmark = pytest.mark.kubernetes

COMPONENTS = sorted(path.name for path in (manifests.HERE / "components").iterdir())
OFTEN_EXTENDED = ("cni", "observer", "controller")


@pytest.fixture(autouse=True)
def _built() -> None:
    if reason := programs.missing():
        pytest.skip(reason)


@pytest.mark.parametrize("overlay", manifests.OVERLAYS)
def test_an_overlay(overlay: str):
    built = keyed(kustomize.build(manifests.HERE / "overlays" / overlay))
    assert built == keyed(manifests.overlay(overlay))


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_on_overlays_that_can_have_it_and_on_others(component: str, tmp_path: Path):
    built = 0
    for overlay in OFTEN_EXTENDED:
        folder = manifests.extended(tmp_path, overlay, component)
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
    folder = manifests.extended(tmp_path, "flat", *chosen)
    assert keyed(kustomize.build(folder)) == keyed(manifests.build(folder))
