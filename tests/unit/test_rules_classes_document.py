"""What a node document may say about traffic classes, and what is refused and why."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from netmgr.documents.node import NodeDocument
from netmgr.model import PROTECTED, Traffic
from netmgr.prefixes import Prefix
from netmgr.rules.policy import Policy, desired
from tests.fakes.sites import document


def with_classes(*classes: dict, **keys) -> NodeDocument:
    return document("node", accounting={"classes": list(classes)}, **keys)


def named(name: str, *prefixes: str, **keys: str) -> dict[str, object]:
    return {"name": name, **({"prefixes": prefixes} if prefixes else {}), **keys}


HUB = named("a", site="hub")


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        ([named("internet", "10.9.0.0/16")], "class internet is there without being named"),
        ([named("internal", "10.9.0.0/16")], "class internal is there without being named"),
        ([named("a", "10.9.0.0/16"), named("a", "10.8.0.0/16")], "two classes are named a"),
        (
            [named("a", "10.9.0.0/16"), named("b", "10.9.0.0/16")],
            "0/16 is of class a and of class b",
        ),
        ([HUB, named("b", "10.0.0.0/16")], "is of class a and of class b"),
        ([named("a", site="nowhere")], "there is no site nowhere; sites are hub, spoke-a"),
        ([named("a")], "class a: give either prefixes or site"),
        ([named("a", "10.9.0.0/16", site="hub")], "class a: give either prefixes or site"),
        ([named("a", "0.0.0.0/0")], "0.0.0.0/0 is everything"),
        ([named("a", "0.0.0.0/1", "128.0.0.0/1")], "leave no internet"),
        ([named("A b", "10.9.0.0/16")], "String should match pattern"),
        ([named("a", "10.9.0.1/16")], "host bits"),
    ],
)
def test_a_class_that_could_not_be_told_apart_is_refused(classes, words):
    with pytest.raises(ValidationError, match=words):
        with_classes(*classes)


def test_a_class_may_lie_within_another_and_within_a_range():
    given = with_classes(named("wide", "10.0.0.0/8"), named("mine", "10.1.0.0/25"))
    assert given.traffic_classes == {
        "wide": (Prefix.parse("10.0.0.0/8"),),
        "mine": (Prefix.parse("10.1.0.0/25"),),
    }
    pieces = dict(Policy.of(given).classifier.pieces)
    assert pieces["mine"] == (Prefix.parse("10.1.0.0/25"),)
    assert not any(piece.overlaps(Prefix.parse("10.1.0.0/25")) for piece in pieces["wide"])


def test_without_classes_no_rule_and_no_set_is_more_than_before():
    plain, classed = (desired(Policy.of(one), ()) for one in (document("node"), with_classes(HUB)))
    assert Policy.of(document("node")).traffics == (*Traffic, PROTECTED)
    more = {spec.name for spec in classed.sets} - {spec.name for spec in plain.sets}
    assert more == {
        f"pod_{name}_{way}{family}"
        for name in ("a", "internal")
        for way in ("in", "out")
        for family in (4, 6)
    }


def test_a_class_of_the_internet_is_no_reason_not_to_masquerade():
    classed = desired(Policy.of(with_classes(named("store", "203.0.113.0/24"))), ())
    assert Prefix.parse("203.0.113.0/24") in classed.members["internal4"]
    assert Prefix.parse("203.0.113.0/24") not in classed.members["unhidden4"]


def test_the_value_of_a_class_is_the_same_object_wherever_it_is_made():
    assert Traffic("hub-out") is Traffic("hub-out")
    assert (Traffic("hub-out").kind, Traffic("a-b-in").kind, Traffic("hub-out").is_inward) == (
        "hub",
        "a-b",
        False,
    )
    assert list(Traffic) == [Traffic.INTERNET_IN, Traffic.INTERNET_OUT]
    with pytest.raises(ValueError, match="hub"):
        Traffic("hub")
