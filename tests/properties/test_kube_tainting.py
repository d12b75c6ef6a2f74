"""Whatever happens to Nodes, no more of a pool than its share are tainted, and nothing flaps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from netmgr.kube.controller.nodes import STARTUP_TAINT, UNHEALTHY_TAINT, NodeView
from netmgr.kube.controller.tainting import decide, most_of

TAINT = {"key": UNHEALTHY_TAINT, "effect": "NoSchedule"}
STARTUP = {"key": STARTUP_TAINT, "effect": "NoSchedule"}
SHARES = st.fractions(min_value=Fraction(1, 1000), max_value=1)

Nodes = dict[str, NodeView]

views = st.builds(
    lambda pool, status, since, startup, runs: NodeView(
        "",
        "",
        "",
        pool,
        health=(status, "Any") if status else None,
        health_since=str(since),
        taints=(STARTUP,) if startup else (),
        runs_pods=runs,
    ),
    st.sampled_from(["gpu", "cpu", None]),
    st.sampled_from(["True", "False", "False", "Unknown", ""]),
    st.integers(0, 9),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([True, True, True, False]),
)
clusters = st.lists(views, max_size=40).map(
    lambda found: {f"n{i}": replace(view, name=f"n{i}") for i, view in enumerate(found)}
)


def is_member(view: NodeView) -> bool:
    return view.runs_pods and not view.has_taint(STARTUP_TAINT)


def tainted(nodes: Nodes) -> set[str]:
    return {name for name, view in nodes.items() if view.has_taint(UNHEALTHY_TAINT)}


def carried_out(nodes: Nodes, lasting: set[str], share: Fraction | None) -> Nodes:
    """One round, as the reconciler carries it out: while taints are removed, none is added."""
    decision = decide(nodes.values(), lasting, share)
    after = dict(nodes)
    for view in decision.remove:
        kept = tuple(taint for taint in view.taints if taint["key"] != UNHEALTHY_TAINT)
        after[view.name] = replace(view, taints=kept)
    for view in [] if decision.remove else decision.add:
        after[view.name] = replace(view, taints=(*view.taints, TAINT))
    return after


def settled(nodes: Nodes, lasting: set[str], share: Fraction | None) -> Nodes:
    for _ in range(3):
        nodes = carried_out(nodes, lasting, share)
    return nodes


def is_within(nodes: Nodes, share: Fraction) -> bool:
    for pool in {view.pool for view in nodes.values()}:
        members = {n: v for n, v in nodes.items() if v.pool == pool and is_member(v)}
        if len(tainted(members)) > share * len(members):
            return False
    return True


@given(clusters, clusters, SHARES)
def test_no_more_than_the_share_of_a_pool_is_tainted_whatever_the_nodes_become(
    before: Nodes, after: Nodes, share: Fraction
) -> None:
    everybody = set(before) | set(after)
    now = settled(before, everybody, share)
    assert is_within(now, share)
    # The same Nodes with other conditions, in other pools, more of them or fewer.
    changed = {
        name: replace(view, taints=(*view.taints, *_of(now, name))) for name, view in after.items()
    }
    found = carried_out(changed, everybody, share)
    if not is_within(changed, share):
        assert tainted(found) <= tainted(changed)
    assert is_within(settled(changed, everybody, share), share)


def _of(nodes: Mapping[str, NodeView], name: str) -> list[dict[str, str]]:
    return [TAINT] if name in nodes and nodes[name].has_taint(UNHEALTHY_TAINT) else []


@given(clusters, SHARES)
def test_another_leader_changes_nothing(nodes: Nodes, share: Fraction) -> None:
    now = settled(nodes, set(nodes), share)
    # It does not know how long anything has lasted.
    decision = decide(now.values(), set(), share)
    assert (decision.add, decision.remove) == ([], [])
    again = decide(now.values(), set(nodes), share)
    assert (again.add, again.remove) == ([], [])


@given(clusters, SHARES)
def test_only_unhealthy_nodes_are_tainted_and_as_many_as_may(nodes: Nodes, share: Fraction) -> None:
    now = settled(nodes, set(nodes), share)
    unhealthy = {
        name for name, v in now.items() if is_member(v) and v.health and v.health[0] == "False"
    }
    assert tainted(now) <= unhealthy
    withheld = {view.name for view in decide(now.values(), set(nodes), share).withheld}
    assert withheld == unhealthy - tainted(now)
    for name in withheld:
        members = {n: v for n, v in now.items() if v.pool == now[name].pool and is_member(v)}
        assert len(tainted(members)) == most_of(len(members), share)
