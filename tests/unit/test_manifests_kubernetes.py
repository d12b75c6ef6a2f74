"""The manifests hold together: documents that an agent accepts,
and no more privilege than is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from netmgr.cli import plan_render
from netmgr.documents import loader
from netmgr.documents.node import NodeDocument, RangeSource
from netmgr.documents.sites import Role
from netmgr.kube.agent_pods import PREFLIGHT
from netmgr.kube.node_document import RANGES_FILE
from netmgr.kube.nodes import ROLE, STARTUP_TAINT, UNHEALTHY_TAINT
from netmgr.ranges.assigned import NODE_RANGES
from tests.fakes.kustomize import build

KUBERNETES = Path(__file__).parents[2] / "configs" / "kubernetes"
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())
AGENTS = ("cni", "observer", "nat-host", "openai-like")
Object = dict[str, Any]


def pods(overlay: str) -> dict[str, Object]:
    objects = build(KUBERNETES / "overlays" / overlay)
    kinds = {"DaemonSet", "Deployment"}
    return {
        item["metadata"]["name"]: item["spec"]["template"]["spec"]
        for item in objects
        if item["kind"] in kinds
    }


def agents(overlay: str) -> dict[str, Object]:
    """The pods on every node, which are all but the controller."""
    return {name: pod for name, pod in pods(overlay).items() if name != "netmgr-controller"}


def containers(pod: Object) -> dict[str, Object]:
    return {item["name"]: item for item in (*pod.get("initContainers", ()), *pod["containers"])}


def template(overlay: str, pod: Object) -> Object:
    name = next(
        volume["configMap"]["name"] for volume in pod["volumes"] if volume["name"] == "template"
    )
    objects = build(KUBERNETES / "overlays" / overlay)
    (found,) = [
        item for item in objects if item["kind"] == "ConfigMap" and item["metadata"]["name"] == name
    ]
    return yaml.safe_load(found["data"]["node.yaml"])


@pytest.mark.parametrize("overlay", AGENTS)
def test_every_template_is_a_document_once_its_node_has_told_the_rest(overlay: str, tmp_path: Path):
    for pod in agents(overlay).values():
        document = template(overlay, pod)
        document["node"] = {"name": "worker-0", "addresses": ["10.224.0.4"]}
        file = tmp_path / "node.yaml"
        if (
            document.get("role") is None
            and document.get("cni", True)
            and "range_source" not in document
        ):
            document["ranges"] = ["10.128.0.16/28"]
        file.write_text(yaml.safe_dump(document))
        loaded = loader.load(file, NodeDocument)
        assert loaded.reader_group == containers(pod)["exporter"]["securityContext"]["runAsGroup"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nothing_is_privileged_and_all_capabilities_are_named(overlay: str):
    for pod in pods(overlay).values():
        for name, container in containers(pod).items():
            context = container["securityContext"]
            assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (
                False,
                True,
            ), name
            assert context["capabilities"]["drop"] == ["ALL"], name
            has_some = name in {"agent", "clean", "plugin"}
            assert ("add" in context["capabilities"]) == has_some, name
            if name == "plugin":
                assert context["capabilities"]["add"] == ["SYS_CHROOT"]
            assert "privileged" not in context, name


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_containers_and_probes_start_only_what_the_image_has(overlay: str):
    """It has no shell and no coreutils."""
    for pod in pods(overlay).values():
        for container in containers(pod).values():
            probes = [container[key] for key in container if key.endswith("Probe")]
            commands = [probe["exec"]["command"] for probe in probes if "exec" in probe]
            commands.append(container["command"])
            assert {command[0] for command in commands} <= {"netmgr", "python3"}


@pytest.mark.parametrize("overlay", AGENTS)
def test_a_token_reaches_only_what_asks_the_api_server(overlay: str):
    for pod in agents(overlay).values():
        assert pod["automountServiceAccountToken"] is False
        holders = {
            name
            for name, item in containers(pod).items()
            if "api" in {m["name"] for m in item["volumeMounts"]}
        }
        assert holders <= {"document", "services"}
        assert "document" in holders


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_mount_has_its_volume_and_every_volume_its_mount(overlay: str):
    for pod in pods(overlay).values():
        volumes = {volume["name"] for volume in pod["volumes"]}
        mounts = {
            mount["name"]
            for item in containers(pod).values()
            for mount in item.get("volumeMounts", ())
        }
        assert volumes == mounts


@pytest.mark.parametrize("overlay", ["cni", "openai-like"])
@pytest.mark.parametrize(
    ("component", "option"), [("host-ports", "--portmap"), ("bandwidth", "--bandwidth")]
)
def test_an_overlay_can_insist_on_a_chained_plugin(overlay: str, component: str, option: str):
    folder = KUBERNETES / "overlays" / overlay
    (found,) = [
        item
        for item in build(folder, KUBERNETES / "components" / component)
        if item["metadata"]["name"] == "netmgr" and item["kind"] == "DaemonSet"
    ]
    plugin = containers(found["spec"]["template"]["spec"])["plugin"]
    assert plugin["command"] == [
        *["netmgr", "cni", "install", "--host-root", "/host", "--wait", "10"],
        option,
    ]


def test_an_overlay_can_have_both_kinds_of_reports():
    components = [KUBERNETES / "components" / each for each in ("quota-events", "node-health")]
    made = build(KUBERNETES / "overlays" / "flat", *components)
    (deployment,) = [item for item in made if item["kind"] == "Deployment"]
    command = containers(deployment["spec"]["template"]["spec"])["controller"]["command"]
    assert command[-2:] == ["--quota-events", "--node-health"]


def test_an_overlay_can_have_events_of_spent_quotas():
    made = build(KUBERNETES / "overlays" / "cni", KUBERNETES / "components" / "quota-events")
    (deployment,) = [item for item in made if item["kind"] == "Deployment"]
    command = containers(deployment["spec"]["template"]["spec"])["controller"]["command"]
    assert command[-1] == "--quota-events"
    roles = [item for item in made if item["metadata"]["name"] == "netmgr-controller-quota-events"]
    assert {item["kind"] for item in roles} == {"ClusterRole", "ClusterRoleBinding"}


@pytest.mark.parametrize("overlay", ["cni", "flat", "openai-like"])
def test_an_overlay_can_probe_a_fresh_node_before_anything_of_it_is_touched(overlay: str):
    components = [KUBERNETES / "components" / each for each in ("preflight", "throughput-test")]
    made = build(KUBERNETES / "overlays" / overlay, *components)
    (found,) = [
        item for item in made if (item["kind"], item["metadata"]["name"]) == ("DaemonSet", "netmgr")
    ]
    pod = found["spec"]["template"]["spec"]
    assert [item["name"] for item in pod["initContainers"]] == ["document", PREFLIGHT, "plugin"]
    probing = containers(pod)[PREFLIGHT]
    context = probing["securityContext"]
    assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
    assert context["capabilities"]["drop"] == ["ALL"]
    assert probing["command"][-1] == probing.get("terminationMessagePath", "/dev/termination-log")
    # Neither a token nor anything of the machine's own files.
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["name"]: mount for mount in probing["volumeMounts"]}
    assert mounts.keys() == {"document", "preflight-nodes"}
    assert all(mount["readOnly"] for mount in mounts.values())
    assert volumes["preflight-nodes"]["configMap"]["optional"] is True
    assert containers(pod)["exporter"]["command"][-1] == "--throughput-test"
    nodes_file = Path(mounts["preflight-nodes"]["mountPath"], "nodes.json")
    if overlay == "flat":
        assert template(overlay, pod)["nodes_file"] == str(nodes_file)


def test_an_overlay_can_have_unhealthy_nodes_tainted():
    components = [KUBERNETES / "components" / each for each in ("node-health", "taint-unhealthy")]
    made = build(KUBERNETES / "overlays" / "cni", *components)
    (deployment,) = [item for item in made if item["kind"] == "Deployment"]
    command = containers(deployment["spec"]["template"]["spec"])["controller"]["command"]
    assert command[-2:] == ["--node-health", "--taint-unhealthy=5%"]
    (policy,) = [
        item
        for item in made
        if (item["kind"], item["metadata"]["name"])
        == ("ValidatingAdmissionPolicy", "netmgr-controller")
    ]
    assert policy["spec"]["variables"][0] == {"name": "taints", "expression": "true"}


def test_the_document_is_made_before_anything_of_the_node_is_touched():
    names = [item["name"] for item in pods("cni")["netmgr"]["initContainers"]]
    assert names == ["document", "plugin"]


@pytest.mark.parametrize("overlay", ["cni", "observer"])
def test_the_nodes_agent_leaves_machines_alone_that_the_controller_gives_no_ranges(overlay: str):
    affinity = pods(overlay)["netmgr"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    (term,) = affinity["nodeSelectorTerms"]
    (rule,) = term["matchExpressions"]
    assert (rule["key"], rule["operator"], set(rule["values"])) == (
        ROLE,
        "NotIn",
        set(Role) - {Role.NODE},
    )


def test_the_controller_starts_on_nodes_that_wait_for_it():
    (pod,) = pods("controller").values()
    waiting = {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/network-unavailable",
        STARTUP_TAINT,
        UNHEALTHY_TAINT,
    }
    assert waiting <= {
        each["key"] for each in pod["tolerations"] if each.get("effect") == "NoSchedule"
    }
    assert pod["hostNetwork"] is True


@pytest.mark.parametrize("overlay", ["cni", "flat", "controller", "openai-like"])
def test_the_controller_is_kept_off_workers_unless_a_component_allows_them(overlay: str):
    folder, required = (
        KUBERNETES / "overlays" / overlay,
        "requiredDuringSchedulingIgnoredDuringExecution",
    )
    component = KUBERNETES / "components" / "controller-on-workers"

    def affinity(*components: Path) -> dict[str, Any]:
        (found,) = [
            item
            for item in build(folder, *components)
            if item["metadata"]["name"] == "netmgr-controller" and item["kind"] == "Deployment"
        ]
        return found["spec"]["template"]["spec"]["affinity"]

    strict, loose = affinity(), affinity(component)
    terms = strict["nodeAffinity"][required]["nodeSelectorTerms"]
    preferred = loose["nodeAffinity"].pop("preferredDuringSchedulingIgnoredDuringExecution")
    assert not loose["nodeAffinity"], "nothing is required"
    assert loose["podAntiAffinity"] == strict["podAntiAffinity"]
    assert [each["preference"] for each in preferred][::-1] == terms


@pytest.mark.parametrize("overlay", ["cni", "openai-like"])
def test_every_overlay_that_wires_brings_the_controller_whose_annotation_the_agent_reads(
    overlay: str,
):
    assert "netmgr-controller" in pods(overlay)
    agent = pods(overlay)["netmgr"]
    (volume,) = [each for each in agent["volumes"] if "downwardAPI" in each]
    (mount,) = [
        each
        for each in containers(agent)["agent"]["volumeMounts"]
        if each["name"] == volume["name"]
    ]
    # The kubelet never updates a file that is mounted by `subPath`.
    assert mount.keys() == {"name", "mountPath", "readOnly"}
    (item,) = volume["downwardAPI"]["items"]
    assert item["fieldRef"]["fieldPath"] == f"metadata.annotations['{NODE_RANGES}']"
    assert f"{mount['mountPath']}/{item['path']}" == RANGES_FILE


def test_the_plan_is_an_object_that_every_overlays_controller_finds_by_its_name():
    """Whichever of `cni` and `controller` is applied last, the controller has the plan."""
    deployments = [
        item
        for overlay in ("cni", "controller")
        for item in build(KUBERNETES / "overlays" / overlay)
        if item["kind"] == "Deployment"
    ]
    assert deployments[0] == deployments[1]
    (volume,) = deployments[0]["spec"]["template"]["spec"]["volumes"]
    assert volume["configMap"] == {"name": "netmgr-plan", "optional": True}
    maps = [
        item
        for item in build(KUBERNETES / "overlays" / "controller")
        if item["kind"] == "ConfigMap"
    ]
    assert [item["metadata"]["name"] for item in maps] == ["netmgr-plan"]


def test_an_observer_neither_installs_nor_enters_anything():
    pod = pods("observer")["netmgr"]
    assert [item["name"] for item in pod["initContainers"]] == ["document"]
    assert "SYS_ADMIN" not in containers(pod)["agent"]["securityContext"]["capabilities"]["add"]


def test_the_articles_set_up_has_ranges_of_the_cloud_and_a_nat_host():
    by_name = pods("openai-like")
    node, nat_host = (
        template("openai-like", by_name["netmgr"]),
        template("openai-like", by_name["netmgr-nat-host"]),
    )
    assert node["range_source"] == RangeSource.AZURE
    assert nat_host["role"] == Role.NAT_HOST


@pytest.mark.parametrize(
    ("role", "name", "more"),
    [
        ("node", "netmgr", {"range_source": "azure"}),
        ("nat-host", "netmgr-nat-host", {}),
    ],
)
def test_the_articles_documents_are_what_its_plan_renders(role: str, name: str, more: Object):
    folder = KUBERNETES / "overlays" / "openai-like"
    arguments = [
        "template",
        "training",
        "--role",
        role,
        "--reader-group",
        "65534",
        "--file",
        str(folder / "plan.yaml"),
    ]
    rendered = yaml.safe_load(CliRunner().invoke(plan_render.app, arguments).output)
    rendered.pop("masquerade")  # the default
    nat = {"nat": rendered["nat"] | more["nat"]} if "nat" in more else {}
    assert template("openai-like", pods("openai-like")[name]) == rendered | more | nat


def test_host_network_pods_can_be_seen_with_either_way_of_wiring():
    for overlay in ("cni", "observer"):
        objects = build(
            KUBERNETES / "overlays" / overlay, KUBERNETES / "components" / "host-network-pods"
        )
        (found,) = [
            item["spec"]["template"]["spec"] for item in objects if item["kind"] == "DaemonSet"
        ]
        agent = containers(found)["agent"]
        assert found["hostPID"] is True
        assert "SYS_PTRACE" in agent["securityContext"]["capabilities"]["add"]
        volumes = {volume["name"] for volume in found["volumes"]}
        assert {mount["name"] for mount in agent["volumeMounts"]} <= volumes


@pytest.mark.parametrize(
    ("overlay", "component"),
    [("cni", "seccomp"), ("observer", "seccomp"), ("nat-host", "seccomp-nat-host")],
)
def test_each_process_gets_its_own_profile_which_the_kubelet_finds(overlay: str, component: str):
    objects = build(KUBERNETES / "overlays" / overlay, KUBERNETES / "components" / component)
    (pod,) = [item["spec"]["template"]["spec"] for item in objects if item["kind"] == "DaemonSet"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "seccomp-profiles"]
    assert volume["hostPath"]["path"] == "/var/lib/kubelet/seccomp/netmgr"
    made = containers(pod)
    assert made["seccomp-profiles"]["volumeMounts"][0]["name"] == "seccomp-profiles"
    for process in ("agent", "exporter"):
        profile = made[process]["securityContext"]["seccompProfile"]
        assert profile == {"type": "Localhost", "localhostProfile": f"netmgr/{process}.json"}
        assert (KUBERNETES.parent / "seccomp" / f"{process}.json").exists()
