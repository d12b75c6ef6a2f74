"""The chart installs what kustomize installs, and refuses values that it does not know.

`make artifacts` runs this; `make test` builds no helm, and `tests/unit/test_chart.py` is its part.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml

from netmgr.documents import loader
from netmgr.documents.node import NodeDocument
from tests.helm import programs
from tests.kubernetes import manifests

pytestmark = [pytest.mark.programs, pytest.mark.timeout(120)]

CHART = Path(__file__).parents[2] / "configs" / "helm" / "netmgr"
OVERLAYS = manifests.HERE / "overlays"
MODES = ("observer", "cni", "flat", "nat-host", "uninstall")
OPTIONS = (
    ("observer", "host-network-pods", "throughput-test", "pod-monitor"),
    ("observer", "seccomp", "preflight"),
    ("cni", "bandwidth", "host-ports", "k3s", "controller-on-workers", "quota-events"),
    ("cni", "host-network-pods", "seccomp", "pod-monitor", "preflight"),
    ("flat", "node-health", "taint-unhealthy", "quota-events", "preflight"),
    ("cni", "seccomp", "seccomp-links", "budgets", "preflight"),
    ("nat-host", "seccomp", "pod-monitor"),
    ("uninstall", "pod-monitor"),
)
Object = dict[str, Any]


def template(folder: Path, values: Object) -> CompletedProcess[str]:
    """What helm makes of these values."""
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    return programs.run("template", "netmgr", CHART, "--namespace", "netmgr", "--values", file)


def keyed(objects: list[Object]) -> dict[tuple[str, str, str], Object]:
    """Without the namespace that Helm has to find."""
    by_name = manifests.keyed(objects)
    by_name.pop(("Namespace", "", "netmgr"), None)
    return by_name


def installed(folder: Path, **values: Any) -> dict[tuple[str, str, str], Object]:
    """Manifests with these values; an error of the chart fails the test."""
    done = template(folder, values)
    assert done.returncode == 0, done.stderr
    return keyed([each for each in yaml.safe_load_all(done.stdout) if each])


def refused(folder: Path, **values: Any) -> str:
    """Why helm takes no such values."""
    done = template(folder, values)
    assert done.returncode != 0
    return done.stderr


def kustomized(folder: Path, mode: str, *components: str) -> dict[tuple[str, str, str], Object]:
    """What kustomize makes of an overlay and more components, with the image of both."""

    def lead(name: str) -> str:
        target = (OVERLAYS / mode / name).resolve()
        return name if target.is_file() else os.path.relpath(target, inner.resolve())

    inner, outer = folder / "inner", folder / "outer"
    shutil.copytree(OVERLAYS / mode, inner)
    outer.mkdir()
    document = yaml.safe_load((inner / "kustomization.yaml").read_text())
    document["resources"] = [lead(each) for each in document["resources"]]
    *own, image = [lead(each) for each in document["components"]]
    document["components"] = own
    (inner / "kustomization.yaml").write_text(yaml.safe_dump(document))
    options = [lead(f"../../components/{each}") for each in components]
    document = {"resources": ["../inner"], "components": [*options, image]}
    (outer / "kustomization.yaml").write_text(yaml.safe_dump(document))
    return keyed(manifests.build(outer))


def pods(objects: dict[tuple[str, str, str], Object]) -> dict[str, Object]:
    return {
        name: each["spec"]["template"]
        for (kind, _, name), each in objects.items()
        if kind in {"DaemonSet", "Deployment"}
    }


def containers(pod: Object) -> list[Object]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


@pytest.mark.parametrize("mode", MODES)
def test_helm_finds_nothing_to_object_to(mode: str):
    done = programs.run("lint", "--strict", CHART, "--namespace", "netmgr", "--set", f"mode={mode}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "mode_and_components", [*((mode,) for mode in MODES), *OPTIONS], ids="-".join
)
def test_a_mode_with_components_is_what_kustomize_makes(
    mode_and_components: tuple[str, ...], tmp_path: Path
):
    mode, *components = mode_and_components
    # The order of the values is nobody's concern.
    found = installed(tmp_path, mode=mode, components=components[::-1])
    assert found == kustomized(tmp_path, mode, *components)


def test_a_plan_is_what_kustomize_makes_of_the_overlay_controller(tmp_path: Path):
    given = OVERLAYS / "controller"
    plan = {
        "document": (given / "plan.yaml").read_text(),
        "lock": (given / "plan.lock.yaml").read_text(),
    }
    found = installed(tmp_path, mode="cni", plan=plan)
    assert found == kustomized(tmp_path, "cni") | keyed(manifests.build(given))


def test_two_releases_are_a_cluster_with_nat_hosts(tmp_path: Path):
    """Of the overlay openai-like; they share no object, or Helm would refuse the second."""
    given = OVERLAYS / "openai-like"
    cni = installed(tmp_path, mode="cni", nodeDocument=(given / "node.yaml").read_text())
    nat = installed(tmp_path, mode="nat-host", nodeDocument=(given / "nat-host.yaml").read_text())
    assert not cni.keys() & nat.keys()
    assert cni | nat == keyed(manifests.build(given))


def test_keys_of_node_take_the_place_of_the_modes_own(tmp_path: Path):
    given = {"internal": ["10.0.0.0/8", "fc00::/7"], "masquerade": False, "reader_group": 7}
    found = installed(tmp_path, mode="observer", node=given)
    (data,) = [each["data"] for (kind, _, _), each in found.items() if kind == "ConfigMap"]
    document = yaml.safe_load(data["node.yaml"])
    assert document == {"apiVersion": "netmgr.io/v1alpha1", "kind": "Node", "cni": False, **given}
    file = tmp_path / "node.yaml"
    file.write_text(yaml.safe_dump(document | {"node": {"name": "a", "addresses": ["10.0.0.1"]}}))
    assert not loader.load(file, NodeDocument).masquerade


def test_another_document_is_another_name_which_replaces_the_pods(tmp_path: Path):
    names = set()
    for mtu in (1400, 1500):
        found = installed(tmp_path, mode="cni", node={"mtu": mtu})
        (name,) = [name for kind, _, name in found if kind == "ConfigMap"]
        volumes = pods(found)["netmgr"]["spec"]["volumes"]
        assert [each for each in volumes if each.get("configMap") == {"name": name}]
        names.add(name)
    assert len(names) == 2


def test_every_container_has_the_image_of_the_values(tmp_path: Path):
    image = {"repository": "registry.example.com/a", "tag": "1.2.3", "pullPolicy": "Always"}
    image["pullSecrets"] = ["one"]
    found = installed(tmp_path, mode="flat", image=image, components=["preflight"])
    for pod in pods(found).values():
        assert {each["image"] for each in containers(pod)} == {"registry.example.com/a:1.2.3"}
        assert {each["imagePullPolicy"] for each in containers(pod)} == {"Always"}
        assert pod["spec"]["imagePullSecrets"] == [{"name": "one"}]
    digest = f"sha256:{'0' * 64}"
    for pod in pods(installed(tmp_path, mode="nat-host", image={"digest": digest})).values():
        found = {each["image"] for each in containers(pod)}
        assert found == {f"registry.example.com/netmgr@{digest}"}


def test_pods_have_the_settings_of_the_values(tmp_path: Path):
    resources = {"limits": {"memory": "1Gi"}}
    agents = {
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "nodeSelector": {"pool": "gpu"},
        "podAnnotations": {"team": "net"},
        "maxUnavailable": 2,
    }
    values = {"agent": agents, "controller": {"priorityClassName": "ours"}}
    made = installed(tmp_path, mode="cni", resources={"agent": resources}, **values)
    strategy = made["DaemonSet", "netmgr", "netmgr"]["spec"]["updateStrategy"]
    assert strategy["rollingUpdate"] == {"maxUnavailable": 2}
    found = pods(made)
    agent, controller = found["netmgr"], found["netmgr-controller"]
    assert agent["spec"]["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert agent["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "gpu"}
    assert agent["metadata"]["annotations"]["team"] == "net"
    assert agent["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] == "agent"
    (container,) = [each for each in containers(agent) if each["name"] == "agent"]
    assert container["resources"] == resources
    assert controller["spec"]["priorityClassName"] == "ours"
    assert len(controller["spec"]["tolerations"]) > 1


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"mod": "cni"}, "mod"),
        ({"mode": "cilium"}, "mode"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"node": {"intern": []}}, "intern"),
        ({"components": ["pod-monitors"]}, "components"),
        ({"agent": {"toleration": []}}, "toleration"),
        ({"agent": {"maxUnavailable": "0%"}}, "maxUnavailable"),
        ({"controller": {"maxUnavailable": 2}}, "maxUnavailable"),
        ({"resources": {"agent": {"limit": {}}}}, "limit"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_the_schema_refuses_what_values_do_not_have(values: Object, named: str, tmp_path: Path):
    error = refused(tmp_path, **values)
    assert "values don't meet the specifications of the schema" in error
    assert named in error


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"mode": "observer", "components": ["bandwidth"]}, "bandwidth has nothing to change"),
        ({"mode": "nat-host", "components": ["seccomp-links"]}, "seccomp-links has nothing to"),
        ({"mode": "observer", "plan": {"document": "a", "lock": "b"}}, "does not have; the modes"),
        ({"mode": "cni", "plan": {"document": "a"}}, "plan.document and plan.lock go together"),
        ({"mode": "uninstall", "node": {"mtu": 1400}}, "leave node and nodeDocument out"),
        ({"mode": "cni", "node": {"mtu": 1400}, "nodeDocument": "a: ["}, "nodeDocument is no YAML"),
    ],
)
def test_what_would_have_no_effect_is_refused(values: Object, why: str, tmp_path: Path):
    assert why in refused(tmp_path, **values)


def test_another_namespace_is_refused():
    done = programs.run("template", "netmgr", CHART, "--namespace", "default")
    assert done.returncode != 0
    assert "helm install … --namespace netmgr" in done.stderr


@pytest.mark.parametrize("mode", MODES)
def test_notes_name_a_workload_of_the_mode(mode: str, tmp_path: Path):
    """`--dry-run=client` shows them without a cluster."""
    done = programs.run(
        *("install", "netmgr", CHART, "--namespace", "netmgr", "--set", f"mode={mode}"),
        *("--dry-run=client", "--output", "json"),
    )
    assert done.returncode == 0, done.stderr
    notes = yaml.safe_load(done.stdout)["info"]["notes"]
    assert f"mode {mode}." in notes
    (workload,) = {
        word.removeprefix("daemonset/") for word in notes.split() if "daemonset/" in word
    }
    assert workload in pods(installed(tmp_path, mode=mode))
