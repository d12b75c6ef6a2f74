"""What processes load: the agent of one role not what another's needs, which is memory on every
node of a large cluster; and those that a pod's start may wait for, nothing that is slow to import.
"""

from __future__ import annotations

import sys

import pytest

from netmgr import programs

pytestmark = pytest.mark.programs

CLUSTERS, NAT, WIRING = "netmgr.kube", "netmgr.agent.accounting.nat", "netmgr.agent.cni.node"
OTHERS = {
    "wiring_node": (CLUSTERS, "netmgr.observer", NAT, "netmgr.agent.accounting.observing"),
    "observing_node": (CLUSTERS, "netmgr.ipam.leases", NAT, WIRING),
    "gateway": (CLUSTERS, "netmgr.observer", "netmgr.ipam.leases", WIRING),
}
OWN = {
    "wiring_node": "netmgr.agent.cni.repairs",
    "observing_node": "netmgr.observer.kernel_check",
    "gateway": NAT,
}

SLOW = {"kubernetes", "prometheus_client", "requests", "rich", "urllib3"}
"""A quarter of a second and more of a processor, where the whole start of an agent takes 0.3 s."""

DOCUMENTS = {"pydantic", "yaml"}
WIRING_NODE = "from netmgr.agent import main, roles; roles.wiring_node()"
AS_AN_AGENT = "from netmgr import documents; documents.HAS_PYDANTIC = False"
UNTIL_AN_AGENT_SERVES = {
    "the plugin's installation": (
        "import netmgr.cli.cni; from cni import build, install, runtimes",
        SLOW | DOCUMENTS,
    ),
    "the agent": (
        f"{AS_AN_AGENT}; import netmgr.cli.agent; {WIRING_NODE}",
        SLOW | {"pydantic", "pydantic_core"},
    ),
    "the startup probe": ("import netmgr.api.client", SLOW | DOCUMENTS | {"typer"}),
}


def loaded_by(code: str) -> list[str]:
    """The modules that a new process has after this code."""
    printed = f"{code}; import sys; print(*sorted(sys.modules))"
    outcome = programs.run([sys.executable, "-c", printed])
    assert outcome.returncode == 0, outcome.stderr.decode()
    return outcome.stdout.decode().split()


@pytest.mark.parametrize("role", OTHERS)
def test_a_role_loads_nothing_of_the_others(role: str) -> None:
    loaded = loaded_by(f"from netmgr.agent import main, roles; roles.{role}()")
    assert [name for name in loaded if name.startswith(OTHERS[role])] == []
    assert OWN[role] in loaded


@pytest.mark.parametrize("process", UNTIL_AN_AGENT_SERVES)
def test_nothing_slow_is_imported_until_an_agent_serves(process: str) -> None:
    code, others = UNTIL_AN_AGENT_SERVES[process]
    loaded = loaded_by(code)
    assert "netmgr" in loaded
    assert others.intersection(loaded) == set()
