"""How an attachment is wired: names that outlive every release, and operations in an order that the
kernel accepts.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from netmgr.dataplane import desired
from netmgr.kernel import links, routes
from netmgr.kernel.links import Link, VethEnd
from netmgr.kernel.neighbours import add_neighbour
from netmgr.kernel.routes import SourceRule, add_route
from netmgr.model import Attachment, AttachmentKey, PodRef
from netmgr.prefixes import Address, Prefix

FIRST, FURTHER = AttachmentKey("c1", "eth0"), AttachmentKey("c1", "net1")
POD = PodRef("team-a", "web-0", "12345678")
V4, V6 = Address.parse("10.1.0.5"), Address.parse("fd00:1::5")
GATEWAY4, GATEWAY6 = Address.parse("169.254.1.1"), Address.parse("fe80::1")
MAC = bytes.fromhex("020000000001")
OURS, OTHERS = 0x6E6E, 0
NAME, ALIAS = "nmec43057c07aa", "netmgr c1 eth0 team-a 12345678 web-0"


def attachment(key: AttachmentKey = FIRST, pod: PodRef = POD) -> Attachment:
    return Attachment(key, pod, (V4, V6), desired.host_link_name(key), "/run/netns/x")


def link(name: str = NAME, alias: str = "", group: int = OURS, more: tuple[str, ...] = ()) -> Link:
    given = {"alias": alias, "group": group, "alternative_names": more}
    return Link(7, name, up=True, mac=desired.HOST_MAC, mtu=1500, **given)


def test_names_and_addresses_of_a_link_are_those_that_every_release_gave_it() -> None:
    """An agent recognises what an earlier release made, and a repeated ADD makes the same."""
    assert desired.host_link_name(FIRST) == "nmec43057c07aa"
    assert desired.host_link_name(FURTHER) == "nmca4978b4555a"
    assert desired.pod_mac(FIRST) == bytes.fromhex("02a51f882664")
    assert desired.pod_mac(FURTHER) == bytes.fromhex("02387c81a622")
    assert (desired.route_metric(FIRST), desired.route_metric(FURTHER)) == (0, 88477)


@pytest.mark.parametrize(
    "pod",
    [
        *(POD, PodRef("-", "c1"), PodRef("ns", "a name with spaces")),
        PodRef("team-a", " web  0", "12345678"),
    ],
)
def test_an_alias_says_whose_a_link_is_with_every_blank_of_a_name(pod: PodRef) -> None:
    text = desired.identity_text(FIRST, pod)
    assert text.startswith("netmgr c1 eth0 ")
    assert desired.identity_of(link(alias=text)) == (FIRST, pod)


@pytest.mark.parametrize(
    ("name", "alias"),
    [
        *((NAME, ""), (NAME, "netmgr c1 eth0 team-a 12345678")),
        (NAME, ALIAS.replace("netmgr", "other")),
        (NAME, ALIAS.replace("c1", "c2")),
        ("nmca4978b4555a", ALIAS),
    ],
)
def test_an_alias_that_does_not_match_the_name_says_nothing(name: str, alias: str) -> None:
    assert desired.identity_of(link(name, alias)) is None


def test_a_renamed_link_is_known_by_its_alias_in_our_group_alone() -> None:
    renamed = link("veth0", ALIAS)
    for group, name in ((OURS, NAME), (OTHERS, "veth0")):
        assert desired.own_name(renamed._replace(group=group)) == name


@pytest.mark.parametrize(
    ("name", "alias", "group", "is_ours"),
    [
        *((NAME, "", OURS, True), (NAME, "another program's", OURS, True)),
        *((NAME, "", OTHERS, False), (NAME, ALIAS, OTHERS, True)),
        *(
            (name, "", OURS, False)
            for name in (NAME[:-1], f"{NAME}0", "nmec43057c07ag", "veth43057c07aa")
        ),
    ],
)
def test_a_host_end_is_known_by_alias_or_by_name_and_group(
    name: str, alias: str, group: int, *, is_ours: bool
) -> None:
    assert desired.is_host_end(link(name, alias, group)) is is_ours


def test_the_pair_is_made_in_our_group_with_the_pods_end_in_its_sandbox() -> None:
    assert desired.creation(attachment(), 1450, 9, MAC) == links.create_veth(
        VethEnd(NAME, bytes.fromhex("026e6d000001"), 1450), VethEnd("eth0", MAC, 1450), 9, OURS
    )


@pytest.mark.parametrize("longest", [3, 240, 300, 400, 600])
@pytest.mark.parametrize("filler", ["y", " "])
def test_a_link_has_its_alias_before_it_is_up_and_what_that_has_no_room_for_is_in_alternative_names(
    longest: int, filler: str
) -> None:
    """Of a pod outside Kubernetes, whose name may be as long as its runtime likes, with a blank at
    every seam.
    """
    pod = PodRef("team-a", "x y" + filler * longest + "z", "12345678")
    made = attachment(pod=pod)
    text = desired.identity_text(FIRST, pod)
    alias, rest = text[:255], text[255:]
    per_name = 127 - len(f"{NAME}.00.")
    names = [
        f"{NAME}.{number:02}.{rest[start : start + per_name].replace(' ', '/')}"
        for number, start in enumerate(range(0, len(rest), per_name))
    ]
    adding = [links.add_alternative_names(made.host_link, names)] if names else []
    assert desired.naming(made) == [
        *adding,
        links.mark(made.host_link, alias, OURS),
        links.raise_link(made.host_link),
    ]
    # The kernel lists them in any order, and beside other programs' names.
    listed = ("altname", *reversed(names), NAME[:-1])
    assert desired.identity_of(link(alias=alias, more=listed)) == (FIRST, pod)


def test_limits_that_a_pod_brought_along_are_in_alternative_names_beside_its_identity() -> None:
    pod = PodRef("team-a", "x" * 300, "12345678")
    made = replace(attachment(pod=pod), rates=(("all-in", 7_000_000), ("internet-out", 10**13)))
    text = desired.identity_text(FIRST, pod)
    alias, rest = text[:255], text[255:]
    names = (
        f"{NAME}.00.{rest}",
        f"{NAME}.rate.all-in.7000000",
        f"{NAME}.rate.internet-out.{10**13}",
    )
    assert desired.naming(made)[0] == links.add_alternative_names(NAME, names)
    others = ("altname.rate.all-out.1", f"{NAME}.rate.all-out.", f"{NAME}.rate.all-out.x")
    listed = link(alias=alias, more=(*names, *others))
    assert desired.rates_of(listed) == made.rates
    assert desired.identity_of(listed) == (FIRST, pod)


def test_the_host_has_a_neighbour_and_a_route_for_each_address() -> None:
    assert desired.host_side(attachment(), 7, MAC) == [
        add_neighbour(V4, MAC, 7),
        add_route(V4.prefix, 7, protocol=110, metric=0),
        add_neighbour(V6, MAC, 7),
        add_route(V6.prefix, 7, protocol=110, metric=1),
    ]


def test_a_pods_gateway_is_reachable_before_its_default_route() -> None:
    assert desired.pod_side(attachment(), 3) == [
        links.raise_index(1),
        links.raise_index(3),
        links.add_address(V4, 3),
        links.add_address(V6, 3),
        add_neighbour(GATEWAY4, desired.HOST_MAC, 3),
        add_route(GATEWAY4.prefix, 3, protocol=3),
        add_route(Prefix.parse("0.0.0.0/0"), 3, protocol=3, gateway=GATEWAY4),
        add_neighbour(GATEWAY6, desired.HOST_MAC, 3),
        add_route(GATEWAY6.prefix, 3, protocol=3),
        add_route(Prefix.parse("::/0"), 3, protocol=3, gateway=GATEWAY6),
    ]


def test_a_further_interface_answers_from_its_own_addresses() -> None:
    made = replace(attachment(FURTHER), addresses=(V4,))
    metric = 88477
    assert desired.pod_side(made, 4) == [
        links.raise_index(1),
        links.raise_index(4),
        links.add_address(V4, 4),
        add_neighbour(GATEWAY4, desired.HOST_MAC, 4),
        add_route(GATEWAY4.prefix, 4, protocol=3, metric=metric),
        add_route(Prefix.parse("0.0.0.0/0"), 4, protocol=3, gateway=GATEWAY4, metric=metric),
        routes.add_table_default(GATEWAY4, 4, table=metric, protocol=3),
        routes.add_rule(SourceRule(V4.prefix, metric)),
    ]
    assert desired.source_rules(attachment()) == []
    rules = [SourceRule(V4.prefix, metric), SourceRule(V6.prefix, metric)]
    assert desired.source_rules(attachment(FURTHER)) == rules
    assert [change.text for change in desired.source_routing_of(attachment(FURTHER), 4)] == [
        f"route add default via 169.254.1.1 on link 4 table {metric}",
        f"route add default via fe80::1 on link 4 table {metric}",
        f"rule add from 10.1.0.5/32 lookup {metric} priority 30000",
        f"rule add from fd00:1::5/128 lookup {metric} priority 30000",
    ]
