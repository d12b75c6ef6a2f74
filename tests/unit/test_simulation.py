"""A simulated hour of a small fleet, with every event that there is."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from netmgr.ledger import book
from netmgr.prefixes import Prefix, overlaps
from netmgr.rules.engine import Rules
from netmgr.simulation.controllers import CLIENT
from netmgr.simulation.report import Report, report
from netmgr.simulation.scenario import Scenario
from tests.unit.fleets import run

NODES = 20


@pytest.fixture(scope="module")
def hour(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    return run(tmp_path_factory.mktemp("hour"), NODES)


@pytest.fixture(scope="module")
def shown(hour: Scenario) -> Report:
    return report(hour)


def test_every_byte_of_the_kernels_is_in_the_ledgers_and_on_the_pages(shown: Report) -> None:
    counted = shown["accounting"]
    assert counted["kernels"] > 10**9
    assert counted["kernels"] == counted["ledgers"] == counted["pages"]
    assert counted["differing"] == []
    assert counted["gaps"] == {}


def test_every_node_gets_ranges_of_its_own_and_takes_pods(hour: Scenario, shown: Report) -> None:
    nodes = hour.server.objects("/api/v1/nodes").values()
    prefixes = [Prefix.parse(text) for node in nodes for text in node["spec"]["podCIDRs"]]
    assert len(prefixes) == len(nodes) > NODES
    assert not list(overlaps(prefixes))
    assert all(not node["spec"].get("taints") for node in nodes)
    assert [one["without"] for one in shown["joined"]] == [0] * len(shown["joined"])
    assert all(0 <= one["schedulable_longest"] < 60 for one in shown["joined"])
    assert shown["joined"][0]["nodes"] == NODES


def test_pods_come_and_go_and_all_find_an_address(hour: Scenario, shown: Report) -> None:
    running = sum(len(machine.pods) for machine in hour.cluster.machines.values())
    assert shown["most_pods"] > running > NODES * 10
    assert shown["pods_started"] > shown["most_pods"]
    assert shown["adds_refused"] == 0


def test_another_controller_leads_soon_after_the_leader_was_killed(
    hour: Scenario, shown: Report
) -> None:
    (killed,) = (event.began for event in hour.events if "killed" in event.what)
    ended = [name for name, _, end in hour.controllers.led if end == killed]
    assert len(ended) == 1
    assert 5 < shown["without_leader"] < 25
    spans = sorted((began, end) for _, began, end in hour.controllers.led)
    assert all(end <= began for (_, end), (began, _) in pairwise(spans))


def test_a_controller_asks_little_beside_its_election(hour: Scenario, shown: Report) -> None:
    asked = {
        (verb, what): number
        for (client, verb, what), number in hour.server.asked.items()
        if client.startswith(CLIENT) and what != "leases"
    }
    (controllers,) = (one for one in shown["requests"] if one["client"] == "controllers")
    registered = sum(one["nodes"] for one in shown["joined"])
    # Its ranges, and the end of its startup taint.
    assert controllers["by_verb"]["PATCH nodes"] <= 2 * registered + 4
    # One for each pod of an agent, and for the ranges of a Node that registered again.
    assert controllers["by_verb"]["PATCH pods"] <= 2 * registered + NODES + 8
    assert sum(asked.values()) < 10 * registered


def test_agents_are_replaced_a_few_at_a_time(shown: Report) -> None:
    assert len(shown["waves"]) >= NODES
    assert all(3 <= seconds <= 10 for seconds in shown["waves"])


def test_what_prometheus_has_of_the_sample_is_all_but_what_it_missed(hour: Scenario) -> None:
    (machine,) = (one for one in hour.cluster.machines.values() if one.folder)
    last = hour.prometheus.scrape(machine)
    assert last is not None
    scraped = sum(n for (name, *_), n in hour.prometheus.pods.items() if name == machine.name)
    missed = sum(one.missed[machine.name] for one in hour.prometheus.absences)
    assert len(hour.prometheus.absences) == 2
    assert scraped + missed == machine.kernel.passed.total()


def small(folder: Path, seed: int = 1) -> Scenario:
    """Half an hour of ten nodes, whose pods' series end soon after them."""
    template = {"accounting": {"linger_seconds": 10}}
    return run(folder, 10, hours=0.5, seed=seed, template=template)


@pytest.fixture(scope="module")
def half_hour(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    return small(tmp_path_factory.mktemp("half-hour"))


def test_pods_whose_series_ended_meanwhile_cost_prometheus_what_they_had_sent_last(
    half_hour: Scenario,
) -> None:
    away = half_hour.prometheus.absences[-1]
    assert 10 < away.pods < half_hour.cluster.pods_started
    assert 0 < away.missed.total() < half_hour.comparison.kernels
    assert half_hour.comparison.agrees, "namespaces have it"


def test_a_seed_gives_the_same_run_again_and_another_one_another(
    half_hour: Scenario, tmp_path: Path
) -> None:
    others = (small(tmp_path / "again"), small(tmp_path / "other", seed=2))
    first, again, other = map(report, (half_hour, *others))
    for one in (first, again, other):
        # Measured, not simulated.
        one["controller_seconds"] = one["controller_memory"] = 0
    assert again == first
    assert other["accounting"]["kernels"] != first["accounting"]["kernels"]


def test_a_ledger_that_loses_a_byte_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown = book._growth
    monkeypatch.setattr(book, "_growth", lambda now, last: grown(now, last) - (now > 10**8))
    found = small(tmp_path / "one")
    assert not found.comparison.agrees
    assert "the ledger has" in found.comparison.differing[0]


def test_a_pod_without_a_counter_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rules, "admit", lambda *_: None)
    found = small(tmp_path / "one")
    assert any("are counted for no pod" in one for one in found.comparison.differing)
