"""The manifests hold together: documents that an agent accepts,
and no more privilege than is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from exporter.settings import Settings
from netmgr.budgets.identity import AUDIENCE
from netmgr.cli import plan_render
from netmgr.documents import loader
from netmgr.documents.explain import explain
from netmgr.documents.node import NodeDocument, RangeSource
from netmgr.documents.sites import Role
from netmgr.kube.client.agent_pods import PREFLIGHT
from netmgr.kube.controller.node_document import RANGES_FILE
from netmgr.kube.controller.nodes import ROLE, STARTUP_TAINT, UNHEALTHY_TAINT
from netmgr.prefixes import Address
from netmgr.ranges.assigned import NODE_RANGES
from tests.fakes.kustomize import build

KUBERNETES = Path(__file__).parents[2] / "configs" / "kubernetes"
OVERLAYS = KUBERNETES / "overlays"
EVERY_OVERLAY = sorted(path.name for path in OVERLAYS.iterdir())
AGENTS = ("cni", "observer", "nat-host", "openai-like")
Object = dict[str, Any]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def objects(overlay: str, *components: str) -> list[Object]:
    return build(OVERLAYS / overlay, *(KUBERNETES / "components" / name for name in components))


def pods(overlay: str, *components: str) -> dict[str, Object]:
    return {
        item["metadata"]["name"]: item["spec"]["template"]["spec"]
        for item in objects(overlay, *components)
        if item["kind"] in {"DaemonSet", "Deployment"}
    }


def agents(overlay: str) -> dict[str, Object]:
    """The pods on every node, which are all but the controller."""
    return {name: pod for name, pod in pods(overlay).items() if name != "netmgr-controller"}


def containers(pod: Object) -> dict[str, Object]:
    return {item["name"]: item for item in (*pod.get("initContainers", ()), *pod["containers"])}


def command(overlay: str, *components: str) -> list[str]:
    """The controller's."""
    pod = pods(overlay, *components)["netmgr-controller"]
    return list(containers(pod)["controller"]["command"])


def volume_of(pod: Object, name: str) -> Object:
    (found,) = [volume for volume in pod["volumes"] if volume["name"] == name]
    return found


def template(overlay: str, pod: Object) -> Object:
    name = volume_of(pod, "template")["configMap"]["name"]
    (found,) = [
        item
        for item in objects(overlay)
        if (item["kind"], item["metadata"]["name"]) == ("ConfigMap", name)
    ]
    return yaml.safe_load(found["data"]["node.yaml"])


@pytest.mark.parametrize("overlay", AGENTS)
def test_every_template_is_a_document_once_its_node_has_told_the_rest(overlay: str, tmp_path: Path):
    for pod in agents(overlay).values():
        document = template(overlay, pod)
        document["node"] = {"name": "worker-0", "addresses": ["10.224.0.4"]}
        is_node = document.get("role") is None and document.get("cni", True)
        if is_node and "range_source" not in document:
            document["ranges"] = ["10.128.0.16/28"]
        file = tmp_path / "node.yaml"
        file.write_text(yaml.safe_dump(document))
        loaded = loader.load(file, NodeDocument)
        assert loaded.reader_group == containers(pod)["exporter"]["securityContext"]["runAsGroup"]


def check_is_confined(container: Object) -> None:
    context = container["securityContext"]
    assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
    assert context["capabilities"]["drop"] == ["ALL"]
    assert "privileged" not in context


@pytest.mark.parametrize("overlay", ["cni", "flat"])
def test_on_a_flat_network_pods_reach_other_machines_as_their_node(overlay: str):
    document = template(overlay, pods(overlay)["netmgr"])
    document["node"] = {"name": "worker-0", "addresses": ["192.168.0.4"]}
    loaded = NodeDocument.model_validate(document | {"ranges": ["10.244.1.0/24"]})
    answers = [explain(loaded, Address.parse(each), []) for each in ("192.168.0.53", "10.244.1.9")]
    assert [each["masqueraded"] for each in answers] == [overlay == "flat", False]
    assert not any(each["counted"] for each in answers)


@pytest.mark.parametrize("overlay", EVERY_OVERLAY)
def test_pods_are_confined_start_what_the_image_has_and_mount_their_volumes(overlay: str):
    for pod in pods(overlay).values():
        mounted = set()
        for name, container in containers(pod).items():
            check_is_confined(container)
            capabilities = container["securityContext"]["capabilities"]
            assert ("add" in capabilities) == (name in {"agent", "clean", "plugin"}), name
            if name == "plugin":
                assert capabilities["add"] == ["SYS_CHROOT"]
            # The image has no shell and no coreutils.
            probes = [container[key] for key in container if key.endswith("Probe")]
            commands = [probe["exec"]["command"] for probe in probes if "exec" in probe]
            programs = {words[0] for words in (*commands, container["command"])}
            assert programs <= {"netmgr", "python3"}
            mounted |= {mount["name"] for mount in container.get("volumeMounts", ())}
        assert mounted == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize("overlay", AGENTS)
def test_a_token_reaches_only_what_asks_the_api_server(overlay: str):
    for pod in agents(overlay).values():
        assert pod["automountServiceAccountToken"] is False
        holders = {
            name
            for name, item in containers(pod).items()
            if "api" in {mount["name"] for mount in item["volumeMounts"]}
        }
        assert {"document"} <= holders <= {"document", "services"}


@pytest.mark.parametrize("overlay", ["cni", "openai-like"])
@pytest.mark.parametrize(
    ("component", "option"), [("host-ports", "--portmap"), ("bandwidth", "--bandwidth")]
)
def test_an_overlay_can_insist_on_a_chained_plugin(overlay: str, component: str, option: str):
    plugin = containers(pods(overlay, component)["netmgr"])["plugin"]
    usual = ["netmgr", "cni", "install", "--in-pod", "--host-root", "/host"]
    assert plugin["command"] == [*usual, option]


@pytest.mark.parametrize("overlay", AGENTS)
def test_an_exporter_that_starts_is_asked_late_enough_to_listen_and_then_often(overlay: str):
    for pod in agents(overlay).values():
        exporter = containers(pod)["exporter"]
        starting, ready = exporter["startupProbe"], exporter["readinessProbe"]
        assert starting["httpGet"] == ready["httpGet"]
        assert starting["initialDelaySeconds"] > starting["periodSeconds"] == 1


def test_an_overlay_can_have_both_kinds_of_reports():
    options = command("flat", "quota-events", "node-health")
    assert options[-2:] == ["--quota-events", "--node-health"]
    names = [(item["kind"], item["metadata"]["name"]) for item in objects("flat", "quota-events")]
    roles = {kind for kind, name in names if name == "netmgr-controller-quota-events"}
    assert roles == {"ClusterRole", "ClusterRoleBinding"}


@pytest.mark.parametrize("overlay", ["cni", "flat", "openai-like"])
def test_budgets_give_a_token_for_their_server_to_the_exporter_alone(overlay: str):
    found = pods(overlay, "budgets", "seccomp", "preflight")
    agent, controller = found["netmgr"], found["netmgr-controller"]
    token, authority = volume_of(agent, "budgets-token")["projected"]["sources"]
    assert token["serviceAccountToken"]["audience"] == AUDIENCE
    assert authority["configMap"]["name"] == "netmgr-budgets-ca"
    mounts = {
        name: {mount["name"]: mount for mount in each.get("volumeMounts", ())}
        for name, each in containers(agent).items()
    }
    assert [name for name, of in mounts.items() if "budgets-token" in of] == ["exporter"]
    assert mounts["agent"]["budgets"]["readOnly"]
    # Options and what they name fit together.
    options = Settings(**_budget_options(containers(agent)["exporter"]["command"]))
    options.check()
    place = mounts["exporter"]["budgets-token"]["mountPath"]
    assert options.budgets_credentials == Path(place)
    folder = mounts["exporter"]["budgets"]["mountPath"]
    assert options.budgets_file == Path(folder, "budgets.json")
    serving = containers(controller)["controller"]
    names = {mount["mountPath"] for mount in serving["volumeMounts"]}
    given = dict(word.partition("=")[::2] for word in serving["command"])
    assert {given["--budgets-tls"], str(Path(given["--budgets"]).parent)} <= names
    (service,) = [each for each in objects(overlay, "budgets") if each["kind"] == "Service"]
    (port,) = service["spec"]["ports"]
    assert given["--budgets-listen"] == f":{port['port']}"
    assert port["targetPort"] in {each["name"] for each in serving["ports"]}


def _budget_options(command: list[str]) -> dict[str, Any]:
    words = [word.removeprefix("--").partition("=") for word in command if "budgets" in word]
    named = {name.replace("-", "_"): value for name, _, value in words}
    return {
        name: value if name.endswith("server") else Path(value) for name, value in named.items()
    }


@pytest.mark.parametrize("overlay", ["cni", "flat", "openai-like"])
def test_an_overlay_can_probe_a_fresh_node_before_anything_of_it_is_touched(overlay: str):
    pod = pods(overlay, "preflight", "throughput-test")["netmgr"]
    assert [item["name"] for item in pod["initContainers"]] == ["document", PREFLIGHT]
    probing = containers(pod)[PREFLIGHT]
    check_is_confined(probing)
    assert probing["command"][-1] == probing.get("terminationMessagePath", "/dev/termination-log")
    # Neither a token nor anything of the machine's own files.
    mounts = {mount["name"]: mount for mount in probing["volumeMounts"]}
    assert mounts.keys() == {"document", "preflight-nodes"}
    assert all(mount["readOnly"] for mount in mounts.values())
    assert volume_of(pod, "preflight-nodes")["configMap"]["optional"] is True
    assert containers(pod)["exporter"]["command"][-1] == "--throughput-test"
    nodes_file = Path(mounts["preflight-nodes"]["mountPath"], "nodes.json")
    if overlay == "flat":
        assert template(overlay, pod)["nodes_file"] == str(nodes_file)


def test_an_overlay_can_have_unhealthy_nodes_tainted():
    components = ("node-health", "taint-unhealthy")
    assert command("cni", *components)[-2:] == ["--node-health", "--taint-unhealthy=5%"]
    (policy,) = [
        item
        for item in objects("cni", *components)
        if item["kind"] == "ValidatingAdmissionPolicy"
        and item["metadata"]["name"] == "netmgr-controller"
    ]
    assert policy["spec"]["variables"][0] == {"name": "taints", "expression": "true"}


@pytest.mark.parametrize(("overlay", "wires"), [("cni", True), ("observer", False)])
def test_the_document_is_made_before_the_node_is_touched(overlay: str, *, wires: bool):
    pod = pods(overlay)["netmgr"]
    assert [item["name"] for item in pod["initContainers"]] == ["document"]
    added = containers(pod)["agent"]["securityContext"]["capabilities"]["add"]
    assert ("SYS_ADMIN" in added) == ("plugin" in containers(pod)) == wires


@pytest.mark.parametrize("overlay", ["cni", "observer"])
def test_the_nodes_agent_leaves_machines_alone_that_the_controller_gives_no_ranges(overlay: str):
    affinity = pods(overlay)["netmgr"]["affinity"]["nodeAffinity"]
    (term,) = affinity[REQUIRED]["nodeSelectorTerms"]
    (rule,) = term["matchExpressions"]
    others = set(Role) - {Role.NODE}
    assert (rule["key"], rule["operator"], set(rule["values"])) == (ROLE, "NotIn", others)


def test_the_controller_starts_on_nodes_that_wait_for_it():
    (pod,) = pods("controller").values()
    tolerated = {item["key"] for item in pod["tolerations"] if item.get("effect") == "NoSchedule"}
    waiting = {"node.kubernetes.io/not-ready", "node.kubernetes.io/network-unavailable"}
    assert waiting | {STARTUP_TAINT, UNHEALTHY_TAINT} <= tolerated
    assert pod["hostNetwork"] is True


@pytest.mark.parametrize("overlay", ["cni", "flat", "controller", "openai-like"])
def test_the_controller_is_kept_off_workers_unless_a_component_allows_them(overlay: str):
    strict, loose = (
        pods(overlay, *components)["netmgr-controller"]["affinity"]
        for components in ((), ("controller-on-workers",))
    )
    terms = strict["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    preferred = loose["nodeAffinity"].pop("preferredDuringSchedulingIgnoredDuringExecution")
    assert not loose["nodeAffinity"], "nothing is required"
    assert loose["podAntiAffinity"] == strict["podAntiAffinity"]
    assert [item["preference"] for item in preferred][::-1] == terms


@pytest.mark.parametrize("overlay", ["cni", "openai-like"])
def test_an_overlay_that_wires_brings_the_controller_whose_annotation_agents_read(overlay: str):
    assert "netmgr-controller" in pods(overlay)
    agent = pods(overlay)["netmgr"]
    (volume,) = [volume for volume in agent["volumes"] if "downwardAPI" in volume]
    mounts = containers(agent)["agent"]["volumeMounts"]
    (mount,) = [mount for mount in mounts if mount["name"] == volume["name"]]
    # The kubelet never updates a file that is mounted by `subPath`.
    assert mount.keys() == {"name", "mountPath", "readOnly"}
    (item,) = volume["downwardAPI"]["items"]
    assert item["fieldRef"]["fieldPath"] == f"metadata.annotations['{NODE_RANGES}']"
    assert f"{mount['mountPath']}/{item['path']}" == RANGES_FILE


def test_the_plan_is_an_object_that_every_overlays_controller_finds_by_its_name():
    """Whichever of `cni` and `controller` is applied last, the controller has the plan."""
    pod = pods("controller")["netmgr-controller"]
    assert pods("cni")["netmgr-controller"] == pod
    (volume,) = pod["volumes"]
    assert volume["configMap"] == {"name": "netmgr-plan", "optional": True}
    maps = [item for item in objects("controller") if item["kind"] == "ConfigMap"]
    assert [item["metadata"]["name"] for item in maps] == ["netmgr-plan"]


@pytest.mark.parametrize(
    ("role", "name", "more"),
    [("node", "netmgr", {"range_source": RangeSource.AZURE}), ("nat-host", "netmgr-nat-host", {})],
)
def test_the_articles_documents_are_what_its_plan_renders(role: str, name: str, more: Object):
    file = ["--file", str(OVERLAYS / "openai-like" / "plan.yaml")]
    arguments = ["template", "training", "--role", role, "--reader-group", "65534", *file]
    rendered = yaml.safe_load(CliRunner().invoke(plan_render.app, arguments).output)
    rendered.pop("masquerade")  # the default
    assert template("openai-like", pods("openai-like")[name]) == rendered | more


@pytest.mark.parametrize("overlay", ["cni", "observer"])
def test_host_network_pods_can_be_seen_with_either_way_of_wiring(overlay: str):
    pod = pods(overlay, "host-network-pods")["netmgr"]
    agent = containers(pod)["agent"]
    assert pod["hostPID"] is True
    assert "SYS_PTRACE" in agent["securityContext"]["capabilities"]["add"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in agent["volumeMounts"]} <= volumes


@pytest.mark.parametrize(
    ("overlay", "components", "of_agent"),
    [
        ("cni", ["seccomp"], "agent"),
        ("cni", ["seccomp", "seccomp-links"], "agent-links"),
        ("observer", ["seccomp"], "agent"),
        ("nat-host", ["seccomp"], "agent"),
    ],
)
def test_each_process_gets_its_own_profile_which_the_kubelet_finds(
    overlay: str, components: list[str], of_agent: str
):
    made = pods(overlay, *components)
    made.pop("netmgr-controller", None)
    (pod,) = made.values()
    assert (
        volume_of(pod, "seccomp-profiles")["hostPath"]["path"] == "/var/lib/kubelet/seccomp/netmgr"
    )
    assert containers(pod)["seccomp-profiles"]["volumeMounts"][0]["name"] == "seccomp-profiles"
    for process, name in (("agent", of_agent), ("exporter", "exporter")):
        profile = containers(pod)[process]["securityContext"]["seccompProfile"]
        assert profile == {"type": "Localhost", "localhostProfile": f"netmgr/{name}.json"}
        assert (KUBERNETES.parent / "seccomp" / f"{name}.json").exists()
