"""A NAT host's agent and its Services: opened from documents, put back, and closed when no longer
asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kernel.joined import Joined, joined, nat_host
from tests.kernel.test_cli_nat import netmgr

pytestmark = pytest.mark.root

BACKENDS = [Backend.NFTABLES, Backend.IPTABLES_NFT]
PORTS = dict.fromkeys(Family, 8080)


@pytest.fixture(scope="module", params=BACKENDS, ids=str)
def module_world(request: pytest.FixtureRequest) -> Iterator[Joined]:
    with joined(request.param, f"test-{os.getpid()}-services") as made:
        yield made


@pytest.fixture
def world(module_world: Joined) -> Iterator[Joined]:
    yield module_world
    module_world.stop()


def settings(world: Joined) -> dict[str, Any]:
    return nat_host(translation="endpoints", documents=str(world.documents))


def opened(world: Joined) -> dict[str, list[str]]:
    return {one["vip"]: one["ready"] for one in world.agent.ask("nat", services="all")["services"]}


API = {"10.100.0.10:80/tcp": ["10.1.0.10:8080"], "[fd00:100::a]:80/tcp": ["[fd00:1001::a]:8080"]}


def test_documents_are_taken_at_once_and_what_is_wrong_with_one_is_told(world: Joined) -> None:
    world.write_services(PORTS)
    world.start(settings(world) | {"reconcile_seconds": 600})
    assert opened(world) == API
    assert netmgr(world, "nat", "status").returncode == 0
    (world.documents / "wrong.yaml").write_text(
        "kind: Service\nmetadata: {name: wrong}\nspec: {clusterIP: 10.1}\n"
    )
    world.wait_until(lambda: world.agent.snapshot()["nat"]["refused"] == 1)
    shown = netmgr(world, "nat", "status", "--services")
    assert shown.returncode == 1
    assert "refused: " in shown.stdout
    assert "wrong.yaml" in "".join(shown.stdout.split())
    row = next(line for line in shown.stdout.splitlines() if "10.100.0.10:80/tcp" in line)
    assert ("web/api" in row, "10.1.0.10:8080" in row) == (True, True)
    assert "[fd00:1001::a]:8080" in shown.stdout
    assert world.log().count("documents-refused") == 1
    assert world.agent.snapshot()["ready"]
    (world.documents / "wrong.yaml").unlink()
    (world.documents / "api.yaml").unlink()
    world.wait_until(lambda: not opened(world))
    assert world.agent.snapshot()["nat"]["refused"] == 0


def test_a_host_without_documents_says_so_and_takes_them_when_they_come(world: Joined) -> None:
    world.start(settings(world))
    (sentence,) = world.agent.ask("nat")["refused"]
    assert sentence.startswith(f"{world.documents}: there is no such file or directory")
    world.write_services(PORTS)
    world.wait_until(lambda: opened(world) == API)
    assert world.agent.ask("nat")["refused"] == []


def test_translations_that_another_program_took_away_are_put_back_and_told(world: Joined) -> None:
    world.write_services(PORTS)
    world.start(settings(world))
    world.run(*["nft", "delete", "table", "inet", "netmgr-services"])
    world.wait_until(lambda: world.repaired("services") > 0)
    assert "area=services" in world.log()


@pytest.mark.parametrize("content", [b"", b"nonsense\n", b"nftables iptables\n"])
def test_whatever_the_mark_holds_no_services_are_forgotten(world: Joined, content: bytes) -> None:
    world.start(nat_host())
    netmap = world.rules()
    world.agent.stop_agent()
    world.write_services(PORTS)
    world.start(settings(world))
    mark = world.agent.directory / "state" / "services-backend"
    assert mark.read_text().strip() == "nftables"
    world.agent.stop_agent()
    mark.write_bytes(content)
    world.start(settings(world))
    world.wait_until(lambda: opened(world) == API)
    assert mark.read_text().strip() == "nftables"
    world.agent.stop_agent()
    mark.write_bytes(content)
    world.start(nat_host())
    assert not mark.exists()
    assert without_handles(world.rules()) == without_handles(netmap)


def test_services_are_closed_when_the_document_no_longer_asks_for_them(world: Joined) -> None:
    world.start(nat_host())
    netmap = world.rules()
    world.agent.stop_agent()
    world.write_services(PORTS)
    world.start(settings(world))
    assert "netmgr-services" in world.rules()
    world.restart(nat_host())
    assert (world.agent.directory / "state" / "services-backend").exists() is False
    assert without_handles(world.rules()) == without_handles(netmap)


def without_handles(rules: str) -> list[str]:
    return sorted(line.split(" # handle ")[0] for line in rules.splitlines())
