"""The assembler of eBPF against encodings of RFC 9669, and what peers count as."""

from __future__ import annotations

import sys

import pytest

from netmgr.errors import SetupError
from netmgr.kernel.bpf_code import assembled
from netmgr.prefixes import Address, Family, Prefix
from netmgr.rules import link_programs
from netmgr.rules.at_links import AtLinks
from netmgr.rules.link_programs import CLUSTER, INSIDE, INTERNET
from tests.builders import prefixes

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
    "r2 = be32 r2": "dc02000020000000",
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


def test_a_jump_may_compare_lower_halves_which_have_no_sign() -> None:
    assert assembled("if w2 >= 0xe0000000 goto on; on: exit", {}).hex() == (
        "36020000000000e0" + ENCODINGS["exit"]
    )


def test_a_label_that_is_not_there_is_refused() -> None:
    with pytest.raises(KeyError, match="nowhere"):
        assembled("goto nowhere", {})


def shown(at_links: AtLinks, numbers: dict[str, int]) -> list[tuple[str, int]]:
    return [
        (str(Address(family, start)), peer)
        for family, listed in link_programs.peers(at_links, numbers).items()
        for start, peer in listed
    ]


FIRST, FIRST_V6 = ((str(Address(family, 0)), INTERNET) for family in Family)


def test_the_longest_prefix_decides_on_class_and_cluster_by_itself() -> None:
    known, near, cluster = prefixes("10.0.0.0/8"), prefixes("10.1.0.0/16"), prefixes("10.1.2.0/24")
    at_links = AtLinks(known, (("near", near),), cluster)
    assert shown(at_links, {"internal": 2, "near": 3}) == [
        FIRST,
        ("10.0.0.0", 2),
        ("10.1.0.0", 3),
        ("10.1.2.0", 3 | CLUSTER),
        ("10.1.3.0", 3),
        ("10.2.0.0", 2),
        ("11.0.0.0", INTERNET),
        FIRST_V6,
    ]


def test_without_classes_nobody_counts_what_is_internal() -> None:
    known = prefixes("10.0.0.0/9", "10.128.0.0/9", "240.0.0.0/4", "fe00::/7")
    assert shown(AtLinks(known), {}) == [
        FIRST,
        ("10.0.0.0", INSIDE),
        ("11.0.0.0", INTERNET),
        ("240.0.0.0", INSIDE),
        FIRST_V6,
        ("fe00::", INSIDE),
    ]


def test_a_class_may_have_prefixes_of_the_internet_and_a_cluster_too() -> None:
    at_links = AtLinks((), (("far", prefixes("203.0.113.0/24")),), prefixes("198.51.100.0/24"))
    assert shown(at_links, {"internal": 2, "far": 3}) == [
        FIRST,
        ("198.51.100.0", INTERNET | CLUSTER),
        ("198.51.101.0", INTERNET),
        ("203.0.113.0", 3),
        ("203.0.114.0", INTERNET),
        FIRST_V6,
    ]


def test_more_prefixes_than_a_jump_passes_are_refused() -> None:
    many = tuple(Prefix(Family.V6, 0x2001 << 112 | 2 * number, 128) for number in range(5000))
    written = link_programs.texts(link_programs.peers(AtLinks(many), {}))
    with pytest.raises(SetupError, match="too many prefixes"):
        assembled(written[link_programs.ENTERING], {})
