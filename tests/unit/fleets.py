"""Simulated fleets of a plan."""

from __future__ import annotations

from pathlib import Path

from netmgr.kube.allocations import NodeAllocations
from netmgr.kube.api import Object
from netmgr.plan import files
from netmgr.plan.render.node import Documents
from netmgr.simulation.scenario import Scale, Scenario
from tests.kubernetes.controllers import write_plan

PODS = 30


def run(
    folder: Path, nodes: int, hours: float = 1, seed: int = 1, template: Object | None = None
) -> Scenario:
    """Some time of a cluster with so many nodes; `template` changes its nodes' documents."""
    made = scenario(folder, nodes, hours, seed, template)
    made.run(lambda _: None)
    return made


def scenario(
    folder: Path, nodes: int, hours: float = 1, seed: int = 1, template: Object | None = None
) -> Scenario:
    """The same, before anything has happened."""
    folder.mkdir(exist_ok=True)
    path = write_plan(folder, f"{{gpu: {{nodes: {nodes}, surge: 25%, pods_per_node: {PODS}}}}}")
    plan, lock = files.load_plan(path), files.load_lock(files.lock_path(path))
    assert lock is not None
    scale = Scale({"gpu": (nodes, PODS)}, hours, seed, sample=1)
    document = Documents(plan, lock).template("train") | (template or {})
    return Scenario(scale, NodeAllocations(lock, "train"), document, folder)
