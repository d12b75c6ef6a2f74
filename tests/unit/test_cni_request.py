"""Every verb, in every version, with every variable and key missing or malformed; CNI_ARGS."""

import json
import re

import pytest

from cni.request import Request, Verb, check_wait, parse_args, parse_request, version_of
from cni.results import SUPPORTED_VERSIONS, parse_previous
from cni.runtime_config import parse_runtime_config
from cni.wire import decode_request, encode_request, only_looks
from netmgr.errors import (
    DecodingFailure,
    IncompatibleVersion,
    InvalidEnvironment,
    InvalidNetworkConfig,
    NetmgrError,
    UnsupportedField,
)
from netmgr.model import AttachmentKey, PodRef, Requested
from netmgr.prefixes import Address

REQUIRED = {
    "ADD": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    "DEL": ("CNI_CONTAINERID", "CNI_IFNAME"),
    "CHECK": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    "GC": ("CNI_PATH",),
    "STATUS": (),
}
SINCE = {"ADD": "0.3.0", "DEL": "0.3.0", "CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}
MALFORMED = {
    "CNI_CONTAINERID": ["-abc", "a/b", "a b", "ä", "a\n", "a;b"],
    "CNI_IFNAME": [
        *("0123456789abcdef", "ääääääää", ".", "..", "a/b", "a:b", "a b", "a\t", "a\u2003b"),
        *("e%d", "%", "ä0", "eth\udcff", "a\x01", "a\x7f", "all", "default"),
    ],
    "CNI_NETNS": ["netns/pod", "proc"],
    "CNI_PATH": [],
}
POD_ARGUMENTS = {
    "K8S_POD_NAMESPACE": "train",
    "K8S_POD_NAME": "worker-0",
    "K8S_POD_INFRA_CONTAINER_ID": "c0",
    "K8S_POD_UID": "u-1",
}
ARGUMENTS = ["IgnoreUnknown=1", *map("=".join, POD_ARGUMENTS.items())]
PREVIOUS = {
    "cniVersion": "1.0.0",
    "interfaces": [
        {"name": "nm0", "mac": "ee:ee:ee:ee:ee:ee"},
        {"name": "eth0", "sandbox": "/run/netns/pod"},
    ],
    "ips": [
        {"interface": 1, "address": "203.0.113.5/32"},
        {"interface": 1, "address": "2001:db8::5/128"},
    ],
}
OLD, NEW = "cni.dev/attachments", "cni.dev/valid-attachments"
KEY = AttachmentKey("c0ffee_1.2-3", "eth0")
NOT_DEL = [verb for verb in REQUIRED if verb != "DEL"]
EVERY = [(verb, version) for verb in REQUIRED for version in SUPPORTED_VERSIONS]
# SUPPORTED_VERSIONS are in order, as text too.
CASES = [(verb, version) for verb, version in EVERY if version >= SINCE[verb]]


def variables(verb, **changes):
    given = {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": KEY.container_id,
        "CNI_NETNS": "/run/netns/pod",
        "CNI_IFNAME": KEY.ifname,
        "CNI_ARGS": ";".join(ARGUMENTS),
        "CNI_PATH": "/opt/cni/bin",
    } | changes
    return {name: value for name, value in given.items() if value is not None}


def config(verb="ADD", version="1.1.0", **changes):
    own = {"CHECK": {"prevResult": PREVIOUS}, "GC": {NEW: []}}.get(verb, {})
    given = {"cniVersion": version, "name": "netmgr", "type": "netmgr", **own, **changes}
    return json.dumps({key: value for key, value in given.items() if value is not ...}).encode()


def parsed(verb, **changes):
    """Of a request that is whole but for these variables and keys."""
    given = {name: changes.pop(name) for name in [*changes] if name.startswith("CNI_")}
    return parse_request(variables(verb, **given), config(verb, **changes))


@pytest.mark.parametrize(("verb", "version"), CASES)
def test_a_whole_request_is_accepted(verb, version):
    request = parsed(verb, version=version)
    assert (request.command, request.version, request.network) == (Verb(verb), version, "netmgr")
    assert request.key == KEY


def test_a_request_that_only_looks_is_told_from_its_bytes():
    looking = [verb for verb in Verb if only_looks(encode_request({"CNI_COMMAND": verb}, b""))]
    assert looking == [Verb.CHECK, Verb.STATUS]


def test_every_part_of_an_add_is_read():
    upstream = {"interfaces": [{"name": "lo"}]}
    changes = {"runtimeConfig": {"mac": "c2:11:22:33:44:55"}, "prevResult": upstream}
    request = parsed("ADD", CNI_NETNS_OVERRIDE="1", **changes)
    assert request == Request(
        *(Verb.ADD, "1.1.0", "netmgr", json.loads(config(**changes))),
        *(KEY.container_id, "/run/netns/pod", "eth0", POD_ARGUMENTS),
        netns_override=True,
        previous=parse_previous(upstream),
        runtime=parse_runtime_config(changes, {}),
    )
    assert request.runtime.requested == Requested(mac=bytes.fromhex("c21122334455"))


def test_every_part_of_a_del_is_read_and_what_is_missing_is_empty():
    assert parsed("DEL", version="0.4.0", prevResult=PREVIOUS) == Request(
        *(Verb.DEL, "0.4.0", "netmgr", json.loads(config("DEL", "0.4.0", prevResult=PREVIOUS))),
        *(KEY.container_id, "/run/netns/pod", "eth0", POD_ARGUMENTS),
        previous=parse_previous(PREVIOUS),
    )
    least = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c", "CNI_IFNAME": "eth0"}
    assert parse_request(least, b"{}") == Request(Verb.DEL, "1.1.0", "", {}, "c", "", "eth0")
    assert parse_request(least, b'{"name": 7}').network == ""


def test_a_request_about_no_sandbox_has_none():
    request = parse_request({"CNI_COMMAND": "STATUS"}, config("STATUS"))
    assert request == Request(Verb.STATUS, "1.1.0", "netmgr", json.loads(config("STATUS")))
    assert request.runtime.requested == Requested()
    assert parse_request({"CNI_COMMAND": "VERSION"}, b"") == Request(Verb.VERSION, "1.1.0", "", {})


def test_gc_s_list_is_no_other_verb_s():
    entries = [{"containerID": "a", "ifname": "eth0"}]
    assert parsed("CHECK", **{NEW: entries}).valid_attachments is None


@pytest.mark.parametrize(("verb", "version"), sorted({*EVERY} - {*CASES}))
def test_a_verb_is_refused_in_versions_older_than_it(verb, version):
    message = f"^cniVersion {version} does not allow {verb}$"
    with pytest.raises(IncompatibleVersion, match=message) as caught:
        parsed(verb, version=version)
    assert caught.value.details == f"{verb} is part of {SINCE[verb]}"


@pytest.mark.parametrize("verb", REQUIRED)
def test_each_required_variable_is_missed_or_refused_by_name(verb):
    for name in REQUIRED[verb]:
        for absent in (None, ""):
            with pytest.raises(InvalidEnvironment, match=f"missing: {name}$"):
                parsed(verb, **{name: absent})
        for value in MALFORMED[name]:
            with pytest.raises(InvalidEnvironment, match=name):
                parsed(verb, **{name: value})


def test_all_faulty_variables_are_named_at_once():
    with pytest.raises(InvalidEnvironment) as caught:
        parse_request({"CNI_COMMAND": "ADD", "CNI_IFNAME": "a/b"}, config())
    assert str(caught.value) == (
        "required variables missing: CNI_CONTAINERID, CNI_NETNS; "
        "CNI_IFNAME: 'a/b' must be printable ASCII without '/', ':', '%' or white space"
    )


@pytest.mark.parametrize("name", ["0123456789abcde", "!", "~a", "a.b-c_d", "AXB"])
def test_whatever_the_kernel_takes_for_a_name_is_one(name):
    assert parsed("ADD", CNI_IFNAME=name).ifname == name


OF_CONTAINERS = "must be letters, digits, '_', '.' and '-', a letter or digit first"


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("CNI_IFNAME", "0123456789abcdef", "is longer than 15 bytes"),
        ("CNI_IFNAME", "all", "is not a name"),
        ("CNI_NETNS", "proc", "must be an absolute path"),
        ("CNI_CONTAINERID", "-a", OF_CONTAINERS),
        *(
            ("CNI_COMMAND", verb, "is not one of ADD, DEL, CHECK, GC, STATUS, VERSION")
            for verb in ("add", "ADDS", "UPDATE", " ADD")
        ),
    ],
)
def test_a_malformed_variable_is_refused_with_what_it_must_be(name, value, fault):
    with pytest.raises(InvalidEnvironment) as caught:
        parsed("ADD", **{name: value})
    assert str(caught.value) == f"{name}: {value!r} {fault}"


@pytest.mark.parametrize("verb", REQUIRED)
def test_what_a_verb_does_not_require_may_be_missing(verb):
    given = variables(verb)
    least = {name: given[name] for name in ("CNI_COMMAND", *REQUIRED[verb])}
    assert parse_request(least, config(verb)).command == verb


def test_variables_a_verb_has_no_use_for_are_not_judged():
    """The reference runtime sets CNI_CONTAINERID and others to nothing, or to anything, for GC,
    STATUS and VERSION.
    """
    odd = {"CNI_CONTAINERID": "-", "CNI_IFNAME": "a/b", "CNI_NETNS": "dummy"}
    assert parsed("STATUS", **odd).command is Verb.STATUS


@pytest.mark.parametrize("verb", REQUIRED)
def test_variables_that_are_not_utf8_are_refused_by_name(verb):
    for name in ("CNI_IFNAME", "CNI_NETNS", "CNI_ARGS", "CNI_OTHER"):
        with pytest.raises(InvalidEnvironment, match=f"not UTF-8 in '{name}'"):
            parsed(verb, **{name: "/eth\udcff"})
    with pytest.raises(InvalidEnvironment, match=r"not UTF-8 in 'CNI_A', 'CNI_B'$"):
        parsed(verb, CNI_B="\udcff", CNI_A="\udcff")


@pytest.mark.parametrize("command", [None, ""])
def test_a_missing_verb_is_refused(command):
    with pytest.raises(InvalidEnvironment, match=r"^required variables missing: CNI_COMMAND$"):
        parsed("ADD", CNI_COMMAND=command)


@pytest.mark.parametrize(
    ("stdin", "expected"),
    [
        (b'{"cniVersion": "0.4.0"}', "0.4.0"),
        (b'{"cniVersion": "9.9.9"}', "1.1.0"),
        (b'{"cniVersion": 7}', "1.1.0"),
        (b"", "1.1.0"),
        (b"[" * 200_000, "1.1.0"),
    ],
)
def test_version_and_errors_are_answered_whatever_the_configuration(stdin, expected):
    assert version_of(stdin) == expected
    assert parse_request({"CNI_COMMAND": "VERSION"}, stdin).version == expected


@pytest.mark.parametrize("verb", ["ADD", "DEL"])
@pytest.mark.parametrize(
    ("stdin", "fault"),
    [
        *((stdin, "is not JSON") for stdin in (b"", b"{", b"\xff\xfe{}", b"{'a': 1}")),
        (b"[" * 200_000, "is not JSON"),
        (b'{"a":' + b"9" * 5000 + b"}", "is not JSON"),
        *((stdin, "must be a JSON object") for stdin in (b"[]", b'"text"', b"null")),
    ],
    ids=lambda value: value[:9] if isinstance(value, bytes) else "",
)
def test_what_is_no_json_object_is_refused(verb, stdin, fault):
    message = f"^the network configuration on standard input {fault}$"
    with pytest.raises(DecodingFailure, match=message) as caught:
        parse_request(variables(verb), stdin)
    assert bool(caught.value.details) is (fault == "is not JSON")
    assert caught.value.details != "None"


@pytest.mark.parametrize("verb", NOT_DEL)
@pytest.mark.parametrize("version", [..., "", "0.1.0", "0.2.0", "0.3", "1.2.0", "2.0.0", "abc"])
def test_versions_we_do_not_speak_are_refused(verb, version):
    with pytest.raises(IncompatibleVersion) as caught:
        parsed(verb, version=version)
    shown = "0.1.0" if version is ... else version
    assert str(caught.value) == f"cniVersion {shown!r} is not supported"
    assert caught.value.details == "supported: 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"


@pytest.mark.parametrize("version", [1, None, ["1.0.0"]])
def test_a_version_that_is_no_text_is_refused(version):
    with pytest.raises(DecodingFailure) as caught:
        parsed("ADD", version=version)
    assert str(caught.value) == f"cniVersion: {version!r}, must be a string"


@pytest.mark.parametrize("verb", NOT_DEL)
@pytest.mark.parametrize(
    ("key", "value"),
    [("name", value) for value in (..., "", 7, None, "a b", "-a", "a/b", "ä", "a\n")]
    + [("type", value) for value in (..., "", 7, None, "../netmgr")],
)
def test_name_and_type_are_validated(verb, key, value):
    shown = "is missing" if value is ... else repr(value)
    with pytest.raises(InvalidNetworkConfig, match=f"^{key}: {re.escape(shown)}, must be "):
        parsed(verb, **{key: value})


@pytest.mark.parametrize(
    "damage",
    [
        *({"name": name} for name in ("a b", "another", 7)),
        *({"version": version} for version in ("9.9.9", 7, ...)),
        {"type": ...},
        {"ipam": {"type": "host-local"}, "ipMasq": True, "wait": 11, "runtimeConfig": "nonsense"},
        {"prevResult": "text"},
    ],
    ids=str,
)
def test_del_is_carried_out_whatever_else_is_malformed(damage):
    request = parsed("DEL", CNI_NETNS="relative", CNI_ARGS="x", **damage)
    assert (request.key, request.netns, request.args) == (KEY, "", {})
    assert request.version in SUPPORTED_VERSIONS
    assert request.previous is None


@pytest.mark.parametrize(("key", "value"), [("ipam", {"type": "host-local"}), ("ipMasq", True)])
def test_add_refuses_what_the_node_decides_naming_key_and_value(key, value):
    with pytest.raises(UnsupportedField, match=f"^{key}: {re.escape(repr(value))} "):
        parsed("ADD", **{key: value})


def test_add_refuses_an_odd_wait():
    assert parsed("ADD", wait=10).config["wait"] == 10
    with pytest.raises(InvalidNetworkConfig, match=r"wait: '11', must be .* from 0 to 10"):
        parsed("ADD", wait=11)


def test_runtime_configuration_and_unknown_keys_are_ignored():
    parsed("ADD", runtimeConfig={"portMappings": []}, capabilities={"x": True}, other=1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, False), ("", False), ("0", False), ("1", True), ("TRUE", True), ("true", True)],
)
def test_namespace_override_is_read_as_the_reference_reads_it(text, expected):
    assert parsed("ADD", CNI_NETNS_OVERRIDE=text).netns_override is expected


def test_the_previous_result_tells_the_addresses_of_the_interface():
    previous = parsed("CHECK").previous
    assert previous.addresses_of("eth0") == (
        Address.parse("203.0.113.5"),
        Address.parse("2001:db8::5"),
    )
    assert previous.addresses_of("nm0") == ()


@pytest.mark.parametrize(
    ("verb", "previous", "fault"),
    [
        ("CHECK", ..., "^prevResult: is missing"),
        ("CHECK", "text", "prevResult"),
        ("ADD", "text", "prevResult"),
        ("ADD", PREVIOUS, "made eth0 already"),
    ],
)
def test_a_previous_result_is_refused_where_it_does_not_fit_the_verb(verb, previous, fault):
    with pytest.raises(InvalidNetworkConfig, match=fault):
        parsed(verb, prevResult=previous)


def test_a_plugin_before_netmgr_may_have_made_another_interface():
    for name, sandbox in (("net1", "/run/netns/pod"), ("eth0", "")):
        previous = PREVIOUS | {"interfaces": [{"name": name, "sandbox": sandbox}], "ips": []}
        assert parsed("ADD", prevResult=previous).previous.addresses_of("eth0") == ()


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ({NEW: ..., OLD: ["a", "b"]}, {"a", "b"}),
        ({NEW: ["a", "b"]}, {"a", "b"}),
        ({NEW: ["a"], OLD: ["b"]}, {"a", "b"}),
        # An explicit nothing is an empty set, and no list is none.
        ({NEW: None}, set()),
        ({NEW: []}, set()),
        ({NEW: ...}, None),
    ],
)
def test_gc_keeps_what_either_key_lists(lists, expected):
    entries = {
        key: [{"containerID": name, "ifname": "eth0"} for name in names] if names else names
        for key, names in lists.items()
        if names is not ...
    }
    valid = parsed("GC", **{NEW: ...} | entries).valid_attachments
    assert valid == (
        None if expected is None else {AttachmentKey(name, "eth0") for name in expected}
    )


@pytest.mark.parametrize(
    "entries",
    [
        *("x", {}, ["a"], [{}], [{"containerID": "a"}], [{"containerID": 1}]),
        [{"containerID": "", "ifname": "e"}],
    ],
)
def test_gc_without_a_true_list_collects_nothing(entries):
    with pytest.raises(InvalidNetworkConfig, match="valid-attachments"):
        parsed("GC", **{NEW: entries})


@pytest.mark.parametrize("arguments", [ARGUMENTS, ARGUMENTS[::-1], [*ARGUMENTS, "OTHER=x"]])
def test_a_pod_is_named_by_arguments_in_any_order(arguments):
    request = parsed("ADD", CNI_ARGS=";".join([*arguments, "MAC=c2:11:22:33:44:55"]))
    assert request.pod == PodRef("train", "worker-0", "u-1")
    assert request.runtime.requested.mac == bytes.fromhex("c21122334455")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (None, PodRef("-", KEY.container_id)),
        ("IgnoreUnknown=true;K8S_POD_NAME=web", PodRef("-", "web")),
        ("K8S_POD_NAMESPACE=;K8S_POD_NAME=;K8S_POD_UID=", PodRef("-", KEY.container_id)),
        # The longest that Kubernetes allows.
        ("K8S_POD_NAME=" + "a" * 253, PodRef("-", "a" * 253)),
    ],
)
def test_a_runtime_outside_kubernetes_leaves_the_container_id_as_name(arguments, expected):
    assert parsed("ADD", CNI_ARGS=arguments).pod == expected


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        *((text, f"'{text}' is not KEY=VALUE") for text in ("K8S_POD_NAME", "=x", "UID=a=b")),
        ("K8S_POD_NAME=a;", "'' is not KEY=VALUE"),
        ("B=1;A=2", "unknown keys A, B without IgnoreUnknown=1"),
        ("IgnoreUnknown=0;OTHER=x", "unknown keys OTHER without IgnoreUnknown=1"),
        ("IgnoreUnknown=perhaps", "IgnoreUnknown must be 1, true, 0 or false"),
        ("K8S_POD_NAME=a b", "K8S_POD_NAME 'a b' is not a name of Kubernetes"),
        ('K8S_POD_NAMESPACE=a"b', "K8S_POD_NAMESPACE 'a\"b' is not a name of Kubernetes"),
        ("K8S_POD_UID=../x", "K8S_POD_UID '../x' is not a name of Kubernetes"),
        ("K8S_POD_NAME=" + "a" * 254, f"K8S_POD_NAME '{'a' * 80}' is not a name of Kubernetes"),
    ],
)
def test_malformed_arguments_stop_an_add_but_never_a_del(arguments, fault):
    for verb in ("ADD", "CHECK"):
        with pytest.raises(InvalidEnvironment, match=f"^CNI_ARGS: {fault}$"):
            parsed(verb, CNI_ARGS=arguments)
    assert parsed("DEL", CNI_ARGS=arguments).args == {}


@pytest.mark.parametrize(
    ("read", "quoted"),
    [
        (
            lambda: parse_previous({"ips": [{"address": f"10.0.0.1/{'9' * 99}"}]}),
            f"prevResult.ips.address: '{'9' * 20}' is",
        ),
        (
            lambda: parse_runtime_config({"runtimeConfig": {"mac": "x" * 99}}, {}),
            f"runtimeConfig.mac: '{'x' * 40}' is",
        ),
        (lambda: decode_request(b"x" * 99 + b"\0"), f"speaks b'{'x' * 32}', this"),
        (lambda: parsed("ADD", name="!" * 99), f"name: '{'!' * 79}, must"),
        (lambda: parsed("ADD", version="9" * 99), f"cniVersion '{'9' * 20}' is"),
        (lambda: check_wait("9" * 99), f"wait: '{'9' * 40}', must"),
        (lambda: parse_args("x" * 99), f"CNI_ARGS: '{'x' * 80}' is"),
    ],
    ids=["prefix length", "mac", "greeting", "name", "version", "wait", "pair"],
)
def test_of_a_value_that_makes_no_sense_only_the_beginning_is_quoted(read, quoted):
    with pytest.raises(NetmgrError) as caught:
        read()
    assert quoted in str(caught.value)
