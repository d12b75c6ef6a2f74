"""Every place of the source that takes a durable step is one that some scenario is cut at.

`make cuts` records the scenarios and writes down what they reach (`tests/kernel/test_cuts.py`).
"""

from __future__ import annotations

from pathlib import Path

from tests.failpoints.sites import sites

GOLDEN = Path(__file__).parents[1] / "golden" / "durable-steps"
EXCEPTIONS = {
    "netmgr/agent/health/doctor:_kernel channel.transact": "`netmgr doctor` tries what kernels do",
    "netmgr/agent/health/doctor:_queues channel.transact": "`netmgr doctor` tries what kernels do",
    "netmgr/agent/accounting/flowtable:_adapt self._channel.commit": "needs flowtables: `make vm`",
    "netmgr/agent/core/scheduler:stop os.write": "a pipe",
    "netmgr/rules/nftables:_all_meeting_rules self._socket.commit": "needs flowtables: `make vm`",
    "netmgr/dataplane/deletion:_is_there self._host.attempt": "changes nothing of a link",
    "netmgr/durable:write_many (scratch / name).replace": "the controller's",
    "netmgr/durable:write_many (scratch / name).write_bytes": "the controller's",
    "netmgr/durable:write_many shutil.rmtree": "the controller's",
    "netmgr/durable:write_many tempfile.mkdtemp": "the controller's",
}
"""What no scenario of a node can reach, and why."""


def test_every_durable_step_of_the_source_is_cut_in_a_scenario() -> None:
    names = {site.name for site in sites()}
    known = {name for path in GOLDEN.iterdir() for name in path.read_text().splitlines()}
    assert names - known - EXCEPTIONS.keys() == set(), "add a scenario, and run `make cuts`"
    assert known - names == set(), "gone from the source: run `make cuts`"
    assert EXCEPTIONS.keys() - (names - known) == set(), "no exceptions any more"
