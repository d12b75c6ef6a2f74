"""Rendered Kubernetes objects: read into the API's own models, with nothing lost and nothing
unknown.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import ApiClient

from netmgr.plan import files
from netmgr.plan.render.kubernetes import APP, objects
from tests.fakes.kustomize import build

KUBERNETES = Path(__file__).parents[2] / "configs" / "kubernetes"
MODELS = {
    "Namespace": "V1Namespace",
    "ServiceAccount": "V1ServiceAccount",
    "ConfigMap": "V1ConfigMap",
    "DaemonSet": "V1DaemonSet",
}
DOCUMENTS = {"plan.yaml": "kind: NetworkPlan\n", "plan.lock.yaml": "kind: NetworkPlanLock\n"}


@pytest.fixture(scope="module")
def rendered() -> list[dict[str, Any]]:
    return objects(DOCUMENTS, "172.16.0.0/16", "netmgr:test")


def through_the_models(document: dict[str, Any]) -> Any:
    """A document read by the API's model, which checks it, and written again."""
    client = ApiClient()
    # The public method of that name reads HTTP responses, and differently in each version of the
    # client.
    read = client._ApiClient__deserialize(document, MODELS[document["kind"]])
    return client.sanitize_for_serialization(read)


def test_it_is_the_golden_file(rendered, golden):
    golden("render/kubernetes.yaml", yaml.safe_dump_all(rendered, sort_keys=False))


def test_every_key_is_one_of_the_api(rendered):
    for document in rendered:
        assert through_the_models(document) == document


def test_mounts_and_volumes_agree(rendered):
    pod = rendered[-1]["spec"]["template"]["spec"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    mounted = {
        mount["name"]
        for each in pod["initContainers"] + pod["containers"]
        for mount in each["volumeMounts"]
    }
    assert mounted == volumes


def test_nothing_gets_credentials_for_the_api_and_only_the_agent_capabilities(rendered):
    assert rendered[1]["automountServiceAccountToken"] is False
    pod = rendered[-1]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    contexts = {c["name"]: c["securityContext"] for c in pod["initContainers"] + pod["containers"]}
    assert not any(context.get("privileged") for context in contexts.values())
    capable = {name: context["capabilities"].get("add") for name, context in contexts.items()}
    assert {name for name, added in capable.items() if added} == {"agent", "plugin"}
    assert capable["plugin"] == ["SYS_CHROOT"]
    built = build(KUBERNETES / "overlays" / "cni")
    (shown,) = [item["spec"] for item in built if item["kind"] == "DaemonSet"]
    containers = {item["name"]: item for item in shown["template"]["spec"]["containers"]}
    assert capable["agent"] == containers["agent"]["securityContext"]["capabilities"]["add"]
    exporter = pod["containers"][1]["securityContext"]
    assert exporter["runAsNonRoot"]
    assert exporter["capabilities"] == {"drop": ["ALL"]}


def test_the_selector_selects_the_pods(rendered):
    spec = rendered[-1]["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"] == APP


def test_a_large_plan_fits_the_config_map(rendered_lock):
    held = rendered_lock.clusters.items()
    clusters = {f"{name}{number}": cluster for number in range(50) for name, cluster in held}
    lock = rendered_lock.model_copy(update={"clusters": clusters})
    assert len(files.to_yaml(lock)) < 1 << 19  # etcd takes 1 MiB
