"""Garbage collection is suspended while a command works on a plan, and then as it was."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from netmgr.cli import plan_common
from netmgr.cli.plan import app


@pytest.mark.parametrize("before", [True, False], ids=["enabled", "disabled"])
def test_commands_about_plans_run_without_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, before: bool
) -> None:
    enabled: list[bool] = []

    def load(*_: object, **__: object) -> NoReturn:
        enabled.append(gc.isenabled())
        raise plan_common.PlanFailed("seen")

    monkeypatch.setattr("netmgr.cli.plan_lock.load", load)
    was_enabled = gc.isenabled()
    try:
        (gc.enable if before else gc.disable)()
        CliRunner().invoke(app, ["lock", "-f", str(tmp_path / "plan.yaml")])
        assert (enabled, gc.isenabled()) == ([False], before)
    finally:
        (gc.enable if was_enabled else gc.disable)()
