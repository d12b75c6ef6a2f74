"""A budget of two nodes: real agents and kernels, exporters' reports, and a real server."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from exporter.reporting import Reporter
from netmgr.api.client import ask
from netmgr.budgets import messages
from netmgr.budgets.keeping import BudgetsInForce
from netmgr.budgets.messages import Budget
from netmgr.documents.node import Backend
from netmgr.model import Traffic
from netmgr.prefixes import Family
from tests.fakes import budgets_server
from tests.fakes.authority import Authority
from tests.kernel.flows import MEGABIT, attain, flows
from tests.lab.topology import INTERNET, cluster
from tests.lab.world import World
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.root, pytest.mark.alone]

RATE = 40
SAID = BudgetsInForce(
    (Budget("everyone", "", ("*",), Traffic.INTERNET_OUT, RATE * MEGABIT),), "v1", enforce=True
)
NAMES = ("node-1", "node-2")
SETTINGS = {"reconcile_seconds": 1}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    room = replace(cluster(nodes=2, pods=8), pods=())
    name = f"reported-{os.getpid()}"
    with World(room, backend=Backend.NFTABLES, name=name, settings=SETTINGS) as made:
        for node in made.nodes:
            (tmp_path / node.name).mkdir()
            file = tmp_path / node.name / "budgets.json"
            node.settings = {**node.settings, "budgets_file": str(file)}
            node.stop_agent()
            node.write_document()
            node.start_until_ready()
        yield made


def test_pods_of_two_nodes_share_a_budget_by_pod(world: World, tmp_path: Path) -> None:
    authority, ended = Authority(tmp_path), threading.Event()
    server = budgets_server.start(authority.certify(messages.SERVER_NAME))
    budgets_server.lead(server, ended, SAID)
    one, two = world.nodes
    pods = [one.add("alone"), *(two.add(f"together-{number}") for number in range(3))]
    with ExitStack() as stack:
        stack.callback(ended.set)
        for name, node in zip(NAMES, world.nodes, strict=True):
            credentials = authority.certify(name)
            (credentials / "token").write_text(name)
            asking = partial(ask, node.ledger_socket, "budgets")
            file = Path(node.settings["budgets_file"])
            address = f"127.0.0.1:{server.port}"
            reporter = Reporter(address, credentials, file, asking)
            thread = threading.Thread(target=reporter.run, args=[ended])
            thread.start()
            stack.callback(thread.join)
            stack.callback(ended.set)
        groups = [
            stack.enter_context(flows(pod.netns, world.internet, INTERNET[Family.V4], 2))
            for pod in pods
        ]

        def share(*rates: float) -> bool:
            return sum(rates) == pytest.approx(RATE, rel=0.05) and min(rates) >= 0.8 * RATE / 4

        # A new leader listens before it lends anything.
        eventually(lambda: attain(share, *groups), seconds=2 * PATIENCE)
