"""A wrong node.yaml is refused with file, line, key and reason; a right one means what it says. The
list of nodes is read as it was written.
"""

from __future__ import annotations

import pytest

from netmgr.documents import node_list
from netmgr.documents.explain import explain
from netmgr.documents.loader import parse
from netmgr.documents.node import NodeDocument
from netmgr.documents.node_list import ListedNode
from netmgr.documents.special_use import SPECIAL_USE
from netmgr.errors import ConfigError
from netmgr.prefixes import Address, Family, Prefix
from netmgr.rules.model import Drop, Hook, Masquerade
from netmgr.rules.policy import Policy, desired

HEAD = "apiVersion: netmgr.io/v1alpha1\nkind: Node\nnode: {name: node-a, addresses: [10.1.0.200]}\n"
RANGES = "ranges: [10.1.0.0/28]\n"


def document(text: str) -> NodeDocument:
    return parse(HEAD + text + "\n", "node.yaml", NodeDocument)


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, "node.yaml", NodeDocument)
    return caught.value.message


def test_an_uplink_cannot_have_a_name_that_the_rules_take_for_a_pods_link() -> None:
    said = refused(HEAD.replace("name: node-a", "name: node-a, uplink: nm-bond") + RANGES)
    assert "node.yaml:3: node.uplink: nm-bond begins as pods' links do (nm)" in said


def test_every_fault_is_named_at_once() -> None:
    assert len(refused(HEAD + RANGES + "mtu: 60\nbackend: ebpf\n").splitlines()) == 2


@pytest.mark.parametrize("text", ["", "- a\n", "node\n"])
def test_a_document_that_is_no_mapping_is_refused(text: str) -> None:
    assert "must be a mapping" in refused(text)


def test_every_address_of_every_range_is_usable_and_internal() -> None:
    given = document("ranges: [203.0.113.0/28, '2001:db8::/120', 10.1.0.7]")

    def internal(text: str) -> bool:
        return any(prefix.holds(Address.parse(text)) for prefix in given.internal_prefixes)

    assert all(map(internal, ("203.0.113.0", "203.0.113.15", "2001:db8::", "10.1.0.7")))
    assert not internal("203.0.113.16")


def test_special_use_prefixes_are_internal_whatever_the_document_says() -> None:
    internal = document(RANGES + "internal: []").internal_prefixes
    assert all(any(outer.covers(inner) for outer in internal) for inner in SPECIAL_USE)


def test_native_prefixes_are_the_internal_ones_or_those_that_are_named_and_the_nodes_own() -> None:
    every = document(RANGES)
    assert every.native_prefixes == every.internal_prefixes
    few = document(RANGES + "native: [192.168.7.0/24]\nprotect: [10.0.0.53]")
    assert few.internal_prefixes == every.internal_prefixes, "they are counted as they were"
    for text, is_native in {
        "192.168.7.9": True,
        "192.168.8.9": False,
        "10.0.0.53": False,
        "10.1.0.3": True,
        "224.0.0.251": True,
    }.items():
        held = any(prefix.holds(Address.parse(text)) for prefix in few.native_prefixes)
        assert (text, held) == (text, is_native)


def test_a_run_dir_may_be_as_long_as_its_sockets_allow() -> None:
    run_dir = document(f"{RANGES}run_dir: /{'r' * 94}").run_dir
    assert len(str(run_dir / "ledger.sock")) == 107


def test_a_complement_of_the_special_use_prefixes_leaves_no_internet_either() -> None:
    everything = [Prefix.parse("0.0.0.0/0")]
    for special in (prefix for prefix in SPECIAL_USE if prefix.family is Family.V4):
        everything = [part for block in everything for part in without(block, special)]
    said = refused(f"{HEAD}{RANGES}internal: [{', '.join(map(str, everything))}]\n")
    assert "internal: makes everything of IPv4 internal with" in said


def without(block: Prefix, hole: Prefix) -> list[Prefix]:
    if not block.overlaps(hole):
        return [block]
    if hole.covers(block):
        return []
    half = block.size // 2
    halves = (Prefix(block.family, block.value + offset, block.length + 1) for offset in (0, half))
    return [part for piece in halves for part in without(piece, hole)]


@pytest.mark.parametrize(
    ("ranges", "families"),
    [
        ("[10.1.0.7]", (Family.V4,)),
        ("['2001:db8::7']", (Family.V6,)),
        ("[10.1.0.0/28, '2001:db8::7']", (Family.V4, Family.V6)),
    ],
)
def test_no_range_is_too_small(ranges: str, families: tuple[Family, ...]) -> None:
    assert document(f"ranges: {ranges}").families == families


@pytest.mark.parametrize("off", ["off", "false", "'off'"])
def test_an_observer_needs_no_ranges(off: str) -> None:
    observer = document(f"ranges: []\ncni: {off}")
    assert (observer.cni, observer.ranges) == (False, ())


def test_an_observers_rules_only_count() -> None:
    given = document("cni: off")
    told = (
        *(given.internal_prefixes, (), given.masquerade),
        *(given.accounting.node_rules, "x", given.accounting.exact_prefix),
    )
    observing, wiring = desired(Policy(*told, counts_only=True), ()), desired(Policy(*told), ())
    dropped = {rule for rule in wiring.rules() if isinstance(rule.action, Drop | Masquerade)}
    dropped |= set(wiring.chains[Hook.PREROUTING])
    assert dropped
    assert set(observing.rules()) == set(wiring.rules()) - dropped


def test_an_observer_never_says_that_it_masquerades() -> None:
    answer = explain(document("cni: off"), Address.parse("203.0.113.9"), [])
    assert (answer["counted"], answer["masqueraded"]) == (True, False)


NODES = (
    ListedNode(
        "a",
        (Address.parse("10.0.0.1"), Address.parse("fd00::1")),
        (Prefix.parse("10.244.0.0/24"), Prefix.parse("fd00:10::/64")),
    ),
    ListedNode("b", (), ()),
)


def test_a_list_is_read_as_it_was_written() -> None:
    assert node_list.parse(node_list.write(NODES)) == NODES
    assert node_list.parse(node_list.write(())) == ()


def test_a_node_takes_a_hundred_bytes() -> None:
    assert len(node_list.write(NODES * 250)) < 500 * 100


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("[]", "it is no list of nodes"),
        ('{"version":2,"nodes":[]}', "its version is 2"),
        ('{"version":1,"nodes":[["a",["10.0.0.1"]]]}', "it is no list of nodes"),
        ('{"version":1,"nodes":[["a",["10.0.0.1"],["10.0.0.1/24"]]]}', "10.0.0.1/24"),
        ('{"version":1,"nodes":[["a",[["10.0.0.1"]],[]]]}', "is not an IP address"),
        ('{"version":1,"nodes":[["a",["10.0.0.1"],[null]]]}', "is not an IP address"),
        ("[" * 100_000, "it is no list of nodes"),
    ],
)
def test_what_is_no_list_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        node_list.parse(text)
