"""What a node document makes of the policy, of traffic classes, and of sets and rules that no text
shows; and which classes are refused.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from netmgr.documents.node import NodeDocument
from netmgr.model import LINK_PREFIX, PROTECTED, Traffic
from netmgr.prefixes import Address, Family, Prefix
from netmgr.rules.isolation import Isolation
from netmgr.rules.model import FORWARDED, Abilities, Hook, OnLink, SetSpec, Side
from netmgr.rules.policy import Policy, desired
from tests.fakes.sites import SITES, document, star

CLASSES = {"classes": [{"name": "other", "prefixes": ["10.0.0.0/8", "203.0.113.0/24"]}]}
POD, UNKNOWN = Address.parse("10.1.0.16"), Address.parse("10.1.0.17")
ALONE: dict[str, Any] = {"sites": [], "site": None}


def observer(**keys: Any) -> NodeDocument:
    return document("node", **ALONE, cni=False, ranges=[], **keys)


@pytest.mark.parametrize(
    ("role", "counts_only", "runs_pods"),
    [("node", False, True), ("hub-router", False, False), ("nat-host", False, False)],
)
def test_each_role_has_its_rules(role, counts_only, runs_pods):
    policy = Policy.of(document(role))
    assert (policy.counts_only, policy.runs_pods) == (counts_only, runs_pods)
    assert policy.rule_owner == "openai"
    # Its own address, and that no pod forges it where there are pods of ours.
    assert policy.sources.guards_pods is runs_pods
    assert Prefix.parse("fd00:1:0:ff::1") in policy.sources.own


def test_an_observer_counts_and_no_more():
    policy = Policy.of(observer())
    assert policy.counts_only
    assert policy.runs_pods
    for compares in (0, 16):
        names = {spec.name for spec in desired(policy, (), Abilities(compares=compares)).sets}
        assert names == {
            *(f"{kind}{family.value}" for kind in ("internal", "ranges") for family in Family),
            *(f"pod_{way}{family.value}" for way in ("in", "out") for family in Family),
        }


def test_other_nodes_pods_are_told_apart_only_where_a_rule_can_add_to_a_set():
    policy = Policy.of(observer(accounting={"cluster_cidrs": ["10.1.0.0/16"]}))
    for is_dynamic in (True, False):
        wanted = desired(policy, (), Abilities(dynamic_sets=is_dynamic))
        used = {name for rule in wanted.chains[Hook.BEFORE_SRCNAT] for name in rule.set_names}
        assert ("remote_in4" in used) is is_dynamic
        assert "cluster4" in used
        remote = [spec for spec in wanted.sets if spec.name.startswith("remote")]
        assert len(remote) == 2 * is_dynamic
        assert all(spec.is_dynamic for spec in remote)


def test_a_node_is_reached_by_its_ranges_and_a_router_by_every_sites_prefixes():
    node, router = (Policy.of(document(role)) for role in ("node", "hub-router"))
    assert set(node.ranges) == {Prefix.parse("10.1.0.0/24"), Prefix.parse("fd00:1::/112")}
    sites = [Prefix.parse(text) for site in SITES for text in site["prefixes"]]
    assert all(any(one.covers(each) for one in router.ranges) for each in sites)


def test_an_observers_classes_are_of_pods_on_any_link():
    for abilities in (Abilities(), Abilities(verdict_maps=False)):
        rules = desired(Policy.of(observer(accounting=CLASSES)), (), abilities).rules()
        classing = [rule for rule in rules if rule.id.startswith("class")]
        assert classing
        matches = {match for rule in classing for match in rule.matches}
        assert {match for match in matches if isinstance(match, OnLink)} == {FORWARDED}


def test_a_class_has_nothing_of_what_is_never_internet():
    classifier = Policy.of(with_classes(named("wide", "168.0.0.0/8"))).classifier
    ((_, prefixes),) = classifier.pieces
    for address, is_held in (("168.63.129.15", True), ("168.63.129.16", False)):
        assert any(prefix.holds(Address.parse(address)) for prefix in prefixes) is is_held


def test_a_class_that_is_looked_up_is_a_set_and_a_rule_each_way():
    policy = Policy.of(document("node", accounting=CLASSES))
    wanted = desired(policy, (), Abilities(compares=0, verdict_maps=False))
    sets = {(spec.name, spec.family) for spec in wanted.sets if spec.name.startswith("class")}
    assert sets == {("class_other4", Family.V4), ("classes4", Family.V4)}
    rules = {rule.id for rule in wanted.rules() if rule.id.startswith("class other")}
    assert rules == {"class other in v4", "class other out v4"}


@pytest.mark.parametrize("machine", ["node", "hub-router"])
def test_rules_look_into_a_set_just_where_they_have_more_to_compare_than_they_may(machine):
    more: dict[str, Any] = {"accounting": CLASSES} if machine == "node" else {}
    policy = Policy.of(document(machine, **more))
    seen: set[bool] = set()
    for compares in range(20):
        wanted = desired(policy, (), Abilities(compares=compares, verdict_maps=False))
        made = {spec.name for spec in wanted.sets}
        used = {name for rule in wanted.rules() for name in rule.set_names}
        assert used <= made
        looked = {name for name in made if name.startswith(("foreign", "class"))}
        assert looked <= used
        seen.add(bool(looked))
    assert seen == {True, False}


def test_what_is_handed_over_goes_to_a_pod():
    rules = desired(Policy.of(document("node")), (), Abilities(flowtables=True)).rules()
    handing = [rule for rule in rules if rule.id.startswith("offload")]
    assert [rule.family for rule in handing] == list(Family)
    to_pods = OnLink(Side.DESTINATION, f"{LINK_PREFIX}*")
    assert {rule.matches[0] for rule in handing} == {to_pods}


@pytest.mark.parametrize(
    ("spokes", "pairs"), [(3, 1 << 14), (127, 1 << 14), (128, 1 << 15), (182, 1 << 16)]
)
def test_a_routers_set_of_pairs_has_room_for_all_of_them(spokes, pairs):
    isolation = Isolation.of(document("hub-router", sites=star(spokes)))
    found = isolation.sets(Abilities())
    for family in Family:
        spec = SetSpec(f"isolated{family.value}", family, is_dynamic=True, pairs=pairs)
        assert spec in found
    assert pairs >= spokes * (spokes - 1)


def test_a_family_of_one_spoke_alone_needs_no_isolation():
    # The second spoke has no IPv6.
    isolation = Isolation.of(document("hub-router", sites=star(1, second=["10.9.0.0/16"])))
    found = {spec.name for spec in isolation.sets(Abilities())}
    assert found == {"isolated4"}
    assert isolation.passing(Hook.FORWARD, Family.V6, Abilities()) == []
    assert isolation.dropping(Hook.FORWARD, Family.V6, Abilities()) == []
    assert len(isolation.dropping(Hook.FORWARD, Family.V4, Abilities())) == 1


@pytest.mark.parametrize("hook", [Hook.INPUT, Hook.OUTPUT])
def test_a_spokes_machine_drops_other_spokes_in_a_family_that_its_own_site_has_not(hook):
    sites = star(1, **{"spoke-a": ["10.1.0.0/16"]})
    isolation = Isolation.of(document(sites=sites, ranges=["10.1.0.0/24"]))
    passing = {rule.id for rule in isolation.passing(hook, Family.V6, Abilities())}
    assert passing == {
        f"isolation {hook} passes {name} v6" for name in ("own", "neighbour discovery")
    }
    pair = "s0 spoke-a" if hook is Hook.INPUT else "spoke-a s0"
    dropping = [rule.id for rule in isolation.dropping(hook, Family.V6, Abilities())]
    assert dropping == [f"isolation {hook} {pair} v6"]
    # With nobody to be kept from, there is nothing to look at.
    alone = Isolation.of(document(sites=[sites[0], sites[-1]], ranges=["10.1.0.0/24"]))
    assert alone.dropping(hook, Family.V6, Abilities()) == []


def test_spokes_of_ipv6_alone_are_kept_apart():
    alone = {name: [f"fd00:{name}::/48"] for name in ("1", "2")}
    isolation = Isolation.of(document("hub-router", sites=star(0, **alone)))
    assert {spec.name for spec in isolation.sets(Abilities())} == {"isolated6"}


def test_a_hub_without_spokes_keeps_nothing_apart():
    assert Isolation.of(document("hub-router", sites=star(0))) is None
    assert Isolation.of(document("node", **ALONE)) is None


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
        ([named("a")], "class a: give either prefixes, site or published"),
        (
            [named("a", "10.9.0.0/16", site="hub")],
            "class a: give either prefixes, site or published",
        ),
        ([named("a", "0.0.0.0/0")], "0.0.0.0/0 is everything"),
        ([named("a", "0.0.0.0/1", "128.0.0.0/1")], "leave no internet"),
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


@pytest.mark.parametrize("beside_rules", [False, True])
def test_where_links_count_their_sets_take_the_place_of_pods_sets_or_stand_beside(beside_rules):
    accounting = {"at": "links", "classes": [HUB], "link_layer_bytes": 18}
    policy = Policy.of(document("node", accounting=accounting, limits_by_annotation=True))
    abilities = Abilities(counts_at_links=True, counts_by_rules=beside_rules)
    wanted = desired(policy, [POD, UNKNOWN], abilities, links={POD: "nm1"})
    kinds = ("", "a_", "internal_")
    ways = {f"{kind}{way}4" for kind in kinds for way in ("in", "out")}
    # A link counts for the pods that it is known to belong to; what is protected stays a rule's.
    assert all(wanted.members[f"link_{way}"] == {POD} for way in ways)
    assert wanted.members["pod_protected_out4"] == {POD, UNKNOWN}
    assert "link_protected_out4" not in wanted.members
    by_rules = {way for way in ways if f"pod_{way}" in wanted.members}
    assert by_rules == (ways if beside_rules else set())
    assert (wanted.at_links.limited, wanted.at_links.link_layer) == (True, 18)
    assert desired(policy, [POD]).at_links is None


def test_a_class_of_the_internet_is_no_reason_not_to_masquerade():
    classed = desired(Policy.of(with_classes(named("store", "203.0.113.0/24"))), ())
    assert Prefix.parse("203.0.113.0/24") in classed.members["internal4"]
    assert Prefix.parse("203.0.113.0/24") not in classed.members["native4"]


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
