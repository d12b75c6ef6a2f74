"""The picture of a lab: whole, escaped, and in need of nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

from netmgr.documents.sites import Role
from netmgr.lab.live import Dropped, Host, Link, Live, LiveSite, Pod
from netmgr.lab.picture import draw
from netmgr.palette import DARK

SVG = "{http://www.w3.org/2000/svg}"
UPLINK = Link("eth0", up=True, mtu=1500, addresses=("10.0.0.4",))
NODE = Host(
    "node-1",
    Role.NODE,
    "spoke-1",
    (UPLINK,),
    ranges=("10.0.1.0/28",),
    pods=(Pod("pod-1", "research", ("10.0.1.1",)),),
    dropped=(Dropped("spoke-1", "spoke-2", 7, 420), Dropped("spoke-2", "spoke-1", 0, 0)),
)
HUB = Live(
    "lab-1",
    "nftables",
    (
        LiveSite("hub", ("10.9.0.0/24",)),
        LiveSite("spoke-1", ("10.0.0.0/16",), ("172.16.0.0/24",), ("100.64.0.0/24",)),
        LiveSite("spoke-2"),
    ),
    (
        Host("internet", "", "", (UPLINK,)),
        Host(
            "fabric",
            "",
            "",
            (Link("hub", up=True, mtu=1500), Link("node-1", up=True, mtu=1500, bridge="spoke-1")),
        ),
        Host("researcher", "", "hub", (UPLINK,)),
        NODE,
        Host("rogue.spoke-1", "", "spoke-1", (UPLINK,)),
    ),
)


def words(live: Live) -> list[str]:
    root = ET.fromstring(draw(live))  # noqa: S314 (our own picture)
    return ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]


def test_it_shows_sites_machines_pods_ranges_and_drops() -> None:
    shown = words(HUB)
    for expected in (
        "hub",
        "spoke-1",
        "node-1",
        "pod-1",
        "10.0.1.1",
        "pods 10.0.1.0/28",
        "rogue.spoke-1",
    ):
        assert expected in shown
    assert "Services 172.16.0.0/24 → 100.64.0.0/24" in shown
    assert "dropped to spoke-2: 7 packets, 420 bytes" in shown
    assert not any("from spoke-2:" in each for each in shown), "nothing was dropped that way"
    assert any("1 of 1 ports up" in each for each in shown)


def test_a_screen_reader_gets_machines_and_drops() -> None:
    root = ET.fromstring(draw(HUB))  # noqa: S314 (our own picture)
    summary = root.find(f"{SVG}desc").text
    assert "node-1 in spoke-1;" in summary
    assert "7 packets dropped from spoke-1 to spoke-2" in summary
    assert root.get("role") == "img"
    assert {root.find(f"{SVG}{name}").get("id") for name in ("title", "desc")} == set(
        root.get("aria-labelledby").split()
    )


def test_a_lab_of_one_cluster_has_a_picture_too() -> None:
    shown = words(
        Live("lab-1", "iptables", (), (replace(NODE, site=""), Host("internet", "", "", (UPLINK,))))
    )
    assert "node-1" in shown
    assert not any(each.startswith("Packets dropped") for each in shown)


def test_whatever_a_name_is_it_stays_text() -> None:
    hostile = replace(
        NODE, name='</text><script>alert("&")</script>', reason="\x00]]>", ready=False
    )
    text = draw(replace(HUB, hosts=(hostile,)))
    assert '</text><script>alert("&")</script>' in words(replace(HUB, hosts=(hostile,)))
    assert "<script" not in text


def test_each_state_of_a_machine_has_a_shape_of_its_own() -> None:
    ready, agentless = NODE, replace(NODE, role="")
    not_ready = replace(NODE, ready=False, reason="rules: no nft")
    shapes = {}
    for host in (ready, not_ready, agentless):
        root = ET.fromstring(draw(replace(HUB, hosts=(host,))))  # noqa: S314 (our own picture)
        (mark,) = (
            each
            for each in root.iter()
            if each.tag in (f"{SVG}circle", f"{SVG}path") and each.find(f"{SVG}title") is not None
        )
        shapes[mark.find(f"{SVG}title").text] = (mark.tag, mark.get("fill") == "none")
    assert shapes.keys() == {"agent ready", "rules: no nft", "no agent runs here"}
    assert len(set(shapes.values())) == 3
    assert "not ready: rules: no nft" in words(replace(HUB, hosts=(not_ready,)))


def test_on_a_dark_screen_every_colour_is_another() -> None:
    text = draw(HUB)
    used = set(re.findall(r'(?:fill|stroke)="(#\w+)"', text.partition("</style>")[2]))
    assert len(used) > 5
    for colour in used:
        assert f'[fill="{colour}"]{{fill:{DARK[colour]}}}' in text
        assert f'[stroke="{colour}"]{{stroke:{DARK[colour]}}}' in text


def test_it_needs_nothing_but_itself() -> None:
    text = draw(HUB)
    assert re.findall(r'https?://[^"]+', text) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"<(image|use|script|foreignObject)\b|href|url\(|@import", text)
    assert text.endswith("</svg>\n")
