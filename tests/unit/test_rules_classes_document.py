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


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        (
            [{"name": "internet", "prefixes": ["10.9.0.0/16"]}],
            "class internet is there without being named",
        ),
        (
            [{"name": "internal", "prefixes": ["10.9.0.0/16"]}],
            "class internal is there without being named",
        ),
        (
            [
                {"name": "a", "prefixes": ["10.9.0.0/16"]},
                {"name": "a", "prefixes": ["10.8.0.0/16"]},
            ],
            "two classes are named a",
        ),
        (
            [
                {"name": "a", "prefixes": ["10.9.0.0/16"]},
                {"name": "b", "prefixes": ["10.9.0.0/16"]},
            ],
            "10.9.0.0/16 is of class a and of class b",
        ),
        (
            [{"name": "a", "site": "hub"}, {"name": "b", "prefixes": ["10.0.0.0/16"]}],
            "is of class a and of class b",
        ),
        ([{"name": "a", "site": "nowhere"}], "there is no site nowhere; sites are hub, spoke-a"),
        ([{"name": "a"}], "class a: give either prefixes or site"),
        (
            [{"name": "a", "site": "hub", "prefixes": ["10.9.0.0/16"]}],
            "class a: give either prefixes or site",
        ),
        ([{"name": "a", "prefixes": ["0.0.0.0/0"]}], "0.0.0.0/0 is everything"),
        ([{"name": "a", "prefixes": ["0.0.0.0/1", "128.0.0.0/1"]}], "leave no internet"),
        ([{"name": "A b", "prefixes": ["10.9.0.0/16"]}], "String should match pattern"),
        ([{"name": "a", "prefixes": ["10.9.0.1/16"]}], "host bits"),
    ],
)
def test_a_class_that_could_not_be_told_apart_is_refused(classes, words):
    with pytest.raises(ValidationError, match=words):
        with_classes(*classes)


def test_a_class_may_lie_within_another_and_within_a_range():
    given = with_classes(
        {"name": "wide", "prefixes": ["10.0.0.0/8"]}, {"name": "mine", "prefixes": ["10.1.0.0/25"]}
    )
    assert given.traffic_classes == {
        "wide": (Prefix.parse("10.0.0.0/8"),),
        "mine": (Prefix.parse("10.1.0.0/25"),),
    }
    pieces = dict(Policy.of(given).classifier.pieces)
    assert pieces["mine"] == (Prefix.parse("10.1.0.0/25"),)
    assert not any(piece.overlaps(Prefix.parse("10.1.0.0/25")) for piece in pieces["wide"])


def test_without_classes_no_rule_and_no_set_is_more_than_before():
    plain, classed = (
        desired(Policy.of(one), ())
        for one in (document("node"), with_classes({"name": "a", "site": "hub"}))
    )
    assert Policy.of(document("node")).traffics == (*Traffic, PROTECTED)
    more = {spec.name for spec in classed.sets} - {spec.name for spec in plain.sets}
    assert more == {
        f"pod_{name}_{way}{family}"
        for name in ("a", "internal")
        for way in ("in", "out")
        for family in (4, 6)
    }


def test_a_class_of_the_internet_is_no_reason_not_to_masquerade():
    classed = desired(
        Policy.of(with_classes({"name": "store", "prefixes": ["203.0.113.0/24"]})), ()
    )
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
