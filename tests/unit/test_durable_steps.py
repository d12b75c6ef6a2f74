"""Every place of the source that takes a durable step is one that some scenario is cut at.

`make cuts` records the scenarios and writes down what they reach (`tests/kernel/test_cuts.py`).
"""

from __future__ import annotations

import ast
from pathlib import Path

from tests.failpoints.sites import Module, helpers, of_module, reached, sites
from tests.failpoints.steps import Frame, Step

GOLDEN = Path(__file__).parents[1] / "golden" / "durable-steps"
EXCEPTIONS = {
    "netmgr/agent/doctor:_kernel channel.transact": "`netmgr doctor` tries what a kernel can do",
    "netmgr/agent/doctor:_queues channel.transact": "`netmgr doctor` tries what a kernel can do",
    "netmgr/agent/flowtable:_add flowtables.add_devices": "needs flowtables: `make vm`",
    "netmgr/agent/scheduler:stop os.write": "a pipe",
    "netmgr/dataplane/deletion:_is_there self._host.attempt": "changes nothing of a link",
    "netmgr/durable:write_many (scratch / name).replace": "the controller's",
    "netmgr/durable:write_many (scratch / name).write_bytes": "the controller's",
    "netmgr/durable:write_many shutil.rmtree": "the controller's",
    "netmgr/durable:write_many tempfile.mkdtemp": "the controller's",
    "netmgr/durable:write_text write": "the controller's",
}
"""What no scenario of a node can reach, and why."""


def recorded() -> set[str]:
    found: set[str] = set()
    for path in GOLDEN.iterdir():
        found |= set(path.read_text().splitlines())
    return found


def test_every_durable_step_of_the_source_is_cut_in_a_scenario() -> None:
    names = {site.name for site in sites()}
    known = recorded()
    assert names - known - EXCEPTIONS.keys() == set(), "add a scenario, and run `make cuts`"
    assert known - names == set(), "gone from the source: run `make cuts`"
    assert EXCEPTIONS.keys() - (names - known) == set(), "no exceptions any more"


CARRYING = """
class Channel:
    def commit(self, operations): ...

def put(channel, name):
    channel.commit([name])

def put_both(channel):
    put(channel, "a")

def listed(library):
    return library.run("list tables")
"""
USING = """
from netmgr.kernel import carrying
from netmgr.kernel.carrying import put_both
from dataclasses import replace

def one(channel, path, item, text):
    carrying.put(channel, "x")
    carrying.listed(item)
    replace(item, name=text.replace("a", "b"))
    def two():
        put_both(channel)
        path.replace(item)
    health.attempt("x", two)
"""


def test_calls_of_helpers_and_primitives_are_found_wherever_they_are() -> None:
    carrying = Module("netmgr/kernel/carrying.py", ast.parse(CARRYING))
    known = helpers([carrying])
    assert known == {"netmgr.kernel.carrying.put", "netmgr.kernel.carrying.put_both"}
    found = list(of_module(Module("netmgr/agent/using.py", ast.parse(USING)), known))
    assert {site.name for site in found} == {
        "netmgr/agent/using:one carrying.put",
        "netmgr/agent/using:two put_both",
        "netmgr/agent/using:two path.replace",
    }
    step = Step("netlink", "", (Frame("netmgr/agent/using.py", "two", 11),))
    assert reached(found, [step]) == {"netmgr/agent/using:two put_both"}
