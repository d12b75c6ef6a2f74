"""What a runtime may ask of an ADD, and in which place."""

import pytest

from cni.runtime_config import ANNOTATIONS, parse_runtime_config, pod_rates
from netmgr.errors import InvalidEnvironment, InvalidNetworkConfig
from netmgr.model import Requested
from netmgr.prefixes import Address

V4, V6 = Address.parse("10.1.0.9"), Address.parse("fd00::9")
MAC = bytes.fromhex("c21122334455")


def requested(config, **args):
    return parse_runtime_config(config, args).requested


IPS, HEX = ["10.1.0.9", "fd00::9"], "c2:11:22:33:44:55"
OTHER = {"IP": "10.1.0.1", "MAC": "x"}
ARGS = {"IP": "10.1.0.9,fd00::9", "MAC": HEX}


@pytest.mark.parametrize(
    ("config", "args"),
    [
        ({"runtimeConfig": {"ips": ["10.1.0.9/24", "fd00::9/64"], "mac": HEX}}, {}),
        ({"runtimeConfig": {"ips": IPS[::-1], "mac": HEX.upper()}}, OTHER),
        ({"args": {"cni": {"ips": IPS, "mac": HEX}}}, OTHER),
        ({}, ARGS),
        ({"runtimeConfig": {"ips": [], "mac": ""}, "args": {"cni": None}}, ARGS),
    ],
    ids=[
        *("capabilities", "capabilities before CNI_ARGS", "args before CNI_ARGS", "CNI_ARGS"),
        "empty is nothing",
    ],
)
def test_each_place_is_read_and_the_first_that_names_something_decides(config, args):
    assert requested(config, **args) == Requested((V4, V6), MAC)


def test_one_family_may_be_asked_for_and_the_same_address_twice():
    assert requested({"runtimeConfig": {"ips": ["10.1.0.9", "10.1.0.9/24"]}}) == Requested((V4,))


@pytest.mark.parametrize(
    "config", [{}, {"runtimeConfig": None, "args": {}}, {"runtimeConfig": {"ips": None}}]
)
def test_most_runtimes_ask_for_nothing(config):
    runtime = parse_runtime_config(config, {})
    assert (runtime.requested, runtime.dns, runtime.ignored) == (Requested(), {}, ())


NO_ARRAY, NO_MAC = "must be an array of strings", "is not six hexadecimal pairs with colons"
TWO = "10.1.0.8, 10.1.0.9: an interface has one address of each family"


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ({"runtimeConfig": []}, "runtimeConfig: must be an object"),
        ({"args": 7}, "args: must be an object"),
        ({"args": {"cni": []}}, "args.cni: must be an object"),
        ({"args": {"cni": {"ips": ["x"]}}}, "args.cni.ips: 'x' is not an IP address"),
        *(
            ({"runtimeConfig": {key: value}}, f"runtimeConfig.{fault}")
            for key, value, fault in (
                ("ips", "10.1.0.9", "ips: must be an array of addresses"),
                ("ips", ["10.1.0"], "ips: '10.1.0' is not an IP address"),
                ("ips", [7], "ips: '7' is not an IP address"),
                ("ips", ["10.1.0.9", "10.1.0.8"], f"ips: {TWO}"),
                ("mac", 7, f"mac: '7' {NO_MAC}"),
                ("mac", "c2:11:22:33:44", f"mac: 'c2:11:22:33:44' {NO_MAC}"),
                ("mac", "c2-11-22-33-44-55", f"mac: 'c2-11-22-33-44-55' {NO_MAC}"),
                *(
                    ("mac", mac, f"mac: {mac} is not a unicast address")
                    for mac in ("01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00")
                ),
                ("dns", [], "dns: must be an object"),
                ("dns", {"servers": "10.0.0.10"}, f"dns.servers: {NO_ARRAY}"),
                ("dns", {"searches": [7]}, f"dns.searches: {NO_ARRAY}"),
            )
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_malformed_wish_is_refused_by_its_key_with_its_value(config, fault):
    with pytest.raises(InvalidNetworkConfig, match=f"^{fault}$"):
        requested(config)


@pytest.mark.parametrize(
    "args", [{"IP": "x"}, {"IP": "10.1.0.9,10.1.0.8"}, {"MAC": "01:00:5e:00:00:01"}], ids=str
)
def test_a_malformed_argument_is_refused_by_its_key(args):
    with pytest.raises(InvalidEnvironment, match=f"CNI_ARGS: {next(iter(args))}"):
        requested({}, **args)


def test_the_capability_dns_speaks_as_results_do():
    given = {"servers": ["10.0.0.10"], "searches": ["a.example"], "options": ["ndots:5"]}
    expected = {"nameservers": ["10.0.0.10"], "search": ["a.example"], "options": ["ndots:5"]}
    for dns, shown in ((given, expected), ({"servers": [], "searches": None}, {})):
        assert parse_runtime_config({"runtimeConfig": {"dns": dns}}, {}).dns == shown


def test_what_is_for_other_plugins_is_named_unless_it_is_empty():
    others = {"portMappings": [{"hostPort": 80}], "bandwidth": {}, "aliases": ["web"], "ips": IPS}
    ignored = parse_runtime_config({"runtimeConfig": others}, {}).ignored
    assert ignored == ("portMappings", "aliases")


INWARD, OUTWARD = ANNOTATIONS
POD_ANNOTATIONS = "io.kubernetes.cri.pod-annotations"


@pytest.mark.parametrize(
    ("ingress", "egress"), [("ingressRate", "egressRate"), ("IngressRate", "EgressRate")]
)
def test_limits_are_read_as_either_runtime_writes_them(ingress, egress):
    runtime = {
        "bandwidth": {ingress: 1_000_000, egress: 2_000_000, "ingressBurst": 9},
        POD_ANNOTATIONS: {INWARD: "3M", OUTWARD: "4M", "other": "5M"},
    }
    rates = (
        *(("all-in", 1_000_000), ("all-out", 2_000_000)),
        *(("internet-in", 3_000_000), ("internet-out", 4_000_000)),
    )
    assert pod_rates(runtime) == rates
    assert requested({"runtimeConfig": runtime}) == Requested(rates=rates)


def test_a_direction_without_a_limit_is_0_or_not_there():
    assert pod_rates({"bandwidth": {"ingressRate": 0}, POD_ANNOTATIONS: {OUTWARD: "4M"}}) == (
        ("internet-out", 4_000_000),
    )
    assert pod_rates({}) == ()


@pytest.mark.parametrize(
    ("runtime", "place"),
    [
        ({"bandwidth": []}, "bandwidth: must be an object"),
        ({"bandwidth": {"egressRate": "x"}}, "bandwidth.egressRate: "),
        ({POD_ANNOTATIONS: 7}, f"{POD_ANNOTATIONS}: must be an object"),
        ({POD_ANNOTATIONS: {INWARD: "fast"}}, f"{POD_ANNOTATIONS}: {INWARD}: "),
    ],
)
def test_a_malformed_limit_is_no_error_until_the_node_is_to_honour_it(runtime, place):
    """Pods come from anywhere, and most nodes ignore their limits."""
    with pytest.raises(InvalidNetworkConfig) as caught:
        pod_rates(runtime)
    assert str(caught.value).startswith(f"runtimeConfig.{place}")
    found = parse_runtime_config({"runtimeConfig": runtime}, {})
    assert (found.requested, found.rates_fault) == (Requested(), str(caught.value))


def test_limits_are_ignored_keys_where_a_node_honours_none():
    runtime = {
        "portMappings": [{"hostPort": 80}],
        "bandwidth": {"ingressRate": 1_000_000},
        POD_ANNOTATIONS: {INWARD: "3M"},
    }
    found = parse_runtime_config({"runtimeConfig": runtime}, {})
    assert found.rates_fault == ""
    assert found.ignored_by(honours_limits=False) == tuple(runtime)
    assert found.ignored_by(honours_limits=True) == ("portMappings",)


@pytest.mark.parametrize(
    ("annotations", "is_ignored"), [({"other": "1"}, False), ({INWARD: "3M"}, True), ("x", True)]
)
def test_annotations_without_a_limit_are_nothing_that_is_ignored(annotations, is_ignored):
    found = parse_runtime_config({"runtimeConfig": {POD_ANNOTATIONS: annotations}}, {})
    assert found.ignored == ((POD_ANNOTATIONS,) if is_ignored else ())
