"""What a node document may say about limits, and which classes follow from it."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from netmgr.documents.quantity import quantity
from netmgr.kernel.traffic_control import Shape
from netmgr.limits import tree
from netmgr.limits.tree import Limited, LinkClasses, Tree
from netmgr.model import ALL_IN, ALL_OUT, Attachment, Traffic
from tests.fakes.sites import document
from tests.unit.limit_cases import NOW, limits, pod

OUT, IN = Traffic.INTERNET_OUT, Traffic.INTERNET_IN


def made(*items: dict, pods: Iterable[Attachment] = (), traffic: str = IN) -> Tree:
    return tree.tree(limits(*items), [*pods] or [pod("a", "b")], traffic, NOW)


def name(of: Tree, key: str) -> str:
    """As `parent > namespace/pod`; for all of a pod's traffic followed by `all`."""
    limited = of.classes[key]
    whole = " rest" if limited.is_remainder else " all" if limited.traffic[:3] == "all" else ""
    own = f"{limited.namespace}/{limited.pod}{whole}"
    return f"{name(of, limited.parent)} > {own}" if limited.parent else own


def rates(of: Tree) -> dict[str, int]:
    return {name(of, key): limited.rate for key, limited in of.classes.items()}


def shown(of: Tree) -> dict[str, list[str]]:
    """The classes that each link leads to."""
    return {link: [name(of, key) for key in target if key] for link, target in of.links.items()}


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"internet-in": "1M"}, "give either pods or namespaces"),
        ({"pods": "a/b", "namespaces": "a", "internet-in": "1M"}, "give either pods or namespaces"),
        ({"pods": "a/b"}, "limits nothing; give internet-in, internet-out, classes, per-day"),
        ({"pods": "a/b", "internet-in": True}, "'True' is no rate"),
        ({"pods": "a/b", "internet-in": "1m"}, "'1m' is no rate"),
        ({"pods": "a/b", "internet-in": "10k"}, "10000 bits a second: give at least 64k"),
        ({"pods": "a/b", "internet-in": "2T"}, "bits a second: give at least 64k, and at most 1T"),
        ({"pods": "a/b", "internet-in": "1M", "burst": 0}, "greater than or equal to 1"),
    ],
)
def test_a_limit_that_means_nothing_is_refused(limit: dict, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        limits(limit)


def test_a_rate_of_no_class_is_refused() -> None:
    limit = {"pods": "a/b", "classes": {"hub-out": "1M", "hib-in": "1M"}}
    with pytest.raises(ValidationError, match=r"accounting\.classes has none"):
        limits(limit)
    classes = {"classes": [{"name": "hub", "prefixes": ["10.9.0.0/16"]}]}
    with pytest.raises(ValidationError, match=r"hib-in is no class.*there are hub-in, hub-out"):
        document("node", limits=[limit], accounting=classes)


def test_a_class_has_a_limit_of_its_own() -> None:
    classes = {"classes": [{"name": "hub", "prefixes": ["10.9.0.0/16", "fd09::/32"]}]}
    given = [
        {"pods": "a/*", "classes": {"hub-out": "5M", "hub-in": "1M"}, "internet-out": "7M"},
        {"namespaces": "a", "classes": {"hub-out": "50M"}},
    ]
    found = tree.tree(
        document("node", limits=given, accounting=classes).limits, [pod("a", "b")], OUT, NOW
    )
    traffic = {(one.pod, one.traffic): one.rate // 10**6 for one in found.classes.values()}
    assert traffic == {("b", "internet-out"): 7, ("", "hub-out"): 50, ("b", "hub-out"): 5}
    (target,) = found.links.values()
    assert [found.classes[key].pod for _, key in target.classes] == ["b"]


def test_a_machine_without_pods_takes_no_limits() -> None:
    with pytest.raises(ValidationError, match="a hub-router has no pods"):
        document("hub-router", limits=[{"namespaces": "*", "internet-in": "1M"}])


def test_quantities_are_kubernetes() -> None:
    assert list(map(quantity, ("64000", 64_000, "1k"))) == [64_000, 64_000, 1000]
    assert (quantity("1.5M"), quantity("2Gi")) == (1_500_000, 2 << 30)


def test_the_lowest_limit_that_matches_is_in_force() -> None:
    found = made(
        {"pods": "*/*", "internet-out": "50M"},
        {"pods": "a/x*", "internet-out": "10M", "internet-in": "1M", "burst": "1M"},
        pods=[pod("a", "xy"), pod("a", "y")],
        traffic=OUT,
    )
    assert rates(found) == {"a/xy": 10_000_000, "a/y": 50_000_000}
    assert {one.burst for one in found.classes.values() if one.pod == "xy"} == {1_000_000}
    assert shown(found) == {"nmxy": ["a/xy"], "nmy": ["a/y"]}


def test_pods_of_a_limited_namespace_are_in_its_class_and_no_faster_than_it() -> None:
    names = (("team-a", "slow"), ("team-a", "fast"), ("team-b", "any"), ("other", "any"))
    found = made(
        {"namespaces": "team-*", "internet-in": "10M"},
        {"namespaces": "team-a", "internet-in": "20M"},
        {"pods": "team-a/slow", "internet-in": "1M"},
        {"pods": "team-a/fast", "internet-in": "1G"},
        pods=[pod(*names_of) for names_of in names],
    )
    assert rates(found) == {
        "team-a/": 10_000_000,
        "team-a/ > team-a/slow": 1_000_000,
        "team-a/ > team-a/fast": 10_000_000,
        "team-b/": 10_000_000,
        "team-b/ > team-b/any": 10_000_000,
    }


BATCH = {"pods": "a/*", "internet-out": "20M"}
TEAM = {"namespaces": "a", "internet-out": "50M"}


OTHER_WAY = {OUT: IN, IN: OUT, ALL_OUT: ALL_IN, ALL_IN: ALL_OUT}


def turned(rates: dict) -> dict:
    return {OTHER_WAY.get(key, key): rates[key] for key in rates}


@pytest.mark.parametrize("traffic", [OUT, IN])
@pytest.mark.parametrize(
    ("items", "brought", "expected", "target"),
    [
        ([], {"internet-out": 5}, {"a/b": 5}, ["a/b"]),
        ([BATCH], {"internet-out": 5}, {"a/b": 5}, ["a/b"]),
        ([BATCH], {"internet-out": 90}, {"a/b": 20}, ["a/b"]),
        ([TEAM], {"internet-out": 90}, {"a/": 50, "a/ > a/b": 50}, ["a/ > a/b"]),
        ([], {"all-out": 9}, {"a/b all": 9}, ["a/b all", "a/b all"]),
        (
            [BATCH],
            {"all-out": 9},
            {"a/b all": 9, "a/b all > a/b": 9, "a/b all > a/b rest": 9},
            ["a/b all > a/b", "a/b all > a/b rest"],
        ),
        (
            [BATCH],
            {"all-out": 90},
            {"a/b all": 90, "a/b all > a/b": 20, "a/b all > a/b rest": 90},
            ["a/b all > a/b", "a/b all > a/b rest"],
        ),
        ([TEAM], {"all-out": 9}, {"a/": 50, "a/ > a/b": 9, "a/b all": 9}, ["a/ > a/b", "a/b all"]),
        ([], {"all-in": 9, "internet-in": 9}, {}, []),
    ],
)
def test_a_pod_may_tighten_what_the_document_allows(
    items: list[dict],
    brought: dict[str, int],
    expected: dict[str, int],
    target: list[str],
    traffic: Traffic,
) -> None:
    if traffic == IN:
        items, brought = [turned(item) for item in items], turned(brought)
    given = tuple((traffic, rate * 10**6) for traffic, rate in brought.items())
    found = made(*items, pods=[replace(pod("a", "b"), rates=given)], traffic=traffic)
    assert rates(found) == {key: rate * 10**6 for key, rate in expected.items()}
    assert shown(found) == ({"nmb": target} if target else {})


def test_a_pod_is_one_class_however_many_links_it_has() -> None:
    limit = {"pods": "a/b", "internet-in": "1M"}
    found = made(limit, pods=[pod("a", "b", "nm1"), pod("a", "b", "nm2")])
    assert rates(found) == {"a/b": 1_000_000}
    assert found.links["nm1"] == found.links["nm2"]


def test_every_part_of_a_class_and_of_what_leads_to_it_follows_from_the_pod() -> None:
    given = (("all-in", 900_000_000), ("internet-in", 90_000_000))
    limit = {"pods": "a/*", "internet-in": "50M"}
    found = made(limit, pods=[replace(pod("a", "b"), rates=given)])
    whole = Limited("a", "b", "all-in", "", 900_000_000, 562_500)
    own = Limited("a", "b", IN, whole.key, 50_000_000, 65_536)
    rest = Limited("a", "b", "all-in", whole.key, 900_000_000, 562_500, is_remainder=True)
    assert found.classes == {one.key: one for one in (whole, own, rest)}
    assert found.links == {"nmb": LinkClasses(own.key, rest.key)}
    assert [one.is_shown for one in (whole, own, rest)] == [True, True, False]


def test_trees_are_joined_and_the_other_decides() -> None:
    one = made({"pods": "*/*", "internet-in": "1M"}, pods=[pod("a", "b"), pod("a", "c")])
    two = made({"pods": "*/*", "internet-in": "2M"}, pods=[pod("a", "b"), pod("a", "d")])
    both = one.joined(two)
    assert rates(both) == {"a/b": 2_000_000, "a/c": 1_000_000, "a/d": 2_000_000}
    assert both.links == one.links | two.links


def test_a_pod_without_a_link_has_no_class() -> None:
    linkless = replace(pod("a", "b"), host_link="")
    assert made({"pods": "*/*", "internet-in": "1M"}, pods=[linkless]) == Tree({}, {})


def test_a_class_has_its_rate_and_in_a_namespace_always_a_share_of_its() -> None:
    """In bytes a second."""
    one = made(
        {"namespaces": "a", "internet-in": "163840k"},
        {"pods": "a/slow", "internet-in": "64k"},
        pods=[pod("a", "fast"), pod("a", "slow")],
    )
    numbers = {key: 100 + number for number, key in enumerate(one.classes)}
    parent = next(iter(numbers.values()))
    found = tree.shapes(one, numbers)
    assert next(iter(found)) == parent
    assert found[parent] == Shape(0, 20_480_000, 20_480_000, 102_400)
    by_pod = {one.classes[key].pod: found[number] for key, number in numbers.items()}
    assert by_pod["fast"] == Shape(parent, 20_000, 20_480_000, 102_400)
    assert by_pod["slow"] == Shape(parent, 8_000, 8_000, 65_536)
    low = made({"namespaces": "a", "internet-in": "64k"})
    shapes = tree.shapes(low, dict(zip(low.classes, (7, 8), strict=True)))
    assert shapes == {7: Shape(0, 8000, 8000, 65_536), 8: Shape(7, 7, 8000, 65_536)}


def test_whole_bytes_are_given_to_the_kernel_and_at_least_one_a_second() -> None:
    one = made({"namespaces": "a", "internet-in": 1_000_001_001})
    shared, own = one.classes.values()
    assert (shared.pod, shared.parent, own.parent) == ("", "", shared.key)
    shapes = tree.shapes(one, {shared.key: 7, own.key: 8})
    burst = 625_000
    expected = {
        7: Shape(0, 125_000_125, 125_000_125, burst),
        8: Shape(7, 122_070, 125_000_125, burst),
    }
    assert repr(shapes) == repr(expected)  # 1.0 equals 1
    slow = replace(pod("a", "b"), rates=(("all-in", 8_000),))
    low = made({"pods": "a/*", "internet-in": "64k"}, pods=[slow])
    shapes = tree.shapes(low, tree.numbered([low], {}))
    assert {shape.rate for shape in shapes.values() if shape.parent} == {1}


def test_a_number_follows_from_the_key_and_the_next_free_one_is_taken() -> None:
    one = made({"pods": "*/*", "internet-in": "1M"})
    (key,) = one.classes
    first = zlib.crc32(key.encode()) % 0xFFFD + 2
    assert tree.numbered([one], {}) == {key: first}
    assert tree.numbered([one], {"x": first, "y": first + 1}) == {key: first + 2}
    # The numbers end at 0xFFFE and begin again with 2: a queue of handle 1: would be HTB itself.
    taken = {str(number): number for number in range(first, 0xFFFF)}
    assert tree.numbered([one], taken) == {key: 2}
    assert tree.numbered([one], {**taken, "2": 2}) == {key: 3}
    assert tree.numbered([one], {key: 9}) == {key: 9}


def test_two_keys_never_have_one_number() -> None:
    pods = [pod("a", f"p{number}") for number in range(1000)]
    limited = made({"pods": "*/*", "internet-in": "1M"}, pods=pods)
    assert len({zlib.crc32(key.encode()) % 0xFFFD for key in limited.classes}) < 1000, "some would"
    assert len(set(tree.numbered([limited], {}).values())) == 1000


names = st.sets(st.text("abc", min_size=1, max_size=4), max_size=30)


@given(names, names)
def test_numbers_are_one_for_each_class_and_stay(before: set[str], after: set[str]) -> None:
    limit = {"namespaces": "*", "internet-in": "1M"}
    first, second = (made(limit, pods=[pod(p, p) for p in pods]) for pods in (before, after))
    known = tree.numbered([first], {})
    found = tree.numbered([second], known)
    assert len(set(found.values())) == len(found)
    assert all(1 < number < 0xFFFF for number in found.values())
    assert all(found[key] == known[key] for key in found.keys() & known.keys())
