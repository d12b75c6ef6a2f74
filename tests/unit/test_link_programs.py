"""The assembler of eBPF against encodings of RFC 9669, and what peers count as."""

from __future__ import annotations

import sys

import pytest

from netmgr.kernel.bpf_code import assembled
from netmgr.prefixes import Prefix
from netmgr.rules import link_programs
from netmgr.rules.at_links import AtLinks

# Code, registers, offset and number of each (RFC 9669, section 3).
ENCODINGS = {
    "r6 = r1": "bf16000000000000",
    "r0 = -1": "b7000000ffffffff",
    "r2 = *(u32 *)(r6 + 36)": "6162240000000000",
    "*(u32 *)(r10 - 20) = 128": "620aecff80000000",
    "*(u16 *)(r10 - 28) = r8": "6b8ae4ff00000000",
    "lock *(u64 *)(r0 + 8) += r9": "db90080000000000",
    "r3 <<= 6": "6703000006000000",
    "r1 += r3": "0f31000000000000",
    "call 68": "8500000044000000",
    "exit": "9500000000000000",
}


@pytest.mark.skipif(sys.byteorder != "little", reason="the encodings are of little-endian machines")
@pytest.mark.parametrize("statement", ENCODINGS)
def test_a_statement_is_encoded_as_the_kernel_takes_it(statement: str) -> None:
    assert assembled(statement, {}).hex() == ENCODINGS[statement]


def test_a_jump_leads_behind_the_address_of_a_map_which_takes_two() -> None:
    text = "if r1 == 0 goto pass; r1 = map pods; pass: exit  # and no more"
    encoded = assembled(text, {"pods": 7})
    assert encoded.hex() == "150102000000000018110000070000000000000000000000" + (ENCODINGS["exit"])


@pytest.mark.parametrize("text", ["r1 = r2 r3", "move r1, r2", "*(u8 *)(r1) = 1"])
def test_what_is_no_statement_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no statement of eBPF"):
        assembled(text, {})


def test_a_label_that_is_not_there_is_refused() -> None:
    with pytest.raises(KeyError, match="nowhere"):
        assembled("goto nowhere", {})


def prefixes(*texts: str) -> tuple[Prefix, ...]:
    return tuple(map(Prefix.parse, texts))


def shown(at_links: AtLinks, numbers: dict[str, int]) -> list[int]:
    return [
        int.from_bytes(peer, sys.byteorder)
        for peer in (link_programs.peers(at_links, numbers).values())
    ]


def test_the_longest_prefix_decides_on_class_and_cluster_by_itself() -> None:
    known, near, cluster = prefixes("10.0.0.0/8"), prefixes("10.1.0.0/16"), prefixes("10.1.2.0/24")
    at_links = AtLinks(known, (("near", near),), cluster)
    numbers = {"internal": 2, "near": 3}
    assert sorted(shown(at_links, numbers)) == [2, 3, 3 | link_programs.CLUSTER]


def test_without_classes_nobody_counts_what_is_internal() -> None:
    inside = [link_programs.INSIDE] * 2
    assert shown(AtLinks(prefixes("10.0.0.0/8", "fd00::/8")), {}) == inside


def test_a_class_may_have_prefixes_of_the_internet_and_a_cluster_too() -> None:
    at_links = AtLinks((), (("far", prefixes("203.0.113.0/24")),), prefixes("198.51.100.0/24"))
    numbers = {"internal": 2, "far": 3}
    assert sorted(shown(at_links, numbers)) == [3, link_programs.INTERNET | link_programs.CLUSTER]
