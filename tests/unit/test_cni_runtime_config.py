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


@pytest.mark.parametrize(
    ("config", "args"),
    [
        ({"runtimeConfig": {"ips": ["10.1.0.9/24", "fd00::9/64"], "mac": "c2:11:22:33:44:55"}}, {}),
        (
            {"runtimeConfig": {"ips": ["fd00::9", "10.1.0.9"], "mac": "C2:11:22:33:44:55"}},
            {"IP": "10.1.0.1", "MAC": "x"},
        ),
        (
            {"args": {"cni": {"ips": ["10.1.0.9", "fd00::9"], "mac": "c2:11:22:33:44:55"}}},
            {"IP": "10.1.0.1"},
        ),
        ({}, {"IP": "10.1.0.9,fd00::9", "MAC": "c2:11:22:33:44:55"}),
        (
            {"runtimeConfig": {"ips": [], "mac": ""}, "args": {"cni": None}},
            {"IP": "10.1.0.9,fd00::9", "MAC": "c2:11:22:33:44:55"},
        ),
    ],
    ids=[
        "capabilities",
        "capabilities before CNI_ARGS",
        "args before CNI_ARGS",
        "CNI_ARGS",
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


@pytest.mark.parametrize(
    "config",
    [
        {"runtimeConfig": []},
        {"runtimeConfig": {"ips": ["10.1.0"]}},
        {"runtimeConfig": {"ips": [7]}},
        {"runtimeConfig": {"mac": "c2:11:22:33:44"}},
        {"runtimeConfig": {"mac": "c2-11-22-33-44-55"}},
        {"runtimeConfig": {"mac": "01:00:5e:00:00:01"}},
        {"runtimeConfig": {"mac": "ff:ff:ff:ff:ff:ff"}},
        {"runtimeConfig": {"dns": []}},
        {"runtimeConfig": {"dns": {"servers": "10.0.0.10"}}},
        {"runtimeConfig": {"dns": {"searches": [7]}}},
        {"args": 7},
        {"args": {"cni": []}},
        {"args": {"cni": {"ips": ["x"]}}},
    ],
    ids=str,
)
def test_a_malformed_wish_is_refused_by_its_key(config):
    (place,) = config
    with pytest.raises(InvalidNetworkConfig, match=f"^{place}"):
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
    assert parse_runtime_config({"runtimeConfig": {"dns": given}}, {}).dns == expected
    assert (
        parse_runtime_config({"runtimeConfig": {"dns": {"servers": [], "searches": None}}}, {}).dns
        == {}
    )


def test_what_is_for_other_plugins_is_named_unless_it_is_empty():
    others = {
        "portMappings": [{"hostPort": 80}],
        "bandwidth": {},
        "aliases": ["web"],
        "ips": ["10.1.0.9"],
    }
    assert parse_runtime_config({"runtimeConfig": others}, {}).ignored == (
        "portMappings",
        "aliases",
    )


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
    assert pod_rates(runtime) == (
        ("all-in", 1_000_000),
        ("all-out", 2_000_000),
        ("internet-in", 3_000_000),
        ("internet-out", 4_000_000),
    )
    assert parse_runtime_config({"runtimeConfig": runtime}, {}).requested == Requested(
        rates=pod_rates(runtime)
    )


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


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        (
            "ips",
            ["10.1.0.9", "10.1.0.8"],
            "10.1.0.8, 10.1.0.9: an interface has one address of each family",
        ),
        ("mac", 7, "'7' is not six hexadecimal pairs with colons"),
        ("mac", "00:00:00:00:00:00", "00:00:00:00:00:00 is not a unicast address"),
        ("ips", "10.1.0.9", "must be an array of addresses"),
    ],
)
def test_a_malformed_wish_is_refused_with_its_value(key, value, fault):
    with pytest.raises(InvalidNetworkConfig, match=f"^runtimeConfig.{key}: {fault}$"):
        requested({"runtimeConfig": {key: value}})
