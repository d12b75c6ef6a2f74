"""Garbage collection is suspended while a command works on a plan, and then as it was."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from netmgr.cli.plan import app
from netmgr.errors import ConfigError


def test_commands_about_plans_run_without_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    enabled: list[bool] = []

    def load(*_: object, **__: object) -> NoReturn:
        enabled.append(gc.isenabled())
        raise ConfigError("seen")

    monkeypatch.setattr("netmgr.cli.plan_common.load", load)
    CliRunner().invoke(app, ["lock", "-f", str(tmp_path / "plan.yaml")])
    assert (enabled, gc.isenabled()) == ([False], True)
