"""What several unit tests share: golden files, and the plan that the renderings are shown with."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from netmgr import plan_files
from netmgr.plan.derive import network
from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import LockDocument
from netmgr.plan.network import Network

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.fixture(scope="session")
def rendered_plan() -> PlanDocument:
    return plan_files.load_plan(GOLDEN / "render" / "plan.yaml")


@pytest.fixture(scope="session")
def rendered_lock() -> LockDocument:
    lock = plan_files.load_lock(GOLDEN / "render" / "plan.lock.yaml")
    assert lock is not None
    return lock


@pytest.fixture(scope="session")
def rendered_network(rendered_plan: PlanDocument, rendered_lock: LockDocument) -> Network:
    return network(rendered_plan, rendered_lock)


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compares text with a golden file, or with NETMGR_UPDATE_GOLDEN=1 writes it."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if os.environ.get("NETMGR_UPDATE_GOLDEN") == "1":
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text("utf-8"), "judge the difference, then run again with NETMGR_UPDATE_GOLDEN=1"

    return compare
