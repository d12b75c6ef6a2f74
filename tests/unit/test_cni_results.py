import json
from dataclasses import replace

import pytest

from cni.results import (
    SUPPORTED_VERSIONS,
    Interface,
    PreviousResult,
    PreviousRoute,
    Wiring,
    add_result,
    at_least,
    error_result,
    parse_previous,
    version_result,
)
from netmgr.errors import InvalidEnvironment, InvalidNetworkConfig, KernelError
from netmgr.prefixes import Address, Family, Prefix
from tests.unit import cni_shapes

V4, V6 = Address.parse("203.0.113.5"), Address.parse("2001:db8::5")
WIRING = Wiring(
    host_link="nm0123456789ab",
    host_mac="ee:ee:ee:ee:ee:ee",
    pod_link="eth0",
    pod_mac="02:00:00:00:00:01",
    netns="/run/netns/pod",
    addresses=(V4, V6),
    gateways={Family.V4: Address.parse("169.254.1.1"), Family.V6: Address.parse("fe80::1")},
    mtu=1500,
)
UPSTREAM = {
    "interfaces": [{"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": "/run/netns/pod"}],
    "ips": [{"interface": 0, "address": "127.0.0.1/8"}],
    "routes": [{"dst": "198.51.100.0/24"}],
    "dns": {"nameservers": ["203.0.113.53"]},
}


def as_sent(result):
    return json.loads(json.dumps(result))


@pytest.mark.parametrize("version", SUPPORTED_VERSIONS)
def test_a_result_has_the_shape_of_its_version(version):
    result = as_sent(add_result(version, WIRING))
    cni_shapes.success(result, version)
    sizes = [entry.get("mtu") for entry in result["interfaces"]]
    assert sizes == ([1500, 1500] if version == "1.1.0" else [None, None])


def test_addresses_and_default_routes_are_of_the_sandbox_interface():
    result = add_result("1.0.0", WIRING)
    links = [result["interfaces"][entry["interface"]] for entry in result["ips"]]
    assert [(link["name"], link["sandbox"]) for link in links] == [("eth0", "/run/netns/pod")] * 2
    assert [entry["address"] for entry in result["ips"]] == ["203.0.113.5/32", "2001:db8::5/128"]
    assert result["routes"] == [
        {"dst": "0.0.0.0/0", "gw": "169.254.1.1"},
        {"dst": "::/0", "gw": "fe80::1"},
    ]


def test_a_pod_of_one_family_gets_no_route_of_the_other():
    single = replace(WIRING, addresses=(V6,))
    assert [route["dst"] for route in add_result("1.1.0", single)["routes"]] == ["::/0"]


def test_the_result_of_earlier_plugins_is_kept_and_indices_stay_true():
    result = as_sent(add_result("1.0.0", WIRING, previous=UPSTREAM))
    cni_shapes.success(result, "1.0.0")
    owners = {
        entry["address"]: result["interfaces"][entry["interface"]]["name"]
        for entry in result["ips"]
    }
    assert owners == {"127.0.0.1/8": "lo", "203.0.113.5/32": "eth0", "2001:db8::5/128": "eth0"}
    assert result["routes"][0] == {"dst": "198.51.100.0/24"}
    assert result["dns"] == {"nameservers": ["203.0.113.53"]}


def test_dns_of_the_configuration_is_passed_on():
    dns = {"nameservers": ["203.0.113.54"], "search": ["example"]}
    assert add_result("1.0.0", WIRING, dns, UPSTREAM)["dns"] == dns


def test_version_answer_lists_every_version():
    result = as_sent(version_result("0.4.0"))
    cni_shapes.VERSIONS(result)
    assert result == {
        "cniVersion": "0.4.0",
        "supportedVersions": ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"],
    }


@pytest.mark.parametrize(
    "error", [InvalidEnvironment("CNI_IFNAME: bad"), KernelError("setns", 1, "in pod")]
)
def test_errors_have_the_shape_of_the_specification(error):
    result = as_sent(error_result("1.0.0", error))
    cni_shapes.error(result)
    assert (result["code"], result["msg"]) == (error.cni_code, str(error))


def test_versions_are_ordered_by_age_not_by_text():
    assert at_least("1.1.0", "1.0.0")
    assert at_least("0.4.0", "0.4.0")
    assert not at_least("0.3.1", "0.4.0")


def test_every_part_of_a_previous_result_is_read():
    document = {
        "interfaces": [
            {"name": "nm0", "mac": "ee:ee:ee:ee:ee:ee", "mtu": 1400},
            {"name": "eth0", "sandbox": "/run/netns/pod", "mtu": 0},
            {"name": "net1", "sandbox": "/run/netns/pod", "socketPath": "/run/vhost.sock"},
            {"name": "net2", "pciID": "0000:af:06.0"},
            {},
        ],
        "ips": [
            {"address": "203.0.113.5/24", "interface": 1},
            {"address": "203.0.113.6", "interface": 0},
            {"address": "2001:db8::5"},
        ],
        "routes": [
            {"dst": "0.0.0.0/0", "gw": "169.254.1.1", "table": 5, "priority": 7, "scope": 253},
            {"dst": "10.1.2.3/16", "gw": "", "priority": 0},
            {"dst": "::/0", "gw": "fe80::1", "scope": 0, "priority": 9},
        ],
        "later": True,
    }
    assert parse_previous(document) == PreviousResult(
        (
            Interface("nm0", "ee:ee:ee:ee:ee:ee", "", 1400),
            Interface("eth0", "", "/run/netns/pod"),
            Interface("net1", "", "/run/netns/pod", is_device=True),
            Interface("net2", "", "", is_device=True),
            Interface("", "", ""),
        ),
        ((V4, 24, 1), (Address.parse("203.0.113.6"), 32, 0), (V6, 128, None)),
        (
            PreviousRoute(Prefix.parse("0.0.0.0/0"), Address.parse("169.254.1.1"), 5, 7, 253),
            PreviousRoute(Prefix.parse("10.1.0.0/16")),
            # The kernel has no scopes for IPv6.
            PreviousRoute(Prefix.parse("::/0"), Address.parse("fe80::1"), priority=9),
        ),
        document,
    )
    assert parse_previous({}) == PreviousResult((), (), (), {})


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ([], "must be an object"),
        ({"interfaces": {}}, "interfaces: must be an array of objects"),
        ({"interfaces": ["eth0"]}, "interfaces: must be an array of objects"),
        ({"interfaces": [{"mtu": "x"}]}, "interfaces.mtu: 'x' is not a number"),
        ({"ips": [{}]}, "ips.address: 'None' is not an IP address"),
        *(
            (
                {"ips": [{"address": f"10.0.0.5/{length}"}]},
                f"ips.address: '{length}' is no prefix length from 0 to 32",
            )
            for length in ("x", "33", "-1", " 8", "1_0")
        ),
        *(
            (
                {"ips": [{"address": "10.0.0.5", "interface": index}], "interfaces": [{}]},
                f"ips.interface: {index!r} is not an index of its 1 interfaces",
            )
            for index in (1, -1, "0")
        ),
        ({"routes": {}}, "routes: must be an array of objects"),
        ({"routes": [{}]}, "routes: 'None' does not appear to be an IPv4 or IPv6 network"),
        ({"routes": [{"dst": "fe80::%eth0/64"}]}, "routes: 'fe80::%eth0' is not an IP address"),
        (
            {"routes": [{"dst": "::/0", "gw": "fe80::1%eth0"}]},
            "routes: 'fe80::1%eth0' is not an IP address",
        ),
        ({"routes": [{"dst": "::/0", "gw": "x"}]}, "routes: 'x' is not an IP address"),
        ({"routes": [{"dst": "::/0", "scope": "x"}]}, "routes.scope: 'x' is not a number"),
        ({"routes": [{"dst": "::/0", "table": "main"}]}, "routes.table: 'main' is not a number"),
    ],
)
def test_a_malformed_previous_result_is_refused_by_its_key(document, fault):
    with pytest.raises(InvalidNetworkConfig) as caught:
        parse_previous(document)
    assert str(caught.value).removeprefix("prevResult").lstrip(".: ") == fault


def test_a_route_is_shown_as_ip_route_does():
    default = Prefix.parse("0.0.0.0/0")
    assert str(PreviousRoute(default)) == "0.0.0.0/0"
    assert (
        str(PreviousRoute(default, Address.parse("169.254.1.1"), 5, 7, 0))
        == "0.0.0.0/0 via 169.254.1.1 table 5 metric 7 scope 0"
    )
