"""What CHECK finds when it holds `prevResult` against what the kernel has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cni.request import parse_request
from netmgr.agent.cni.expected import differences
from netmgr.kernel.contents import Contents
from netmgr.kernel.links import Link
from netmgr.kernel.routes import Route
from netmgr.model import Attachment, AttachmentKey, PodRef
from netmgr.prefixes import Address, Prefix

V4, V6 = Address.parse("10.1.0.5"), Address.parse("fd00:1::5")
HOST_LINK, NETNS = "nm0123456789ab", "/run/netns/pod"
HOST_MAC, POD_MAC = "02:6e:6d:00:00:01", "02:00:00:00:00:05"
ATTACHMENT = Attachment(
    AttachmentKey("c1", "eth0"), PodRef("ns", "web"), (V4, V6), HOST_LINK, NETNS
)

Result = dict[str, Any]


def link(name: str, mac: str, mtu: int = 1500) -> Link:
    return Link(
        7, name, up=True, mac=bytes.fromhex(mac.replace(":", "")), mtu=mtu, alias="", group=0
    )


def route(to: str, via: str, table: int = 254, metric: int = 0, scope: int = 0) -> Route:
    return Route(Prefix.parse(to), 3, Address.parse(via), 3, scope, metric, table)


INSIDE = Contents(
    {"eth0": link("eth0", POD_MAC), "lo": link("lo", "00:00:00:00:00:00", 65536)},
    {("eth0", V4, 32), ("eth0", V6, 128), ("lo", Address.parse("127.0.0.1"), 8)},
    [
        route("0.0.0.0/0", "169.254.1.1"),
        route("::/0", "fe80::1", metric=1024),
        route("10.9.0.0/16", "10.1.0.6", table=7, metric=5, scope=253),
    ],
)
OUTSIDE = Contents(
    {HOST_LINK: link(HOST_LINK, HOST_MAC)}, {(HOST_LINK, Address.parse("10.2.0.1"), 32)}, []
)


def result() -> Result:
    """What ADD answered."""
    return {
        "interfaces": [
            {"name": HOST_LINK, "mac": HOST_MAC, "mtu": 1500},
            {"name": "eth0", "mac": POD_MAC.upper(), "mtu": 1500, "sandbox": NETNS},
        ],
        "ips": [
            {"address": "10.1.0.5/32", "interface": 1},
            {"address": "fd00:1::5/128", "interface": 1},
        ],
        "routes": [{"dst": "0.0.0.0/0", "gw": "169.254.1.1"}, {"dst": "::/0"}],
    }


def found(previous: Result, netns: str = NETNS) -> list[str]:
    config = {"cniVersion": "1.1.0", "name": "n", "type": "netmgr", "prevResult": previous}
    variables = {"CNI_CONTAINERID": "c1", "CNI_NETNS": netns, "CNI_IFNAME": "eth0"}
    request = parse_request({"CNI_COMMAND": "CHECK"} | variables, json.dumps(config).encode())
    assert request.previous is not None
    return differences(request.previous, request, ATTACHMENT, INSIDE, OUTSIDE)


def test_a_result_that_the_kernel_confirms_has_no_fault() -> None:
    assert found(result()) == []


def test_a_result_of_a_chain_may_list_more_as_long_as_it_is_there() -> None:
    more = result()
    more["interfaces"] += [
        {"name": "lo", "sandbox": NETNS},
        # Neither is a link of this sandbox or of the host.
        {"name": "net1", "sandbox": "/run/netns/other", "mac": "02:00:00:00:00:09"},
        {"name": "vdpa0", "sandbox": NETNS, "pciID": "0000:af:06.0"},
    ]
    more["ips"] += [
        {"address": "127.0.0.1/8"},
        {"address": "10.2.0.1/32", "interface": 0},
        {"address": "10.3.0.1/32", "interface": 3},
    ]
    more["routes"] += [
        {"dst": "10.9.0.0/16", "gw": "10.1.0.6", "table": 7, "priority": 5, "scope": 253}
    ]
    assert found(more) == []


def test_a_later_plugin_may_have_lowered_the_mtu_in_the_sandbox() -> None:
    listed = result()
    changed(LINKS, 1, mtu=9000)(listed)
    assert found(listed) == []


def without(key: str, index: int) -> Callable[[Result], None]:
    return lambda result: result[key].pop(index)


def changed(key: str, index: int, **values: object) -> Callable[[Result], None]:
    return lambda result: result[key][index].update(values)


def added(key: str, **entry: object) -> Callable[[Result], None]:
    return lambda result: result[key].append(entry)


NO_POD_LINK = f"has no interface eth0 in the sandbox {NETNS}"
NO_HOST_LINK = f"has no interface {HOST_LINK} on the host"


LINKS, IPS, ROUTES = "interfaces", "ips", "routes"
OTHER_MAC, OTHER_NETNS = "02:00:00:00:00:06", "/run/netns/other"
NO_LINK = "has interface {}, which the {} does not"
NO_ADDRESS = "has address {}, which {} does not hold"
NO_ROUTE = "has route {}, which the sandbox does not"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (changed(LINKS, 1, name="eth1"), NO_POD_LINK),
        (changed(LINKS, 1, sandbox=OTHER_NETNS), NO_POD_LINK),
        (changed(LINKS, 1, sandbox=""), NO_POD_LINK),
        (changed(LINKS, 0, name="nm0"), NO_HOST_LINK),
        (changed(LINKS, 0, sandbox=NETNS), NO_HOST_LINK),
        (without(IPS, 1), "lacks address fd00:1::5 of eth0"),
        (changed(IPS, 0, interface=0), "lacks address 10.1.0.5 of eth0"),
        (changed(LINKS, 0, name="nm0"), NO_LINK.format("nm0", "host")),
        (changed(LINKS, 1, name="eth1"), NO_LINK.format("eth1", "sandbox")),
        (
            changed(LINKS, 1, mac=OTHER_MAC),
            f"has MAC {OTHER_MAC} of eth0, the sandbox has {POD_MAC}",
        ),
        (changed(LINKS, 0, mtu=1400), f"has MTU 1400 of {HOST_LINK}, the host has 1500"),
        (changed(LINKS, 0, mtu=9000), f"has MTU 9000 of {HOST_LINK}, the host has 1500"),
        (changed(LINKS, 1, mtu=1400), "has MTU 1400 of eth0, the sandbox has 1500"),
        (changed(IPS, 0, address="10.1.0.5/24"), NO_ADDRESS.format("10.1.0.5/24", "eth0")),
        (changed(IPS, 0, interface=0), NO_ADDRESS.format("10.1.0.5/32", HOST_LINK)),
        *(
            (added(IPS, address=address), NO_ADDRESS.format(address, "the sandbox"))
            for address in ("10.1.0.9/32", "127.0.0.1/32")
        ),
        (changed(ROUTES, 0, gw="169.254.1.2"), NO_ROUTE.format("0.0.0.0/0 via 169.254.1.2")),
        *(
            (added(ROUTES, dst="10.9.0.0/16", **other), NO_ROUTE.format(f"10.9.0.0/16 {shown}"))
            for other, shown in (
                ({"table": 8}, "table 8"),
                ({"priority": 6}, "metric 6"),
                ({"scope": 0}, "scope 0"),
                ({"table": 7, "priority": 4}, "table 7 metric 4"),
            )
        ),
        (added(ROUTES, dst="10.8.0.0/16"), NO_ROUTE.format("10.8.0.0/16")),
    ],
)
def test_every_difference_is_named(change: Callable[[Result], None], fault: str) -> None:
    previous = result()
    change(previous)
    assert f"prevResult {fault}" in found(previous)


def test_every_missing_thing_is_named_at_once() -> None:
    assert found({}) == [
        f"prevResult {NO_POD_LINK}",
        f"prevResult {NO_HOST_LINK}",
        "prevResult lacks address 10.1.0.5 of eth0",
        "prevResult lacks address fd00:1::5 of eth0",
    ]


def test_addresses_behind_one_without_an_interface_are_compared_too() -> None:
    more = result()
    more["ips"] = [
        {"address": "127.0.0.1/8"},
        *more["ips"],
        {"address": "10.7.0.1", "interface": 1},
    ]
    assert found(more) == ["prevResult has address 10.7.0.1/32, which eth0 does not hold"]


def test_a_sandbox_is_the_same_by_another_path(tmp_path: Path) -> None:
    sandbox, alias = tmp_path / "sandbox", tmp_path / "alias"
    sandbox.touch()
    alias.symlink_to(sandbox)
    previous = result()
    previous["interfaces"][1]["sandbox"] = str(alias)
    assert found(previous, str(sandbox)) == []
    alias.unlink()
    for elsewhere in (str(alias), "nul\0"):
        previous["interfaces"][1]["sandbox"] = elsewhere
        assert found(previous, str(sandbox)) == [
            f"prevResult has no interface eth0 in the sandbox {sandbox}"
        ]


def test_a_long_mac_is_cut_where_it_is_shown() -> None:
    previous = result()
    previous["interfaces"][1]["mac"] = "x" * 100
    (fault,) = found(previous)
    assert fault == f"prevResult has MAC {'x' * 40} of eth0, the sandbox has {POD_MAC}"
