"""What the agent of one role loads is not what another's needs: memory on every node of a large cluster."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.programs

LOADED = "import sys, {modules}; print(*sorted(sys.modules))"
OTHERS = {
    "wired": (
        "netmgr.services",
        "netmgr.kube",
        "netmgr.observer",
        "netmgr.agent.gateway",
        "netmgr.agent.nat",
    ),
    "observing": ("netmgr.services", "netmgr.kube", "netmgr.ipam.leases", "netmgr.agent.gateway", "netmgr.agent.nat"),
    "gateway": (
        "netmgr.services",
        "netmgr.kube",
        "netmgr.observer",
        "netmgr.ipam.leases",
        "netmgr.agent.wired",
    ),
}


@pytest.mark.parametrize("composition", OTHERS)
def test_a_composition_loads_nothing_of_the_others(composition: str) -> None:
    code = LOADED.format(modules=f"netmgr.agent.main, netmgr.agent.{composition}")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = done.stdout.split()
    assert [name for name in loaded if name.startswith(OTHERS[composition])] == []
    assert f"netmgr.agent.{composition}" in loaded
