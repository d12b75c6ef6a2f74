"""What the Kubernetes room keeps in files and objects: without an API server."""

from __future__ import annotations

import pytest

from netmgr.errors import ConfigError, StateError
from netmgr.kube.claim_store import read
from netmgr.kube.node_document import RANGES, pod_cidr, ranges
from netmgr.prefixes import Prefix


@pytest.mark.parametrize(
    "value",
    [
        "",
        "{",
        "{}",
        '{"node": "a", "uid": "u", "ranges": ["10.0.0.1/8"]}',
        "[1]",
        '{"node": "a", "uid": "u", "ranges": [5]}',
        '{"node": "a", "uid": "u", "ranges": [], "released": "9999-12-31T23:59:59-23:59"}',
        '{"node": "a", "uid": "u", "ranges": [], "released": "0001-01-01T00:00:00+23:59"}',
        '{"node": "a", "uid": "u", "ranges": [], "released": 5}',
    ],
)
def test_a_claim_that_is_none_is_refused_by_its_key(value: str) -> None:
    with pytest.raises(StateError, match="claim 7 of node pool gpu cannot be read"):
        list(read("gpu", {"7": value}))


def test_ranges_are_the_annotation_only_where_it_agrees_with_the_pod_cidrs() -> None:
    node = {"metadata": {"name": "a", "annotations": {}}, "spec": {"podCIDR": "10.1.0.5/27"}}
    assert list(map(str, ranges(node))) == ["10.1.0.0/27"]
    node["metadata"]["annotations"] = {RANGES: "10.1.0.0/27, 10.1.0.32/28"}
    assert list(map(str, ranges(node))) == ["10.1.0.0/27", "10.1.0.32/28"]
    node["metadata"]["annotations"] = {RANGES: "10.1.0.32/28"}
    with pytest.raises(ConfigError, match="does not name its podCIDR"):
        ranges(node)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("010.000.1.0/024", "10.0.1.0/24"),
        ("0000001::/64", "1::/64"),
        ("00fd:00000::0001/112", "fd::/112"),
        ("::ffff:010.0.0.255/120", "::ffff:a00:0/120"),
        ("0:0:0:0:0:0:0:0/0", "::/0"),
        ("::/0", "::/0"),
        ("fd00::010.0.0.1/128", "fd00::a00:1/128"),
    ],
)
def test_a_pod_cidr_is_read_as_an_api_server_does(written: str, meant: str) -> None:
    # Compared as values: only newer Pythons write an IPv4-mapped address with dots.
    assert pod_cidr(written) == Prefix.parse(meant)
