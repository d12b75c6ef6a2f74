"""`netmgr plan render`, `reach` and `map` as an operator runs them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from netmgr.cli import plan_check
from netmgr.cli.plan import app
from netmgr.documents.node import NodeDocument
from netmgr.kube.controller.node_document import render
from netmgr.plan.derive import network
from tests.weakened import Layer, weakened

GOLDEN = Path(__file__).parent.parent / "golden" / "render"
CONFIGS = Path(__file__).parents[2] / "configs"
NO_PLACE = "has no place for a node .*training-gpu-0"


def run(*arguments: str, plan: Path = GOLDEN / "plan.yaml") -> Result:
    return CliRunner().invoke(app, [*arguments, "--file", str(plan)])


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A plan that a test may damage."""
    for name in ("plan.yaml", "plan.lock.yaml"):
        (tmp_path / name).write_text((GOLDEN / name).read_text())
    return tmp_path / "plan.yaml"


def test_the_network_configuration_is_the_one_that_install_writes(monkeypatch):
    # Whatever plugins the rendering machine has.
    monkeypatch.setattr(Path, "exists", lambda _: True)
    done = CliRunner().invoke(app, ["render", "conflist"])
    assert done.exit_code == 0
    assert done.stdout == (CONFIGS / "cni" / "10-netmgr.conflist").read_text()


def test_a_kubelet_takes_as_many_pods_as_its_node_has_addresses():
    done = run("render", "kubelet", "training", "gpu")
    assert done.exit_code == 0
    rendered = yaml.safe_load(done.stdout)
    assert rendered["kind"] == "KubeletConfiguration"
    written = yaml.safe_load(run("render", "node", "training-gpu-0").stdout)
    node = NodeDocument.model_validate(written)
    assert rendered["maxPods"] == node.fewest_addresses == 32


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("node", "evals-cpu-0"),
        ("node", "training-gpu-6999"),
        ("router", "router-0.hub"),
        ("nat-host", "nat-0.evals"),
    ],
)
def test_a_document_is_as_reviewed_and_says_where_it_comes_from(golden, command, name):
    done = run("render", command, name)
    assert done.exit_code == 0
    first, rest = done.stdout.split("\n", 1)
    assert first == f"# Of plan.yaml, by `netmgr plan render {command} {name}`."
    golden(f"render/{name}.yaml", rest)


def test_every_machines_document_goes_into_a_folder(own, tmp_path):
    text = own.read_text().replace("nodes: 7000", "nodes: 4").replace("nodes: 40,", "nodes: 2,")
    own.write_text(text.replace("nodes: 300", "nodes: 3"))
    assert run("lock", "--yes", plan=own).exit_code == 0
    done = run("render", "machines", "--to", str(tmp_path / "all"), plan=own)
    assert done.exit_code == 0
    assert "wrote 14 documents" in done.stderr
    written = (tmp_path / "all" / "evals-cpu-0.yaml").read_text()
    assert written == (GOLDEN / "evals-cpu-0.yaml").read_text()


@pytest.mark.parametrize(
    ("role", "name", "own"),
    [("node", "evals-cpu-0", ("node", "ranges")), ("nat-host", "nat-0.evals", ("node",))],
)
def test_a_template_lacks_only_what_the_node_itself_can_say(role, name, own):
    done = run("render", "template", "evals", "--role", role)
    assert done.exit_code == 0
    whole = yaml.safe_load((GOLDEN / f"{name}.yaml").read_text())
    # A NAT host's addresses are the node's by default.
    (whole.get("nat") or {}).pop("addresses", None)
    template = {key: value for key, value in whole.items() if key not in own}
    assert yaml.safe_load(done.stdout) == template
    node = {
        "metadata": {"name": name, "resourceVersion": "7"},
        "spec": {"podCIDRs": ["10.45.1.240/28"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.45.32.4"}]},
    }
    assert NodeDocument.model_validate(render(template, node)).site == "evals"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("node evals-cpu-100000", NO_PLACE),
        ("node evals-cpu", NO_PLACE),
        ("node elsewhere-cpu-0", NO_PLACE),
        ("node evals-cpu--1", NO_PLACE),
        ("node evals-cpu-00", NO_PLACE),
        ("router nat-0.evals", "router-0.hub, router-1.hub"),
        ("nat-host nat-1.evals", "nat-0.evals, nat-0.tra"),
        ("kubelet training tpu", "has no node pool 'tpu'; there are gpu, system"),
        ("kubernetes elsewhere", "evals"),
        ("template elsewhere", "evals"),
    ],
)
def test_what_is_not_planned_is_refused_with_what_is(command, told):
    done = run("render", *command.split())
    assert done.exit_code == 1
    assert re.search(told, str(done.exception))


def test_cloud_resources_are_printed_as_reviewed_or_written_to_a_file(golden, tmp_path):
    printed = run("render", "terraform").stdout
    golden("render/main.tf", printed)
    target = tmp_path / "main.tf"
    assert run("render", "terraform", "--to", str(target)).stdout == ""
    assert target.read_text() == printed
    assert [path.name for path in tmp_path.iterdir()] == ["main.tf"]


def test_a_lock_that_does_not_answer_the_plan_renders_nothing(own):
    text = own.read_text().replace("nodes: 7000", "nodes: 30000")
    own.write_text(text.replace("grow_to: 7500", "grow_to: 40000"))
    for command in (["render", "terraform"], ["render", "node", "evals-cpu-0"], ["reach"], ["map"]):
        done = run(*command, plan=own)
        assert done.exit_code == 1
        assert "run: netmgr plan lock" in str(done.exception)


def test_a_clusters_objects_hold_the_plan_and_the_lock_as_they_are():
    done = run("render", "kubernetes", "evals", "--image", "registry.example/netmgr:1")
    _, _, config, daemon_set = yaml.safe_load_all(done.stdout)
    assert config["data"]["plan.yaml"] == (GOLDEN / "plan.yaml").read_text()
    assert config["data"]["plan.lock.yaml"] == (GOLDEN / "plan.lock.yaml").read_text()
    assert config["data"]["service-cluster-ip-range"].startswith("100.64.")
    (container, *_) = daemon_set["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example/netmgr:1"


@pytest.mark.parametrize(("given", "taken"), [("2", 2), ("25%", "25%"), ("100%", "100%")])
def test_how_many_agents_a_rollout_may_replace_is_chosen(given, taken):
    done = run("render", "kubernetes", "evals", "--max-unavailable", given)
    daemon_set = list(yaml.safe_load_all(done.stdout))[-1]
    strategy = daemon_set["spec"]["updateStrategy"]
    assert strategy["rollingUpdate"] == {"maxUnavailable": taken}


@pytest.mark.parametrize("given", ["0", "0%", "101%", "-1", "many", "10 %"])
def test_a_rollout_that_could_replace_no_agent_is_refused(given):
    done = run("render", "kubernetes", "evals", f"--max-unavailable={given}")
    assert done.exit_code == 2
    said = " ".join(done.output.replace("│", "").split())
    assert "neither a number of agents nor a share" in said


def test_the_init_container_asks_for_what_the_command_line_has(tmp_path):
    daemon_set = list(yaml.safe_load_all(run("render", "kubernetes", "evals").stdout))[-1]
    command = daemon_set["spec"]["template"]["spec"]["initContainers"][0]["command"]
    assert command[:2] == ["netmgr", "plan"]
    here = {
        "/plan/plan.yaml": str(GOLDEN / "plan.yaml"),
        "/etc/netmgr/node.yaml": str(tmp_path / "node.yaml"),
        "$(NODE_NAME)": "evals-cpu-3",
    }
    done = CliRunner().invoke(app, [here.get(word, word) for word in command[2:]])
    assert done.exit_code == 0
    assert yaml.safe_load((tmp_path / "node.yaml").read_text())["node"]["name"] == "evals-cpu-3"


def test_reach_says_by_its_exit_code_whether_spokes_are_apart(monkeypatch):
    assert run("reach").exit_code == 0
    answer = json.loads(run("reach", "-o", "json").stdout)
    assert answer["wrong"] == []
    cells = {(cell["from"], cell["to"], cell["what"]): cell["outcome"] for cell in answer["cells"]}
    assert cells["evals", "other spokes", "nodes and pods"] == "dropped"
    assert cells["hub", "evals", "Services"] == "reached"
    monkeypatch.setattr(plan_check, "network", lambda *given: weakened(network(*given), Layer))
    broken = run("reach")
    assert broken.exit_code == 1
    assert "evals reaches nodes and pods of training" in broken.stderr
    told = run("reach", "-o", "json")
    assert told.exit_code == 1
    assert any("evals reaches" in line for line in json.loads(told.stdout)["wrong"])


def test_a_map_is_a_page_in_a_file_or_on_standard_output(tmp_path):
    assert run("map", "--to", str(tmp_path / "map.html")).exit_code == 0
    drawn = (tmp_path / "map.html").read_text()
    assert drawn.startswith("<!doctype html>")
    assert run("map").stdout == drawn
