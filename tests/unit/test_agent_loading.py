"""What the agent of one role loads is not what another's needs: memory on every node of a large
cluster.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.programs

LOADED = (
    "import sys; from netmgr.agent import main, roles; roles.{role}(); print(*sorted(sys.modules))"
)
OTHERS = {
    "wiring_node": (
        "netmgr.services",
        "netmgr.kube",
        "netmgr.observer",
        "netmgr.agent.nat",
        "netmgr.agent.observing",
    ),
    "observing_node": (
        "netmgr.services",
        "netmgr.kube",
        "netmgr.ipam.leases",
        "netmgr.agent.nat",
        "netmgr.agent.node",
    ),
    "gateway": (
        "netmgr.services",
        "netmgr.kube",
        "netmgr.observer",
        "netmgr.ipam.leases",
        "netmgr.agent.node",
    ),
}
OWN = {
    "wiring_node": "netmgr.agent.verbs",
    "observing_node": "netmgr.observer.kernel_check",
    "gateway": "netmgr.agent.nat",
}


@pytest.mark.parametrize("role", OTHERS)
def test_a_role_loads_nothing_of_the_others(role: str) -> None:
    code = LOADED.format(role=role)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = done.stdout.split()
    assert [name for name in loaded if name.startswith(OTHERS[role])] == []
    assert OWN[role] in loaded
