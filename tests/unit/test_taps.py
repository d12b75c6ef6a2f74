"""Which links of a node and of its sandboxes are taps, by value."""

from __future__ import annotations

from netmgr.dataplane import desired
from netmgr.dataplane.taps import Sandbox, taps
from netmgr.kernel.links import HERE, Link
from netmgr.model import LINK_GROUP, AttachmentKey, PodRef

KEY = AttachmentKey("c1", "eth0")
ALIAS = desired.identity_text(KEY, PodRef("team", "web"))
HOST = desired.host_link_name(KEY)
NODE, POD = 4, 7
"""Numbers of the node's and of the pod's namespace in the node's."""


def link(number: int, name: str, kind: str = "", **more: object) -> Link:
    return Link(number, name, up=True, mac=b"", mtu=1500, alias="", group=0, kind=kind)._replace(
        **more
    )


UPLINK = link(2, "eth0")
OTHER = link(3, "eth1")
POD_LINK = link(5, HOST, "veth", alias=ALIAS, peer=2, peer_netns=POD)
INSIDE = link(2, "eth0", "veth", peer=5, peer_netns=NODE)


def found(*own: Link, inside: tuple[Link, ...] = ()) -> list[str]:
    sandbox = Sandbox(POD_LINK, [INSIDE, *inside])
    return list(taps([UPLINK, OTHER, POD_LINK, *own], [sandbox], {"eth0", "eth9"}))


def test_a_node_as_it_should_be_has_no_taps() -> None:
    assert found() == []
    assert list(taps([], [], ())) == []


def test_a_promiscuous_uplink_or_pods_link_is_one_unless_a_switch_has_it() -> None:
    asked = UPLINK._replace(promiscuity=1)
    assert list(taps([asked], [], {"eth0"})) == ["eth0 is promiscuous"]
    assert list(taps([asked], [], {"eth1"})) == []
    assert list(taps([asked._replace(master=9)], [], {"eth0"})) == []
    assert list(taps([asked._replace(kind="openvswitch")], [], {"eth0"})) == []
    unnamed = link(5, HOST, "veth", group=LINK_GROUP, promiscuity=2)
    assert list(taps([unnamed], [], ())) == [f"{HOST} is promiscuous"]


def test_a_link_of_the_node_on_top_of_one_is() -> None:
    for kind in ("macvlan", "macvtap", "ipvlan", "ipvtap"):
        assert found(link(6, "top", kind, peer=2)) == [f"{kind} top is on eth0"]
        assert found(link(6, "top", kind, peer=5)) == [f"{kind} top is on {HOST}"]
        assert found(link(6, "top", kind, peer=3)) == []
        assert found(link(6, "top", kind, peer=2, peer_netns=8)) == []
    assert found(link(6, "eth0.5", "vlan", peer=2)) == []


def test_a_link_in_a_sandbox_on_top_of_the_nodes_is_whatever_its_kind() -> None:
    for kind in ("macvlan", "vlan", "ipvlan"):
        top = link(6, "top\x1b[2J", kind, peer=2, peer_netns=NODE)
        assert found(inside=(top,)) == [f"{kind} in pod team/web is on eth0"]
        assert found(inside=(top._replace(peer=5),)) == [f"{kind} in pod team/web is on {HOST}"]
        assert found(inside=(top._replace(peer=3),)) == []
        # On top of one of the pod's own, or of a third namespace's.
        assert found(inside=(top._replace(peer_netns=HERE),)) == []
        assert found(inside=(top._replace(peer_netns=8),)) == []
    tunnel = link(6, "gre1", "gre", peer=0, peer_netns=NODE)
    assert found(inside=(tunnel,)) == ["gre in pod team/web is on the node's routes"]
    second = link(6, "net1", "veth", peer=2, peer_netns=NODE)
    assert found(inside=(second,)) == []
