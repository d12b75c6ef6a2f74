"""Results of CNI in every version, what came before read back, and the bytes between launcher and
agent.
"""

import json
import re
from dataclasses import replace

import pytest

from cni.results import (
    SUPPORTED_VERSIONS,
    Interface,
    PreviousResult,
    PreviousRoute,
    Wiring,
    add_result,
    error_result,
    parse_previous,
    version_result,
)
from cni.wire import STARTED, decode_request, encode_reply, encode_request, is_of_another_version
from netmgr.agent.cni.server import _started_at
from netmgr.errors import InvalidEnvironment, InvalidNetworkConfig, IoFailure, KernelError
from netmgr.prefixes import Address, Family, Prefix
from tests.unit import cni_shapes

V4, V6 = Address.parse("203.0.113.5"), Address.parse("2001:db8::5")
WIRING = Wiring(
    host_link="nm0123456789ab",
    host_mac="ee:ee:ee:ee:ee:ee",
    host_mtu=1500,
    pod_link="eth0",
    pod_mac="02:00:00:00:00:01",
    pod_mtu=1400,
    netns="/run/netns/pod",
    addresses=(V4, V6),
    gateways={Family.V4: Address.parse("169.254.1.1"), Family.V6: Address.parse("fe80::1")},
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
    assert sizes == ([1500, 1400] if version == "1.1.0" else [None, None])


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


VARIABLES = {"CNI_COMMAND": "ADD", "CNI_ARGS": "A=1;B=2", "NETMGR_STARTED": "7"}


def test_a_request_is_a_greeting_variables_and_standard_input_with_a_nul_after_each() -> None:
    message = encode_request(VARIABLES | {"PATH": "/bin"}, b'{"a": 1}')
    variables = b"CNI_COMMAND=ADD\0CNI_ARGS=A=1;B=2\0NETMGR_STARTED=7\0"
    assert message == b"netmgr-cni 1\0" + variables + b'\0{"a": 1}'
    assert decode_request(message) == (VARIABLES, b'{"a": 1}')


def test_bytes_that_are_no_text_survive_in_variables_and_nul_in_standard_input() -> None:
    environment = {"CNI_IFNAME": "eth\udcff"}
    message = encode_request(environment, b"\0a\0\0")
    assert b"CNI_IFNAME=eth\xff\0" in message
    assert decode_request(message) == (environment, b"\0a\0\0")


@pytest.mark.parametrize("message", [b"", b"netmgr-cni 2\0\0", b"GET / HTTP/1.1"])
def test_another_greeting_is_refused_with_both(message: bytes) -> None:
    greeting = re.escape(repr(message.split(b"\0")[0]))
    fault = (
        f"^the launcher speaks {greeting}, this agent b'netmgr-cni 1': install the launcher again$"
    )
    with pytest.raises(IoFailure, match=fault):
        decode_request(message)


def test_a_truncated_request_is_refused() -> None:
    message = encode_request(VARIABLES, b"")
    assert decode_request(message) == (VARIABLES, b"")
    for length in range(len("netmgr-cni 1"), len(message)):
        with pytest.raises(IoFailure, match=r"^the launcher's request ended before its variables"):
            decode_request(message[:length])


def test_a_launcher_of_another_version_is_told_from_a_truncated_request() -> None:
    assert is_of_another_version(b"netmgr-cni 2\0rest")
    whole, cut = b"netmgr-cni 1\0rest", b"netmgr-cni 1\0CNI_COMMAND=ADD\0"
    for message in (whole, cut, b"netmgr-cni 2", b"other 2\0rest"):
        assert not is_of_another_version(message)


def test_a_reply_is_the_exit_code_and_what_the_launcher_prints() -> None:
    assert encode_reply(0, b"{}\n") == b"0\n{}\n"
    assert encode_reply(11, b"") == b"11\n"


def test_of_a_variable_that_comes_twice_the_first_one_counts_as_for_getenv() -> None:
    frame = b"netmgr-cni 1\0CNI_IFNAME=eth0\0CNI_IFNAME=eth1\0\0{}"
    assert decode_request(frame) == ({"CNI_IFNAME": "eth0"}, b"{}")


@pytest.mark.parametrize("text", ["9" * 20, "9" * 400, "9" * 5000, "", "-1", "1e3", "²"])
def test_a_start_that_is_no_time_of_a_launcher_counts_as_now(text: str) -> None:
    before = _started_at({})
    assert before <= _started_at({STARTED: text}) <= _started_at({})


def test_a_start_is_in_seconds_since_boot_and_never_ahead() -> None:
    assert _started_at({STARTED: "1500000000"}) == 1.5
    assert _started_at({STARTED: "9" * 19}) <= _started_at({})
