"""Which unhealthy Nodes are tainted, and which are not because too many of their pool are; and that
writing a Node's taints loses none that somebody else adds meanwhile.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from netmgr.errors import ConfigError
from netmgr.kube.client.api import Object
from netmgr.kube.client.concurrency import Concurrency
from netmgr.kube.client.object_cache import ObjectCache
from netmgr.kube.controller.node_taints import rewrite, without
from netmgr.kube.controller.nodes import STARTUP_TAINT, UNHEALTHY_TAINT, NodeView, node_view
from netmgr.kube.controller.reconciling import Leadership, patch
from netmgr.kube.controller.tainting import Tainting, decide, most_of, parse_share
from tests.fakes.api_server import ApiServer

TWENTIETH, HALF = Fraction(5, 100), Fraction(1, 2)
TAINT, STARTUP = ({"key": key, "effect": "NoSchedule"} for key in (UNHEALTHY_TAINT, STARTUP_TAINT))
OTHER = {"key": "example.org/gpu", "effect": "NoSchedule"}


def node(name: str, status: str = "True", since: str = "", **more: object) -> NodeView:
    health = (status, "Any") if status else None
    return NodeView(name, f"uid-{name}", "", "gpu", health=health, health_since=since, **more)


def pool(number: int, *special: NodeView) -> list[NodeView]:
    """So many Nodes of one pool, all of them well but for these."""
    return [*special, *(node(f"well-{index}") for index in range(number - len(special)))]


def names(decision: Tainting) -> tuple[list[str], list[str], list[str]]:
    parts = (decision.add, decision.remove, decision.withheld)
    return tuple([view.name for view in part] for part in parts)


def test_the_share_is_rounded_down_and_leaves_one() -> None:
    assert [most_of(nodes, TWENTIETH) for nodes in (19, 20, 39, 40)] == [0, 1, 1, 2]
    assert [most_of(nodes, Fraction(1)) for nodes in (1, 10)] == [0, 9]
    assert most_of(100, Fraction(29, 100)) == 29


def test_a_node_is_tainted_once_it_has_been_unhealthy_for_long_enough() -> None:
    nodes = pool(40, node("ill", "False"), node("new", "False"), node("silent", "Unknown"))
    assert names(decide(nodes, {"ill", "silent"}, TWENTIETH)) == (["ill"], [], [])


def test_those_that_were_unhealthy_first_come_first_and_the_rest_is_withheld() -> None:
    ill = [node(f"ill-{hour}", "False", f"2026-01-01T{hour}:00:00Z") for hour in (12, 10, 11)]
    everybody = {view.name for view in ill}
    decision = decide(pool(40, *ill), everybody, TWENTIETH)
    assert names(decision) == (["ill-10", "ill-11"], [], ["ill-12"])
    # One that has the taint keeps it, also from those that were unhealthy before it.
    ill[0] = replace(ill[0], taints=(OTHER, TAINT))
    assert names(decide(pool(40, *ill), everybody, TWENTIETH)) == (["ill-10"], [], ["ill-11"])


def test_the_taint_goes_when_the_node_is_well_and_no_sooner() -> None:
    for status, removed in (("True", ["ill"]), ("", ["ill"]), ("False", []), ("Unknown", [])):
        tainted = node("ill", status, taints=(TAINT,))
        assert names(decide(pool(40, tainted), (), TWENTIETH)) == ([], removed, [])


def test_in_a_pool_that_shrank_the_newest_lose_the_taint() -> None:
    ill = [node(f"ill-{hour}", "False", str(hour), taints=(TAINT,)) for hour in (3, 1, 2)]
    assert names(decide(pool(59, *ill), (), TWENTIETH)) == ([], ["ill-3"], [])
    assert names(decide(pool(3, *ill), (), HALF)) == ([], ["ill-2", "ill-3"], [])
    assert names(decide(pool(1, ill[0]), (), Fraction(1))) == ([], ["ill-3"], [])


def test_each_pool_has_its_own_share_also_the_one_without_a_name() -> None:
    ill = [node("a", "False"), replace(node("b", "False"), pool="cpu")]
    ill.append(replace(node("c", "False"), pool=None))
    others = [replace(node(f"{view.name}-well"), pool=view.pool) for view in ill]
    assert names(decide([*ill, *others], {"a", "b", "c"}, HALF)) == (["a", "b", "c"], [], [])


def test_what_is_withheld_is_that_of_every_pool() -> None:
    ill = [replace(node(f"{of}-{n}", "False"), pool=of) for of in ("a", "b") for n in (1, 2)]
    everybody = {view.name for view in ill}
    assert names(decide(ill, everybody, HALF)) == (["a-1", "b-1"], [], ["a-2", "b-2"])


def test_a_node_that_no_pods_come_to_neither_counts_nor_is_tainted() -> None:
    fresh = node("fresh", "False", taints=(STARTUP,))
    router = node("router", "False", runs_pods=False)
    ill = node("ill", "False")
    everybody = {"fresh", "router", "ill"}
    # Without the other two, it is the last one of its pool.
    assert names(decide([fresh, router, ill], everybody, HALF)) == ([], [], ["ill"])
    assert names(decide([fresh, router, ill, node("well")], everybody, HALF))[0] == ["ill"]
    for view in (fresh, router):
        tainted = replace(view, taints=(*view.taints, TAINT))
        assert names(decide(pool(5, tainted), (), TWENTIETH)) == ([], [view.name], [])


def test_without_a_share_every_taint_goes_and_none_comes() -> None:
    nodes = pool(5, node("a", "False", taints=(TAINT,)), node("b", "False"))
    assert names(decide(nodes, {"a", "b"}, None)) == ([], ["a"], [])


def test_a_share_is_written_in_per_cent() -> None:
    assert [parse_share(text) for text in ("5%", "100%", "0.5%")] == [TWENTIETH, 1, TWENTIETH / 10]
    assert parse_share("33.4%") == Fraction(167, 500)


@pytest.mark.parametrize(
    "text",
    [
        *("5", "0%", "101%", "-5%", "1/2%", "1e1%", "%", "five%", "5 %", "1_0%", "1.2.3%"),
        *("\u0665%", ".%"),
    ],
)
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="give a share of each node pool, above 0% and at most 1"):
        parse_share(text)


NODES, NAME = "/api/v1/nodes", "n"


@pytest.fixture
def leadership() -> Leadership:
    """Of a cluster whose one Node has the startup taint."""
    api = ApiServer(Concurrency()).api("controller")
    made = api.create(NODES, {"metadata": {"name": NAME}, "spec": {"taints": [STARTUP]}})
    nodes = ObjectCache(node_view, threading.Event())
    nodes.replace([made])
    return SimpleNamespace(api=api, nodes=nodes)  # type: ignore[return-value]  all it is asked for


def taints(leadership: Leadership) -> list[dict[str, str]]:
    return leadership.api.get(f"{NODES}/{NAME}")["spec"]["taints"]


def remove(leadership: Leadership, view: Any) -> bool:
    return rewrite(leadership, view, lambda taints: without(taints, STARTUP_TAINT))


@pytest.mark.parametrize("events", [1, 0], ids=["seen", "not seen yet"])
def test_a_taint_that_comes_between_decision_and_write_stays(
    leadership: Leadership, events: int
) -> None:
    (view,) = leadership.nodes.views()
    both = {"spec": {"taints": [STARTUP, OTHER]}}
    changed = leadership.api.patch(f"{NODES}/{NAME}", both)
    for _ in range(events):
        leadership.nodes.change(changed)
    # What is not known yet has the server refuse the write, and another round decide.
    assert remove(leadership, view) is bool(events)
    leadership.nodes.change(leadership.api.get(f"{NODES}/{NAME}"))
    assert remove(leadership, leadership.nodes.views()[0])
    assert taints(leadership) == [OTHER]


def test_another_node_of_the_name_is_left_alone(leadership: Leadership) -> None:
    (view,) = leadership.nodes.views()
    again = leadership.api.get(f"{NODES}/{NAME}")
    again["metadata"] |= {"uid": "another", "resourceVersion": "7"}
    leadership.nodes.replace([again])
    assert remove(leadership, view)
    leadership.nodes.replace([])
    assert remove(leadership, view)
    assert taints(leadership) == [STARTUP]


@pytest.mark.parametrize("successor", [None, "another"], ids=["gone", "made anew"])
def test_a_late_answer_to_a_write_does_not_bring_a_deleted_node_back(
    leadership: Leadership, successor: str | None
) -> None:
    (view,) = leadership.nodes.views()

    def send(path: str, body: Object) -> Object:
        answer = leadership.api.patch(path, body)
        # The watch delivers both before our own thread has the answer.
        leadership.nodes.delete(answer)
        if successor:
            newer = answer["metadata"] | {"uid": successor, "resourceVersion": "7"}
            leadership.nodes.change({**answer, "metadata": newer})
        return answer

    body = {"metadata": {"uid": view.uid}, "spec": {"taints": [OTHER]}}
    assert patch(leadership.nodes, send, f"{NODES}/{NAME}", body)
    assert [known.uid for known in leadership.nodes.views()] == [successor] * bool(successor)
