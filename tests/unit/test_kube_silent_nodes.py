"""Which nodes are silent: those with an exporter that has not answered for ten minutes."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from netmgr.kube import node_reports
from netmgr.kube.node_reports import SILENT_SECONDS, NodeReports


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The module's monotonic clock; other modules keep theirs."""
    now = SimpleNamespace(seconds=5000.0)
    fake = SimpleNamespace(monotonic=lambda: now.seconds, time=time.time)
    monkeypatch.setattr(node_reports, "time", fake)
    return now


def reports(*nodes: str) -> Any:
    """Reports of a leader that asks nobody: it has lost its lead already."""
    lost = threading.Event()
    lost.set()
    agents = SimpleNamespace(pods=lambda: [SimpleNamespace(node=node) for node in nodes])
    return NodeReports(SimpleNamespace(lost=lost, agents=agents), ())


def test_a_leader_gives_every_node_ten_minutes_from_its_own_start(clock: SimpleNamespace) -> None:
    found = reports("a", "b")
    clock.seconds += SILENT_SECONDS
    assert found.silent() == frozenset()
    clock.seconds += 1
    assert found.silent() == {"a", "b"}


def test_a_node_is_silent_ten_minutes_after_its_last_answer_and_no_more_with_the_next(
    clock: SimpleNamespace,
) -> None:
    found = reports("a", "b")
    clock.seconds += 300
    found._answered = {"a": clock.seconds}
    clock.seconds += 301
    assert found.silent() == {"b"}
    clock.seconds += 300
    assert found.silent() == {"a", "b"}
    found._answered = {"a": clock.seconds}
    assert found.silent() == {"b"}


def test_nobody_is_silent_where_no_agent_is_known(clock: SimpleNamespace) -> None:
    found = reports()
    clock.seconds += 2 * SILENT_SECONDS
    assert found.silent() == frozenset()
