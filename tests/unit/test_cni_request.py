"""Every verb, in every version, with every variable and key missing or malformed."""

import json
import re

import pytest

from cni.request import Request, Verb, parse_request, version_of
from cni.results import SUPPORTED_VERSIONS, parse_previous
from cni.runtime_config import parse_runtime_config
from netmgr.errors import (
    DecodingFailure,
    IncompatibleVersion,
    InvalidEnvironment,
    InvalidNetworkConfig,
    UnsupportedField,
)
from netmgr.model import AttachmentKey, Requested
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
ARGUMENTS = (
    "IgnoreUnknown=1;K8S_POD_NAMESPACE=train;K8S_POD_NAME=worker-0;"
    "K8S_POD_INFRA_CONTAINER_ID=c0;K8S_POD_UID=u-1"
)
POD_ARGUMENTS = {
    "K8S_POD_NAMESPACE": "train",
    "K8S_POD_NAME": "worker-0",
    "K8S_POD_INFRA_CONTAINER_ID": "c0",
    "K8S_POD_UID": "u-1",
}
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
CASES = [
    (verb, version)
    for verb in REQUIRED
    for version in SUPPORTED_VERSIONS
    if SUPPORTED_VERSIONS.index(version) >= SUPPORTED_VERSIONS.index(SINCE[verb])
]
NOT_DEL = [verb for verb in REQUIRED if verb != "DEL"]
TOO_OLD = [
    (verb, version)
    for verb in REQUIRED
    for version in SUPPORTED_VERSIONS
    if (verb, version) not in CASES
]


def variables(verb, **changes):
    given = {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": "c0ffee_1.2-3",
        "CNI_NETNS": "/run/netns/pod",
        "CNI_IFNAME": "eth0",
        "CNI_ARGS": ARGUMENTS,
        "CNI_PATH": "/opt/cni/bin",
    } | changes
    return {name: value for name, value in given.items() if value is not None}


def config(verb="ADD", version="1.1.0", **changes):
    given = {"cniVersion": version, "name": "netmgr", "type": "netmgr"}
    if verb == "CHECK":
        given["prevResult"] = PREVIOUS
    if verb == "GC":
        given["cni.dev/valid-attachments"] = []
    given |= changes
    return json.dumps({key: value for key, value in given.items() if value is not ...}).encode()


@pytest.mark.parametrize(("verb", "version"), CASES)
def test_a_whole_request_is_accepted(verb, version):
    request = parse_request(variables(verb), config(verb, version))
    assert (request.command, request.version, request.network) == (Verb(verb), version, "netmgr")
    assert request.key == AttachmentKey("c0ffee_1.2-3", "eth0")


def test_every_part_of_an_add_is_read():
    upstream = {"interfaces": [{"name": "lo"}]}
    changes = {"runtimeConfig": {"mac": "c2:11:22:33:44:55"}, "prevResult": upstream}
    request = parse_request(variables("ADD", CNI_NETNS_OVERRIDE="1"), config(**changes))
    assert request == Request(
        Verb.ADD,
        "1.1.0",
        "netmgr",
        json.loads(config(**changes)),
        "c0ffee_1.2-3",
        "/run/netns/pod",
        "eth0",
        POD_ARGUMENTS,
        "/opt/cni/bin",
        netns_override=True,
        previous=parse_previous(upstream),
        runtime=parse_runtime_config(changes, {}),
    )
    assert request.requested == Requested(mac=bytes.fromhex("c21122334455"))


def test_every_part_of_a_del_is_read_and_what_is_missing_is_empty():
    request = parse_request(variables("DEL"), config("DEL", "0.4.0", prevResult=PREVIOUS))
    assert request == Request(
        Verb.DEL,
        "0.4.0",
        "netmgr",
        json.loads(config("DEL", "0.4.0", prevResult=PREVIOUS)),
        "c0ffee_1.2-3",
        "/run/netns/pod",
        "eth0",
        POD_ARGUMENTS,
        "/opt/cni/bin",
        previous=parse_previous(PREVIOUS),
    )
    least = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c", "CNI_IFNAME": "eth0"}
    assert parse_request(least, b"{}") == Request(Verb.DEL, "1.1.0", "", {}, "c", "", "eth0")
    assert parse_request(least, b'{"name": 7}').network == ""


def test_a_request_about_no_sandbox_has_none():
    request = parse_request({"CNI_COMMAND": "STATUS"}, config("STATUS"))
    assert request == Request(Verb.STATUS, "1.1.0", "netmgr", json.loads(config("STATUS")))
    assert request.requested == Requested()
    assert parse_request({"CNI_COMMAND": "VERSION"}, b"") == Request(Verb.VERSION, "1.1.0", "", {})


def test_gc_s_list_is_no_other_verb_s():
    entries = [{"containerID": "a", "ifname": "eth0"}]
    given = config("CHECK", **{"cni.dev/valid-attachments": entries})
    assert parse_request(variables("CHECK"), given).valid_attachments is None


@pytest.mark.parametrize(("verb", "version"), TOO_OLD)
def test_a_verb_is_refused_in_versions_older_than_it(verb, version):
    with pytest.raises(
        IncompatibleVersion, match=f"^cniVersion {version} does not allow {verb}$"
    ) as caught:
        parse_request(variables(verb), config(verb, version))
    assert caught.value.details == f"{verb} is part of {SINCE[verb]}"


@pytest.mark.parametrize("absent", [None, ""])
@pytest.mark.parametrize(("verb", "version"), CASES)
def test_each_required_variable_is_missed_by_name(verb, version, absent):
    for name in REQUIRED[verb]:
        with pytest.raises(InvalidEnvironment, match=f"missing: {name}$"):
            parse_request(variables(verb, **{name: absent}), config(verb, version))


@pytest.mark.parametrize(("verb", "version"), CASES)
def test_each_malformed_variable_is_refused_by_name(verb, version):
    for name in REQUIRED[verb]:
        for value in MALFORMED[name]:
            with pytest.raises(InvalidEnvironment, match=name):
                parse_request(variables(verb, **{name: value}), config(verb, version))


def test_all_faulty_variables_are_named_at_once():
    with pytest.raises(InvalidEnvironment) as caught:
        parse_request({"CNI_COMMAND": "ADD", "CNI_IFNAME": "a/b"}, config())
    assert str(caught.value) == (
        "required variables missing: CNI_CONTAINERID, CNI_NETNS; "
        "CNI_IFNAME: 'a/b' must be printable ASCII without '/', ':', '%' or white space"
    )


@pytest.mark.parametrize("name", ["0123456789abcde", "!", "~a", "a.b-c_d", "AXB"])
def test_whatever_the_kernel_takes_for_a_name_is_one(name):
    assert parse_request(variables("ADD", CNI_IFNAME=name), config()).ifname == name


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("CNI_IFNAME", "0123456789abcdef", "is longer than 15 bytes"),
        ("CNI_IFNAME", "all", "is not a name"),
        ("CNI_NETNS", "proc", "must be an absolute path"),
        (
            "CNI_CONTAINERID",
            "-a",
            "must be letters, digits, '_', '.' and '-', a letter or digit first",
        ),
    ],
)
def test_a_malformed_variable_is_refused_with_what_it_must_be(name, value, fault):
    with pytest.raises(InvalidEnvironment) as caught:
        parse_request(variables("ADD", **{name: value}), config())
    assert str(caught.value) == f"{name}: {value!r} {fault}"


@pytest.mark.parametrize("verb", REQUIRED)
def test_what_a_verb_does_not_require_may_be_missing(verb):
    given = {
        name: value
        for name, value in variables(verb).items()
        if name in ("CNI_COMMAND", *REQUIRED[verb])
    }
    assert parse_request(given, config(verb)).command == verb


def test_variables_a_verb_has_no_use_for_are_not_judged():
    """The reference runtime sets CNI_CONTAINERID and others to nothing, or to anything, for GC,
    STATUS and VERSION.
    """
    given = variables("STATUS", CNI_CONTAINERID="-", CNI_IFNAME="a/b", CNI_NETNS="dummy")
    assert parse_request(given, config("STATUS")).command is Verb.STATUS


@pytest.mark.parametrize("verb", REQUIRED)
@pytest.mark.parametrize("name", ["CNI_IFNAME", "CNI_NETNS", "CNI_ARGS", "CNI_OTHER"])
def test_a_variable_that_is_not_utf8_is_refused_by_name(verb, name):
    with pytest.raises(InvalidEnvironment, match=f"not UTF-8 in '{name}'"):
        parse_request(variables(verb, **{name: "/eth\udcff"}), config(verb))
    with pytest.raises(InvalidEnvironment, match=r"not UTF-8 in 'CNI_A', 'CNI_B'$"):
        parse_request(variables(verb, CNI_B="\udcff", CNI_A="\udcff"), config(verb))


@pytest.mark.parametrize("command", ["add", "ADDS", "UPDATE", " ADD"])
def test_an_unknown_verb_is_refused(command):
    with pytest.raises(InvalidEnvironment) as caught:
        parse_request(variables(command), config())
    assert str(caught.value) == (
        f"CNI_COMMAND: {command!r} is not one of ADD, DEL, CHECK, GC, STATUS, VERSION"
    )


@pytest.mark.parametrize("command", [None, ""])
def test_a_missing_verb_is_refused(command):
    with pytest.raises(InvalidEnvironment, match=r"^required variables missing: CNI_COMMAND$"):
        parse_request(variables("ADD", CNI_COMMAND=command), config())


@pytest.mark.parametrize(
    ("stdin", "version"), [(b"", "1.1.0"), (b'{"cniVersion": "0.3.1"}', "0.3.1"), (b"]", "1.1.0")]
)
def test_version_is_answered_whatever_the_configuration(stdin, version):
    assert parse_request({"CNI_COMMAND": "VERSION"}, stdin).version == version


@pytest.mark.parametrize("verb", REQUIRED)
@pytest.mark.parametrize(
    "stdin",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b"\xff\xfe{}",
        b"{'a': 1}",
        b"[" * 200_000,
        b'{"a":' + b"9" * 5000 + b"}",
    ],
    ids=["empty", "cut", "array", "string", "null", "bytes", "quotes", "deep", "digits"],
)
def test_what_is_no_json_object_is_refused(verb, stdin):
    with pytest.raises(
        DecodingFailure, match=r"^the network configuration on standard input "
    ) as caught:
        parse_request(variables(verb), stdin)
    is_json = stdin in (b"[]", b'"text"', b"null")
    assert str(caught.value).endswith("must be a JSON object" if is_json else "is not JSON")
    assert bool(caught.value.details) is not is_json
    assert caught.value.details != "None"


@pytest.mark.parametrize("verb", NOT_DEL)
@pytest.mark.parametrize("version", [..., "", "0.1.0", "0.2.0", "0.3", "1.2.0", "2.0.0", "abc"])
def test_versions_we_do_not_speak_are_refused(verb, version):
    with pytest.raises(IncompatibleVersion) as caught:
        parse_request(variables(verb), config(verb, version))
    shown = "0.1.0" if version is ... else version
    assert str(caught.value) == f"cniVersion {shown!r} is not supported"
    assert caught.value.details == "supported: 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"


@pytest.mark.parametrize("version", [1, None, ["1.0.0"]])
def test_a_version_that_is_no_text_is_refused(version):
    with pytest.raises(DecodingFailure) as caught:
        parse_request(variables("ADD"), config(version=version))
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
        parse_request(variables(verb), config(verb, **{key: value}))


@pytest.mark.parametrize(
    "damage",
    [
        {"name": "a b"},
        {"name": "another"},
        {"name": 7},
        {"type": ...},
        {"version": "9.9.9"},
        {"version": 7},
        {"version": ...},
        {"ipam": {"type": "host-local"}, "runtimeConfig": "nonsense"},
    ],
    ids=str,
)
def test_del_is_carried_out_whatever_else_is_malformed(damage):
    request = parse_request(
        variables("DEL", CNI_NETNS="relative", CNI_ARGS="x"), config("DEL", **damage)
    )
    assert (request.key, request.netns) == (AttachmentKey("c0ffee_1.2-3", "eth0"), "")
    assert request.version in SUPPORTED_VERSIONS


@pytest.mark.parametrize(("key", "value"), [("ipam", {"type": "host-local"}), ("ipMasq", True)])
def test_add_refuses_what_the_node_decides_naming_key_and_value(key, value):
    with pytest.raises(UnsupportedField) as caught:
        parse_request(variables("ADD"), config(**{key: value}))
    assert key in str(caught.value)
    assert repr(value) in str(caught.value)
    parse_request(variables("DEL"), config("DEL", **{key: value}))


def test_add_refuses_an_odd_wait_and_del_does_not():
    parse_request(variables("ADD"), config(wait=10))
    with pytest.raises(InvalidNetworkConfig, match=r"wait: '11', must be .* from 0 to 10"):
        parse_request(variables("ADD"), config(wait=11))
    parse_request(variables("DEL"), config("DEL", wait=11))


def test_runtime_configuration_and_unknown_keys_are_ignored():
    parse_request(
        variables("ADD"),
        config(runtimeConfig={"portMappings": []}, capabilities={"x": True}, other=1),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, False), ("", False), ("0", False), ("1", True), ("TRUE", True), ("true", True)],
)
def test_namespace_override_is_read_as_the_reference_reads_it(text, expected):
    assert (
        parse_request(variables("ADD", CNI_NETNS_OVERRIDE=text), config()).netns_override
        is expected
    )


def test_check_needs_the_previous_result():
    with pytest.raises(InvalidNetworkConfig, match=r"^prevResult: is missing"):
        parse_request(variables("CHECK"), config("CHECK", prevResult=...))


def test_the_previous_result_tells_the_addresses_of_the_interface():
    previous = parse_request(variables("CHECK"), config("CHECK")).previous
    assert previous.addresses_of("eth0") == (
        Address.parse("203.0.113.5"),
        Address.parse("2001:db8::5"),
    )
    assert previous.addresses_of("nm0") == ()


def test_a_malformed_previous_result_stops_check_and_add_but_never_del():
    for verb in ("ADD", "CHECK"):
        with pytest.raises(InvalidNetworkConfig, match="prevResult"):
            parse_request(variables(verb), config(verb, prevResult="text"))
    assert parse_request(variables("DEL"), config("DEL", prevResult="text")).previous is None


def test_add_is_refused_when_the_chain_made_the_interface_already():
    with pytest.raises(InvalidNetworkConfig, match="made eth0 already"):
        parse_request(variables("ADD"), config(prevResult=PREVIOUS))


@pytest.mark.parametrize("key", ["cni.dev/valid-attachments", "cni.dev/attachments"])
def test_gc_reads_the_valid_attachments_under_either_key(key):
    entries = [{"containerID": "a", "ifname": "eth0"}, {"containerID": "b", "ifname": "net1"}]
    request = parse_request(
        variables("GC"), config("GC", **{"cni.dev/valid-attachments": ..., key: entries})
    )
    assert request.valid_attachments == {AttachmentKey("a", "eth0"), AttachmentKey("b", "net1")}


def test_gc_keeps_what_either_key_lists():
    both = {
        "cni.dev/valid-attachments": [{"containerID": "a", "ifname": "eth0"}],
        "cni.dev/attachments": [{"containerID": "b", "ifname": "eth0"}],
    }
    assert len(parse_request(variables("GC"), config("GC", **both)).valid_attachments) == 2


@pytest.mark.parametrize(
    ("nothing", "expected"), [(None, frozenset()), ([], frozenset()), (..., None)]
)
def test_gc_takes_an_explicit_nothing_for_an_empty_set_and_no_list_for_none(nothing, expected):
    request = parse_request(variables("GC"), config("GC", **{"cni.dev/valid-attachments": nothing}))
    assert request.valid_attachments == expected


@pytest.mark.parametrize(
    "entries",
    [
        "x",
        {},
        ["a"],
        [{}],
        [{"containerID": "a"}],
        [{"containerID": "", "ifname": "e"}],
        [{"containerID": 1}],
    ],
)
def test_gc_without_a_true_list_collects_nothing(entries):
    with pytest.raises(InvalidNetworkConfig, match="valid-attachments"):
        parse_request(variables("GC"), config("GC", **{"cni.dev/valid-attachments": entries}))


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
def test_errors_carry_a_version_however_broken_the_request(stdin, expected):
    assert version_of(stdin) == expected
