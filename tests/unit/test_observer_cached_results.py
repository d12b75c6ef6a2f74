"""A file of libcni's result cache is read for what it says, and never for more."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmgr.model import AttachmentKey, PodRef
from netmgr.observer.cached_results import CachedResult, Reason, Unusable, parse
from netmgr.prefixes import Address

RESULT: dict[str, Any] = {
    "cniVersion": "1.0.0",
    "interfaces": [
        {"name": "cni0", "mac": "aa:00:00:00:00:01"},
        {"name": "veth1", "mac": "aa:00:00:00:00:02"},
        {"name": "eth0", "mac": "aa:00:00:00:00:03", "sandbox": "/run/netns/a"},
    ],
    "ips": [
        {"address": "10.88.1.2/24", "interface": 2},
        {"address": "fd00::2/112", "interface": 2},
    ],
}
ENTRY: dict[str, Any] = {
    "kind": "cniCacheV1",
    "containerId": "c1",
    "ifName": "eth0",
    "networkName": "others",
    "config": "e30=",
    "cniArgs": [["IgnoreUnknown", "1"], ["K8S_POD_NAMESPACE", "research"], ["K8S_POD_NAME", "gpt"]],
    "result": RESULT,
}


def read(**changes: Any) -> CachedResult:
    return parse(json.dumps(ENTRY | changes).encode(), 5.0)


def refused(content: bytes) -> Reason:
    with pytest.raises(Unusable) as caught:
        parse(content, 5.0)
    return caught.value.reason


def test_a_result_says_whose_the_addresses_are_and_which_links_the_host_has():
    addresses = (Address.parse("10.88.1.2"), Address.parse("fd00::2"))
    pod = PodRef("research", "gpt")
    assert read() == CachedResult(
        AttachmentKey("c1", "eth0"), pod, addresses, ("cni0", "veth1"), 5.0
    )


def test_the_uid_is_part_of_who_it_is():
    assert read(cniArgs=[*ENTRY["cniArgs"], ["K8S_POD_UID", "u-1"]]).pod == PodRef(
        "research", "gpt", "u-1"
    )


@pytest.mark.parametrize(
    "arguments", [None, [], [["OTHER", "x"]], [["K8S_POD_NAME", ""]], ["K8S", 3, ["a"]]]
)
def test_outside_kubernetes_the_container_is_the_pod(arguments: object):
    assert read(cniArgs=arguments).pod == PodRef("-", "c1")


def test_the_result_of_an_ancient_plugin_has_addresses_and_no_links():
    found = read(
        result={"cniVersion": "0.2.0", "ip4": {"ip": "10.1.0.9/24"}, "ip6": {"ip": "fd00::9/64"}}
    )
    assert (found.addresses, found.host_links) == (
        (Address.parse("10.1.0.9"), Address.parse("fd00::9")),
        (),
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "cniCacheV2"}, Reason.MALFORMED),
        ({"result": []}, Reason.MALFORMED),
        ({"result": {"ips": [{"address": "pod"}]}}, Reason.MALFORMED),
        ({"containerId": None}, Reason.MALFORMED),
        ({"cniArgs": [["K8S_POD_NAME", 7]]}, Reason.MALFORMED),
        ({"result": {}}, Reason.WITHOUT_ADDRESS),
        ({"result": {"ips": [7, {"address": 7}, {}]}}, Reason.WITHOUT_ADDRESS),
        ({"containerId": "../c1"}, Reason.UNFIT_NAME),
        ({"ifName": "eth0\n"}, Reason.UNFIT_NAME),
        ({"cniArgs": [["K8S_POD_NAMESPACE", 'a"} 1\n']]}, Reason.UNFIT_NAME),
        ({"cniArgs": [["K8S_POD_NAME", "\x1b[2J"]]}, Reason.UNFIT_NAME),
        ({"cniArgs": [["K8S_POD_NAME", "n" * 10_000]]}, Reason.UNFIT_NAME),
        ({"cniArgs": [["K8S_POD_UID", "\ud800"]]}, Reason.UNFIT_NAME),
    ],
)
def test_what_cannot_be_counted_has_a_reason(changes: dict[str, Any], reason: Reason):
    assert refused(json.dumps(ENTRY | changes).encode()) is reason


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b"null"])
def test_what_is_no_document_is_malformed(content: bytes):
    assert refused(content) is Reason.MALFORMED


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(sorted(ENTRY)), json_values),
    st.dictionaries(st.sampled_from(sorted(RESULT)), json_values),
)
def test_whatever_stands_in_a_file_it_ends_as_a_result_or_a_reason(
    entry: dict[str, Any], result: dict[str, Any]
):
    try:
        found = read(**entry, **({} if "result" in entry else {"result": RESULT | result}))
    except Unusable:
        return
    for name in (found.pod.namespace, found.pod.name, found.key.container_id, found.key.ifname):
        assert name == "-" or name.replace("-", "a").replace("_", "a").replace(".", "a").isalnum()
    assert found.addresses
