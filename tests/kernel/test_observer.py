"""An agent with `cni: off` counts for the pods of Debian's plugins, to the byte, and does nothing
else.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kernel.namespaces import inside
from tests.kernel.observed import ObservedNode, observed_node
from tests.lab import named_netns
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET

pytestmark = pytest.mark.root

MADE_BY = [("bridge", Backend.NFTABLES), ("ptp", Backend.IPTABLES_LEGACY)]
NOTHING = {"internet-in": (0, 0), "internet-out": (0, 0)}


@pytest.fixture(scope="module", params=MADE_BY, ids=lambda param: f"{param[0]}-{param[1]}")
def running(request: pytest.FixtureRequest) -> Iterator[ObservedNode]:
    plugin, backend = request.param
    with observed_node(plugin, backend, f"obs-{os.getpid()}-{plugin}") as node:
        node.start_agent()
        yield node


@pytest.fixture
def node(running: ObservedNode) -> Iterator[ObservedNode]:
    """The node of the module, without pods and with its agent up before and after each test."""
    yield running
    for pod in running.node.runtime.sandboxes():
        running.delete(pod)
    running.wait_until(lambda: not running.live())


def new_pod(node: ObservedNode, name: str) -> Sandbox:
    pod = node.add(name)
    node.wait_until(lambda: name in node.live())
    return pod


def test_every_byte_of_a_pod_is_counted_under_its_name_and_stays_when_it_goes(node: ObservedNode):
    before = node.losses()
    pods = [new_pod(node, "first"), new_pod(node, "second")]
    sent = {
        pod.pod.name: node.talk(pod, forth=10 * number) for number, pod in enumerate(pods, start=1)
    }
    assert {name: node.counted(name) for name in sent} == sent
    for pod in pods:
        node.delete(pod)
    node.wait_until(lambda: not node.live())
    assert {name: node.counted(name) for name in sent} == sent
    assert node.losses() == before


def test_a_result_whose_pod_is_gone_begins_nothing_and_holds_nobody_up(node: ObservedNode):
    pod = new_pod(node, "former")
    left_behind, path = node.result_file(pod).read_bytes(), node.result_file(pod)
    sent = node.talk(pod)
    node.delete(pod)
    node.wait_until(lambda: not node.live())
    path.write_bytes(left_behind)
    node.wait_until(lambda: node.files() == {"stale": 1})
    assert node.live() == set()
    assert node.counted("former") == sent
    path.unlink()


def test_an_address_that_changes_hands_while_the_old_result_stays_is_the_new_pods(
    node: ObservedNode,
):
    node.forget_addresses()
    old = new_pod(node, "old")
    sent = node.talk(old)
    left_behind, path = node.result_file(old).read_bytes(), node.result_file(old)
    node.delete(old)
    path.write_bytes(left_behind)
    node.forget_addresses()
    new = new_pod(node, "new")
    assert new.addresses == old.addresses
    received = node.talk(new, forth=7)
    node.wait_until(lambda: node.counted("new") == received)
    assert node.counted("old") == sent
    assert node.live() == {"new"}
    path.unlink()


def test_a_pod_whose_result_vanishes_is_counted_while_its_link_is_there(node: ObservedNode):
    pod = new_pod(node, "forgotten")
    path = node.result_file(pod)
    kept = path.read_bytes()
    path.unlink()
    node.wait_until(lambda: node.files() == {})
    sent = node.talk(pod)
    assert (node.counted("forgotten"), node.live()) == (sent, {"forgotten"})
    path.write_bytes(kept)


def test_a_sandbox_that_dies_without_a_del_keeps_its_total(node: ObservedNode):
    pod = new_pod(node, "crashed")
    sent = node.talk(pod)
    named_netns.delete(pod.netns)
    node.wait_until(lambda: node.files() == {"stale": 1} or node.touch(pod))
    assert node.counted("crashed") == sent
    node.result_file(pod).unlink()
    node.wait_until(lambda: not node.live())
    assert node.counted("crashed") == sent


def test_an_agent_that_is_killed_loses_nothing_of_pods_that_stay_or_go_meanwhile(
    node: ObservedNode,
):
    staying, going = new_pod(node, "staying"), new_pod(node, "going")
    before, late = node.talk(staying), node.gaps().get("late")
    node.node.kill_agent()
    meanwhile, last = node.talk(staying), node.talk(going, forth=5)
    node.delete(going)
    node.start_agent()
    after = node.talk(staying)
    assert node.counted("staying") == added(before, meanwhile, after)
    assert node.counted("going") == last
    assert node.live() == {"staying"}
    assert node.gaps().get("late") == late


@pytest.mark.slow
def test_books_that_were_lost_begin_at_zero_for_the_pods_that_are_there(node: ObservedNode):
    pod = new_pod(node, "outliving")
    sent = node.talk(pod)
    assert node.counted("outliving") == sent
    node.node.kill_agent()
    for path in (node.node.directory / "state").glob("ledger*"):
        path.unlink()
    node.start_agent()
    assert node.counted("outliving") == NOTHING
    sent = node.talk(pod)
    assert node.counted("outliving") == sent
    assert node.losses() == {"ledger-lost": 1}


@pytest.mark.slow
def test_what_a_pod_sent_while_the_agent_was_away_is_told_as_a_gap_and_shown_by_the_nodes_rules(
    node: ObservedNode,
):
    late, unaccounted = node.gaps().get("late", 0), node.unaccounted()
    node.node.stop_agent()
    node.add("silent")
    pod = node.add("early")
    missed = node.talk(pod)
    time.sleep(0.05)
    node.start_agent()
    assert node.counted("early") == NOTHING
    sent = node.talk(pod)
    assert node.counted("early") == sent
    assert node.gaps()["late"] == late + 1, "one look found both pods"
    assert node.unaccounted() - unaccounted == sum(size for size, _ in missed.values())


def test_a_cache_directory_that_vanishes_ends_nobody_and_is_watched_when_it_returns(
    node: ObservedNode,
):
    pod = new_pod(node, "before")
    aside = node.results.with_name("aside")
    node.results.rename(aside)
    node.wait_until(lambda: node.files() == {})
    sent = node.talk(pod)
    assert node.counted("before") == sent
    aside.rename(node.results)
    node.wait_until(lambda: node.files() == {"counted": 1})
    other = new_pod(node, "after")
    assert node.counted("before") == sent
    assert node.counted("after") == NOTHING
    assert node.talk(other) == node.counted("after")


def test_what_is_no_result_is_passed_over_and_counted(node: ObservedNode):
    hostile = node.results
    hostile.mkdir(parents=True, exist_ok=True)
    (hostile / "garbage").write_bytes(b"\xff{")
    (hostile / "huge").write_bytes(b" " * (2 << 20))
    (hostile / "link").symlink_to("/etc/passwd")
    os.mkfifo(hostile / "pipe")
    pod = new_pod(node, "good")
    text = node.result_file(pod).read_text()
    (hostile / "evil").write_text(text.replace('"good"', '"evil\\n\\"} 1\\u0000"'))
    stolen = text.replace('"good"', '"thief"').replace(
        str(pod.address(Family.V4)), str(INTERNET[Family.V4])
    )
    (hostile / "thief").write_text(re.sub("veth[0-9a-f]+", node.node.node.uplink, stolen))
    node.wait_until(lambda: node.files().get("stale"))
    states = ("counted", "stale", "malformed", "too-large", "unfit-name")
    assert node.files() == dict.fromkeys(states, 1) | {"unreadable": 2}
    sent = node.talk(pod)
    assert node.counted("good") == sent
    assert node.live() == {"good"}
    for name in ("garbage", "huge", "link", "pipe", "evil", "thief"):
        (hostile / name).unlink()


def test_a_cache_that_cannot_be_listed_makes_the_node_unready_until_it_can(node: ObservedNode):
    node.results.mkdir(parents=True, exist_ok=True)
    aside = node.results.with_name("aside")
    node.results.rename(aside)
    node.results.symlink_to(node.results)
    node.wait_until(lambda: not node.node.snapshot()["ready"])
    assert "cannot be" in node.node.snapshot()["reason"]
    node.results.unlink()
    aside.rename(node.results)
    node.wait_until(lambda: node.node.snapshot()["ready"])


def test_it_wires_drops_translates_and_serves_nothing(node: ObservedNode):
    host = node.node
    assert not (host.run_dir / "cni.sock").exists()
    assert not (host.directory / "state" / "ipam.sqlite").exists()
    assert host.snapshot()["pool"] == []
    ours = node.our_rules()
    assert "internet-out" in ours
    assert not any(word in ours.lower() for word in ("masquerade", "drop", "spoof"))


def test_an_observer_does_not_make_the_node_a_router():
    with observed_node("ptp", Backend.NFTABLES, f"obs-{os.getpid()}-plain") as alone:
        alone.start_agent()
        assert inside(alone.node.namespace, "cat", "/proc/sys/net/ipv4/ip_forward") == "0\n"


def added(*amounts: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    return {
        traffic: (
            sum(item[traffic][0] for item in amounts),
            sum(item[traffic][1] for item in amounts),
        )
        for traffic in NOTHING
    }
