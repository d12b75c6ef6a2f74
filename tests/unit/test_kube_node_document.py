"""From a Node object to its agent's node.yaml: what is the Node's, and what it has to say first."""

from __future__ import annotations

from typing import Any

import pytest

from netmgr.documents.node import NodeDocument
from netmgr.errors import ConfigError
from netmgr.kube.controller.node_document import RANGES, allocatable_pods, pod_cidr, ranges, render
from netmgr.prefixes import Prefix
from tests.builders import NODE_KEYS

Object = dict[str, Any]
TEMPLATE: Object = {**NODE_KEYS, "backend": "nftables", "node": {"uplink": "eth0"}}


def node(cidrs: Any = ("10.1.0.0/24",), annotation: str | None = None, **status: Any) -> Object:
    addresses = [
        {"type": "Hostname", "address": "worker-0"},
        {"type": "InternalIP", "address": "10.0.0.4"},
        {"type": "InternalIP", "address": "fd00::4"},
    ]
    metadata: Object = {"name": "worker-0", "resourceVersion": "17"}
    if annotation is not None:
        metadata["annotations"] = {RANGES: annotation}
    return {
        "metadata": metadata,
        "spec": {"podCIDRs": list(cidrs)},
        "status": {"addresses": addresses, **status},
    }


def test_a_document_is_the_template_and_what_only_the_node_knows() -> None:
    document = render(TEMPLATE, node(allocatable={"pods": "110"}))
    assert document == {
        **NODE_KEYS,
        "backend": "nftables",
        "node": {
            "uplink": "eth0",
            "name": "worker-0",
            "addresses": ["10.0.0.4", "fd00::4"],
            "max_pods": 110,
        },
        "ranges": ["10.1.0.0/24"],
        "ranges_version": 17,
        "ranges_file": "/etc/netmgr-pod/ranges",
    }
    assert list(document)[:3] == ["apiVersion", "kind", "node"]
    NodeDocument.model_validate(document)
    assert TEMPLATE["node"] == {"uplink": "eth0"}


def test_the_template_may_name_another_file_and_need_not_have_a_node() -> None:
    document = render({**NODE_KEYS, "ranges_file": "/x"}, node())
    assert document["ranges_file"] == "/x"
    assert document["node"] == {"name": "worker-0", "addresses": ["10.0.0.4", "fd00::4"]}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"node": ["x"]}, "the template's node is not a mapping of keys: leave it out, or give it"),
        ({"node": {"name": "x"}}, "the template has node.name, which comes from the Node: remove"),
        ({"node": {"addresses": []}}, "the template has node.addresses, which comes from the Node"),
        ({"ranges": ["10.1.0.0/24"]}, "the template has ranges, which come from the Node: remove"),
    ],
)
def test_a_template_that_says_what_is_the_nodes_is_refused(more: Object, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        render(TEMPLATE | more, node())


@pytest.mark.parametrize(
    ("more", "gives_out"),
    [
        ({"cni": False}, False),
        ({"cni": "off"}, False),
        ({"cni": "perhaps"}, False),
        ({"role": "nat-host"}, False),
        ({"range_source": "azure"}, False),
        ({"cni": "on"}, True),
        ({"role": "node", "range_source": "file"}, True),
    ],
    ids=str,
)
def test_only_a_node_that_gives_out_its_range_gets_it(more: Object, *, gives_out: bool) -> None:
    document = render(TEMPLATE | more, node())
    keys = {"ranges", "ranges_version", "ranges_file"}
    assert document.keys() & keys == (keys if gives_out else set())


def test_a_node_without_podcidrs_is_told_who_gives_it_some() -> None:
    for lacking in (node(cidrs=()), {"metadata": {"name": "worker-0"}}):
        with pytest.raises(ConfigError, match=r"^Node worker-0 has no podCIDRs yet: netmgr contr"):
            ranges(lacking)


@pytest.mark.parametrize(
    "status", [None, {}, {"addresses": [{"type": "Hostname", "address": "x"}]}]
)
def test_a_node_without_an_address_is_told_who_says_it(status: Object | None) -> None:
    lacking = node()
    del lacking["status"]
    if status is not None:
        lacking["status"] = status
    with pytest.raises(ConfigError, match=r"^Node worker-0 has no InternalIP yet: .*node worker-0"):
        render(TEMPLATE, lacking)


def test_how_many_pods_a_kubelet_takes_is_a_number_or_unknown() -> None:
    for said, expected in ((110, 110), ("0", 0), ("1k", None), ("\u0661", None), ("", None)):
        assert allocatable_pods({"status": {"allocatable": {"pods": said}}}) == expected
    for lacking in ({}, {"status": {}}, {"status": {"allocatable": {}}}):
        assert allocatable_pods(lacking) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.1.0.0/24", "10.1.0.0/24"),
        ("010.001.0.9/29", "10.1.0.8/29"),
        ("FD00:1::9/64", "fd00:1::/64"),
        ("10.01.0.9", "10.1.0.9/32"),
        ("10.1.0.0/255.255.255.0", "10.1.0.0/24"),
        ("0000001::/64", "1::/64"),
        ("00fd:00000::0001/112", "fd::/112"),
        ("::ffff:010.0.0.255/120", "::ffff:a00:0/120"),
        ("::/0", "::/0"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("fd00::010.0.0.1/128", "fd00::a00:1/128"),
    ],
)
def test_a_podcidr_is_read_in_every_form_that_an_api_server_takes(text: str, expected: str) -> None:
    # Compared as values: only newer Pythons write an IPv4-mapped address with dots.
    assert pod_cidr(text) == Prefix.parse(expected)


def test_the_ranges_are_the_podcidrs_or_what_the_annotation_names() -> None:
    named = "10.2.0.0/28", "10.1.0.0/24", "10.3.0.0/28"
    text = "10.2.0.0/28, 10.1.0.0/24,10.3.0.0/28"
    assert ranges(node(annotation=text)) == tuple(map(Prefix.parse, named))
    alone = {"podCIDR": "10.1.0.0/24"}
    both = {"podCIDR": "10.9.0.0/24", "podCIDRs": ["10.1.0.0/24"]}
    for given in (node(), node(annotation=""), node() | {"spec": alone}, node() | {"spec": both}):
        assert ranges(given) == (Prefix.parse("10.1.0.0/24"),)


@pytest.mark.parametrize(
    ("annotation", "fault"),
    [
        ("x", ": 'x' is not an IP address"),
        ("10.2.0.0/28", " (10.2.0.0/28) does not name its podCIDR 10.1.0.0/24, 10.9.0.0/24"),
    ],
)
def test_an_annotation_that_contradicts_is_refused(annotation: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ranges(node(("10.1.0.0/24", "10.9.0.0/24"), annotation))
    assert str(caught.value) == (
        f"Node worker-0: annotation netmgr.io/ranges{fault}; remove it, and the controller "
        "repairs it"
    )
