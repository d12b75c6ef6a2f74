"""`python -m tests.lab up --spokes` and what one does with it, as its user has it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from netmgr.prefixes import Family
from tests.lab.services import PROXY_TABLE
from tests.lab.world import ROOT, World

pytestmark = pytest.mark.root

SECONDS = 90
NAME = "hub-cli"
TOP = Path(__file__).parents[2]
Lab = Callable[..., subprocess.CompletedProcess[str]]


def run(verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.lab", verb, "--name", NAME, *arguments]
    wide = {**os.environ, "COLUMNS": "160"}
    return subprocess.run(
        command, cwd=TOP, env=wide, capture_output=True, text=True, timeout=SECONDS, check=False
    )


@pytest.fixture(scope="module")
def up() -> Iterator[World]:
    """Two spokes of one node each, which share a Service range."""
    try:
        made = run("up", "--spokes", "2", "--nodes", "1")
        assert made.returncode == 0, made.stderr
        yield World.open(NAME)
    finally:
        run("down")
    assert not (ROOT / NAME).exists()


def test_up_and_status_tell_of_every_machine_and_its_role(up) -> None:
    roles = [node.node.role for node in up.nodes]
    assert roles == ["hub-router", "nat-host", "node", "nat-host", "node"]
    status = run("status").stdout
    assert status.count("agent ready, metrics on") == len(up.nodes)
    names = [node.name for node in up.nodes]
    for name in (*names, "researcher", "spoke-1", "spoke-2", "pod-1", "pod-4"):
        assert name in status


@pytest.mark.usefixtures("up")
def test_verify_prints_what_was_expected_beside_what_happened() -> None:
    found = run("verify")
    assert found.returncode == 0, found.stdout
    lines = [line.split() for line in found.stdout.splitlines()]
    assert ["from", "to", "expected", "happened", "probes"] in lines
    assert ["spoke-1", "Services", *["as", "nat-0.spoke-1"] * 2, "4"] in lines
    assert ["spoke-2", "everything", *["dropped,", "counted"] * 2, "12"] in lines
    assert ["spoke-1-cpu-0", "spoke-1", "spoke-2", "24", "24"] in lines


@pytest.mark.usefixtures("up")
def test_traffic_is_counted_to_the_byte_beside_all_isolation_and_translation() -> None:
    found = run("traffic")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "every byte counted" in found.stdout


def test_commands_run_at_the_researcher_s(up) -> None:
    researcher = str(up.topology.address("researcher", Family.V4))
    assert researcher in run("exec", "researcher", "--", "ip", "-br", "addr").stdout


def test_the_exporter_tells_each_pair_of_spokes_apart(up) -> None:
    node = up.node("spoke-1-cpu-0")
    samples = [
        sample
        for family in text_string_to_metric_families(node.scrape())
        for sample in family.samples
    ]
    dropped = {
        (sample.labels["from"], sample.labels["to"]): sample.value
        for sample in samples
        if sample.name == "netmgr_isolation_dropped_packets_total"
    }
    assert dropped["spoke-1", "spoke-2"] >= 24
    assert dropped["spoke-2", "spoke-1"] == 0


@pytest.mark.usefixtures("up")
def test_verify_fails_and_names_what_is_not_as_it_should_be() -> None:
    assert (
        run(
            "exec", "spoke-1-cpu-0", "--", "nft", "delete", "table", *PROXY_TABLE.split()
        ).returncode
        == 0
    )
    found = run("verify")
    assert found.returncode == 1
    wrong = [line.split() for line in found.stdout.splitlines() if "nothing arrived" in line]
    assert len(wrong) == 2
    for line in wrong:
        assert line[:3] == ["spoke-1", "Services", "as"]
    assert "2 of " in found.stdout.splitlines()[-1]
