"""A wrong node.yaml is refused with file, line, key and reason; a right one means what it says."""

from __future__ import annotations

import pytest

from netmgr.config import SPECIAL_USE, NodeDocument
from netmgr.documents import load, parse
from netmgr.errors import ConfigError
from netmgr.prefixes import Address, Family

HEAD = "apiVersion: netmgr.io/v1alpha1\nkind: Node\nnode: {name: node-a, addresses: [10.1.0.200]}\n"


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, "node.yaml", NodeDocument)
    return caught.value.message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("ranges: [10.1.0.0/28, 10.1.0.4/30]", "node.yaml:4: ranges: 10.1.0.0/28 and 10.1.0.4/30 overlap"),
        ("ranges: [10.1.0.192/27]", "node.yaml:4: ranges: 10.1.0.192/27 holds the node's own address 10.1.0.200"),
        ("ranges: []", "node.yaml:4: ranges: "),
        ("ranges: [127.0.0.0/30]", "node.yaml:4: ranges: 127.0.0.0/30 lies in the special-use prefix 127.0.0.0/8"),
        ("ranges: [10.1.0.1/28]", "node.yaml:4: ranges[0]: '10.1.0.1/28' has host bits set; did you mean 10.1.0.0/28?"),
        ("ranges:\n- 10.1.0.0/28\n- pods", "node.yaml:6: ranges[1]: 'pods' is not an IP address"),
        ("ranges: [10.1.0.0/28]\nrange: x", "node.yaml:5: range: unknown key"),
        ("ranges: [10.1.0.0/28]\npool:\n  cooldown: 3", "node.yaml:6: pool.cooldown: unknown key"),
        ("ranges: [10.1.0.0/28]\nbackend: ebpf", "node.yaml:5: backend: "),
        ("ranges: [10.1.0.0/28]\nmtu: 60", "node.yaml:5: mtu: "),
        ("ranges: [10.1.0.0/28]\ninternal: [0.0.0.0/0]", "node.yaml:5: internal: 0.0.0.0/0 makes everything internal"),
        ("ranges: [10.1.0.0/28]\nranges: [10.2.0.0/28]", "node.yaml:5: ranges: given twice (first in line 4)"),
        ("mtu: 1500", "node.yaml:1: ranges: is required and missing"),
        ("ranges: [10.1.0.0/28", "node.yaml:5: is not YAML"),
    ],
)
def test_a_fault_is_named_with_line_and_key(body, message):
    assert message in refused(HEAD + body + "\n")


def test_every_fault_is_named_at_once():
    lines = refused(HEAD + "ranges: [10.1.0.0/28]\nmtu: 60\nbackend: ebpf\n").splitlines()
    assert len(lines) == 2


@pytest.mark.parametrize("text", ["", "- a\n", "node\n"])
def test_a_document_that_is_no_mapping_is_refused(text):
    assert "must be a mapping" in refused(text)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"node\.yaml: cannot be read: No such file"):
        load(tmp_path / "node.yaml", NodeDocument)


def test_every_address_of_every_range_is_usable_and_internal():
    document = parse(HEAD + "ranges: [203.0.113.0/28, '2001:db8::/120', 10.1.0.7]\n", "node.yaml", NodeDocument)
    assert document.families == (Family.V4, Family.V6)
    for text in ("203.0.113.0", "203.0.113.15", "2001:db8::", "10.1.0.7", "127.0.0.1", "169.254.169.254"):
        assert any(prefix.holds(Address.parse(text)) for prefix in document.internal_prefixes), text
    assert not any(prefix.holds(Address.parse("203.0.113.16")) for prefix in document.internal_prefixes)


def test_special_use_prefixes_are_internal_whatever_the_document_says():
    document = parse(HEAD + "ranges: [10.1.0.0/28]\ninternal: []\n", "node.yaml", NodeDocument)
    assert all(any(outer.covers(inner) for outer in document.internal_prefixes) for inner in SPECIAL_USE)
