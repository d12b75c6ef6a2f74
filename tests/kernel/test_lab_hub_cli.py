"""`python -m tests.lab up --spokes` and what one does with it, as its user has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.services import PROXY_TABLE
from tests.lab.world import ROOT

pytestmark = [pytest.mark.root, pytest.mark.slow]

TOP = Path(__file__).parents[2]


def test_a_hub_of_two_spokes_is_built_verified_used_broken_and_removed(lab_name: str) -> None:
    def run(verb: str, *arguments: str, exit_code: int = 0) -> str:
        command = [sys.executable, "-m", "tests.lab", verb, "--name", lab_name, *arguments]
        wide = {**os.environ, "COLUMNS": "160"}
        done = subprocess.run(
            command, cwd=TOP, env=wide, capture_output=True, text=True, check=False
        )
        assert done.returncode == exit_code, done.stdout + done.stderr
        return done.stdout

    try:
        run("up", "--spokes", "2", "--nodes", "1")
        status = run("status")
        # A router, and a NAT host and a node of each spoke.
        assert status.count("agent ready, metrics on") == 5
        assert "researcher" in status

        lines = [line.split() for line in run("verify").splitlines()]
        assert ["from", "to", "expected", "happened", "probes"] in lines
        assert ["spoke-1", "Services", *["as", "nat-0.spoke-1"] * 2, "4"] in lines
        assert ["spoke-2", "everything", *["dropped,", "counted"] * 2, "12"] in lines
        assert ["spoke-1-cpu-0", "spoke-1", "spoke-2", "24", "24"] in lines
        assert "every byte counted" in run("traffic")

        run("exec", "spoke-1-cpu-0", "--", "nft", "delete", "table", *PROXY_TABLE.split())
        found = run("verify", exit_code=1)
        wrong = [line.split()[:3] for line in found.splitlines() if "nothing arrived" in line]
        assert wrong == [["spoke-1", "Services", "as"]] * 2
        assert "2 of " in found.splitlines()[-1]
    finally:
        run("down")
    assert not (ROOT / lab_name).exists()
