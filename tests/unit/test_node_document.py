"""A wrong node.yaml is refused with file, line, key and reason; a right one means what it says."""

from __future__ import annotations

import pytest

from netmgr.documents.loader import load, parse
from netmgr.documents.node import NodeDocument
from netmgr.documents.special_use import SPECIAL_USE
from netmgr.errors import ConfigError
from netmgr.prefixes import Address, Family, Prefix

HEAD = "apiVersion: netmgr.io/v1alpha1\nkind: Node\nnode: {name: node-a, addresses: [10.1.0.200]}\n"


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, "node.yaml", NodeDocument)
    return caught.value.message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "ranges: [10.1.0.0/28, 10.1.0.4/30]",
            "node.yaml:4: ranges[1]: 10.1.0.4/30 overlaps 10.1.0.0/28 (line 4); give",
        ),
        (
            "ranges:\n- 10.1.0.4/30\n- 10.1.0.0/28",
            "node.yaml:6: ranges[1]: 10.1.0.0/28 overlaps 10.1.0.4/30 (line 5);",
        ),
        (
            "ranges: [10.1.0.192/27]",
            "node.yaml:4: ranges[0]: 10.1.0.192/27 holds the node's own address 10.1.0.200",
        ),
        ("ranges: []", "node.yaml:4: ranges: "),
        (
            "ranges: [127.0.0.0/30]",
            "node.yaml:4: ranges[0]: 127.0.0.0/30 lies in the special-use prefix 127.0.0.0/8",
        ),
        (
            "ranges: [10.1.0.1/28]",
            "node.yaml:4: ranges[0]: '10.1.0.1/28' has host bits set; did you mean 10.1.0.0/28?",
        ),
        ("ranges:\n- 10.1.0.0/28\n- pods", "node.yaml:6: ranges[1]: 'pods' is not an IP address"),
        ("ranges: [10.1.0.0/28]\nrange: x", "node.yaml:5: range: unknown key"),
        ("ranges: [10.1.0.0/28]\npool:\n  cooldown: 3", "node.yaml:6: pool.cooldown: unknown key"),
        ("ranges: [10.1.0.0/28]\nbackend: ebpf", "node.yaml:5: backend: "),
        ("ranges: [10.1.0.0/28]\nmtu: 60", "node.yaml:5: mtu: "),
        (
            "ranges: [10.1.0.0/28]\nprotect: [0.0.0.0/0]",
            "node.yaml:5: protect[0]: 0.0.0.0/0 is everything of IPv4",
        ),
        (
            "ranges: [10.1.0.0/28]\nprotect: [10.0.0.0/8]",
            (
                "node.yaml:5: protect[0]: 10.0.0.0/8 overlaps ranges[0], 10.1.0.0/28, so that "
                "pods would not reach"
            ),
        ),
        (
            (
                "ranges: [10.1.0.0/28]\naccounting: {classes: [{name: protected, prefixes: "
                "[10.9.0.0/16]}]}"
            ),
            "class protected is there without being named",
        ),
        (
            "ranges: [10.1.0.0/28]\ninternal: [0.0.0.0/0]",
            "node.yaml:5: internal: makes everything of IPv4 internal,",
        ),
        (
            "ranges: [10.1.0.0/28]\ninternal: [0.0.0.0/1, 128.0.0.0/1]",
            (
                "node.yaml:5: internal: makes everything of IPv4 internal with the "
                "special-use prefixes and the ranges,"
            ),
        ),
        (
            "ranges: [10.1.0.0/28]\ninternal: ['::/1', '8000::/1']",
            "node.yaml:5: internal: makes everything of IPv6",
        ),
        (
            "ranges: [10.1.0.0/28]\naccounting:\n  node_rules: exact\n  exact_prefix: 'fd00::/8'",
            "node.yaml:7: accounting.exact_prefix: fd00::/8 is IPv6",
        ),
        (
            "ranges: [10.1.0.0/28]\naccounting:\n  node_rules: exact\n  exact_prefix: 0.0.0.0/0",
            "node.yaml:7: accounting.exact_prefix: 0.0.0.0/0 excepts everything",
        ),
        (
            "ranges: [10.1.0.0/28]\nstate_dir: state",
            "node.yaml:5: state_dir: 'state' is no absolute path",
        ),
        (
            "ranges: [10.1.0.0/28]\nrun_dir: ./run",
            "node.yaml:5: run_dir: 'run' is no absolute path",
        ),
        ('ranges: [10.1.0.0/28]\nstate_dir: "/a\\0b"', "node.yaml:5: state_dir: "),
        (
            "ranges: [10.1.0.0/28]\ncni_results_dir: x",
            "node.yaml:5: cni_results_dir: 'x' is no absolute path",
        ),
        (
            f"ranges: [10.1.0.0/28]\nrun_dir: /{'r' * 95}",
            "node.yaml:5: run_dir: is too long by 1 bytes",
        ),
        ("ranges: [10.1.0.0/28]\nreader_group: -1", "node.yaml:5: reader_group"),
        ("ranges: [10.1.0.0/28]\nreader_group: 4294967295", "node.yaml:5: reader_group"),
        ("ranges: [10.1.0.0/28]\nreader_group: true", "node.yaml:5: reader_group"),
        ("ranges: [10.1.0.0/28]\nreader_group: ''", "node.yaml:5: reader_group"),
        (
            "ranges: [10.1.0.0/28]\nranges: [10.2.0.0/28]",
            "node.yaml:5: ranges: given twice (first in line 4)",
        ),
        ("mtu: 1500", "node.yaml:1: ranges: is required and missing"),
        ("ranges: [10.1.0.0/28", "node.yaml:5: is not YAML"),
        ("site: 2026-13-01", "node.yaml: has a value that cannot be one: month must be in 1..12"),
        ('mtu: !!int ""', "node.yaml: has a value that cannot be one: string index out of range"),
        (f"mtu: 1{':00' * 200}.5", "node.yaml: has a value that cannot be one: int too large"),
    ],
)
def test_a_fault_is_named_with_line_and_key(body, message):
    assert message in refused(HEAD + body + "\n")


def test_an_uplink_cannot_have_a_name_that_the_rules_take_for_a_pods_link():
    said = refused(
        HEAD.replace("name: node-a", "name: node-a, uplink: nm-bond") + "ranges: [10.1.0.0/28]\n"
    )
    assert "node.yaml:3: node.uplink: nm-bond begins as pods' links do (nm)" in said


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
    document = parse(
        HEAD + "ranges: [203.0.113.0/28, '2001:db8::/120', 10.1.0.7]\n", "node.yaml", NodeDocument
    )
    assert document.families == (Family.V4, Family.V6)
    for text in (
        "203.0.113.0",
        "203.0.113.15",
        "2001:db8::",
        "10.1.0.7",
        "127.0.0.1",
        "169.254.169.254",
    ):
        assert any(prefix.holds(Address.parse(text)) for prefix in document.internal_prefixes), text
    assert not any(
        prefix.holds(Address.parse("203.0.113.16")) for prefix in document.internal_prefixes
    )


def test_special_use_prefixes_are_internal_whatever_the_document_says():
    document = parse(HEAD + "ranges: [10.1.0.0/28]\ninternal: []\n", "node.yaml", NodeDocument)
    assert all(
        any(outer.covers(inner) for outer in document.internal_prefixes) for inner in SPECIAL_USE
    )


def test_a_run_dir_may_be_as_long_as_its_sockets_allow():
    longest = "/" + "r" * 94
    document = parse(
        HEAD + f"ranges: [10.1.0.0/28]\nrun_dir: {longest}\n", "node.yaml", NodeDocument
    )
    assert len(str(document.run_dir / "ledger.sock")) == 107


def test_a_complement_of_the_special_use_prefixes_leaves_no_internet_either():
    everything = [Prefix.parse("0.0.0.0/0")]
    for special in (prefix for prefix in SPECIAL_USE if prefix.family is Family.V4):
        everything = [part for block in everything for part in without(block, special)]
    text = ", ".join(map(str, everything))
    assert "internal: makes everything of IPv4 internal with" in refused(
        HEAD + f"ranges: [10.1.0.0/28]\ninternal: [{text}]\n"
    )


def without(block: Prefix, hole: Prefix) -> list[Prefix]:
    if not block.overlaps(hole):
        return [block]
    if hole.covers(block):
        return []
    half = block.size // 2
    halves = (Prefix(block.family, block.value + offset, block.length + 1) for offset in (0, half))
    return [part for each in halves for part in without(each, hole)]


@pytest.mark.parametrize(
    ("ranges", "families"),
    [
        ("[10.1.0.7]", (Family.V4,)),
        ("['2001:db8::7']", (Family.V6,)),
        ("[10.1.0.0/28, '2001:db8::7']", (Family.V4, Family.V6)),
    ],
)
def test_no_range_is_too_small(ranges, families):
    assert parse(HEAD + f"ranges: {ranges}\n", "node.yaml", NodeDocument).families == families


def test_special_use_and_own_addresses_are_refused_and_not_taken_out():
    assert "holds the node's own address" in refused(HEAD + "ranges: [10.1.0.200]\n")
    assert "special-use" in refused(HEAD + "ranges: [10.1.0.0/28, 169.254.7.7]\n")


def test_text_that_yaml_cannot_have_is_one_line_with_the_file():
    (line,) = refused(HEAD + "site: \x07\n").splitlines()
    assert line.startswith("node.yaml: is not YAML: unacceptable character #x0007")
