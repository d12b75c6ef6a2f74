"""Kubernetes' own conformance tests of networking, on a cluster whose network is netmgr's overlay
`cni`. conformance.yaml lists those that run, and those that do not with the reason.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from tests.e2e import companions, netmgr, programs
from tests.e2e.cluster import Cluster

pytestmark = [pytest.mark.root, pytest.mark.e2e, pytest.mark.timeout(3000)]

MODULE = programs.MODULE / "conformance"
PROGRAM = "conformance.test"
LIST = yaml.safe_load(Path(__file__).with_name("conformance.yaml").read_text())
TESTS: list[str] = LIST["run"]
LEFT_OUT: dict[str, str] = LIST["left out"]
AT_ONCE = 4
"""Most of their time they wait."""

Results = dict[str, str]
"""Each test's status in words, and why it failed or was skipped."""

NOT_SELECTED = "skipped: skipped"
LABELS = re.compile(r" \[[^]]*\]$")
"""What Ginkgo appends to a test's name in a report."""

NETWORKING = re.compile(r"\[sig-network\].*\[Conformance\]")


@pytest.fixture(scope="module")
def results(cluster: Cluster) -> Results:
    if reason := programs.missing_of(MODULE, [PROGRAM]):
        pytest.fail(reason)
    for node in cluster.nodes:
        # What netmgr chains for hostPort where the runtime has it.
        node.add_plugin("portmap")
    netmgr.apply(cluster, netmgr.overlay(cluster, "cni"))
    netmgr.roll_out(cluster)
    companions.install_dns(cluster)
    companions.install_agnhost(cluster)
    merged: Results = {}
    with ThreadPoolExecutor() as pool:
        groups = [TESTS[number::AT_ONCE] for number in range(AT_ONCE)]
        runs = [pool.submit(run, cluster, f"group-{n}", names) for n, names in enumerate(groups)]
        for each in runs:
            merged |= {
                name: status
                for name, status in each.result().items()
                if name not in merged or status != NOT_SELECTED
            }
    return merged


def run(cluster: Cluster, name: str, tests: Iterable[str]) -> Results:
    """What became of all tests of the program, of which only `tests` are selected."""
    report = cluster.folder / f"{name}.xml"
    plane = cluster.plane
    options = [
        f"--kubeconfig={plane.kubeconfig()}",
        f"--kubectl-path={programs.kubernetes('kubectl')}",
        "--dump-logs-on-failure=false",
        "--ginkgo.no-color",
        "--ginkgo.timeout=40m",
        f"--ginkgo.junit-report={report}",
        f"--ginkgo.focus={'|'.join(map(re.escape, tests))}",
    ]
    program = programs.folder(MODULE) / PROGRAM
    with (cluster.folder / f"{name}.log").open("wb") as log:
        command = ["nsenter", f"--net={plane.netns}", program, *options]
        subprocess.run(command, stdout=log, stderr=log, cwd=cluster.folder, check=False)
    return read(report)


def read(report: Path) -> Results:
    """The results in a JUnit report."""
    found = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314  our own program's
        details = [
            f"{each.get('message', '')} {each.text or ''}".strip()
            for each in case
            if each.tag in {"error", "failure", "skipped"}
        ]
        name = LABELS.sub("", case.get("name", "").removeprefix("[It] "))
        found[name] = ": ".join([case.get("status", ""), *details])
    return found


@pytest.mark.parametrize("name", TESTS)
def test_kubernetes_own_test_passes(results: Results, name: str):
    assert results.get(name) == "passed"


def test_every_conformance_test_of_networking_is_listed(results: Results):
    known = {each for each in results if NETWORKING.match(each)}
    assert known == {*TESTS, *LEFT_OUT}
