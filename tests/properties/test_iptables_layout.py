"""The chains of iptables do with every packet what the hook's rules do, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from netmgr.prefixes import Address, Family, Prefix
from netmgr.rules.iptables_layout import Line, chain_name, chains, fits_one_entry
from netmgr.rules.model import Continue, Hook, InPrefix, Match, OnLink, Return, Rule, Side

Packet = dict[Side, tuple[str, Address]]
"""For each direction the link and the address."""
SIDES = st.sampled_from(Side)
PREFIXES = st.builds(
    lambda value, length: Prefix(Family.V4, value << 28 & (1 << 32) - (1 << 32 - length), length),
    st.integers(0, 15),
    st.integers(1, 4),
)
HEADS = st.lists(st.builds(InPrefix, SIDES, PREFIXES, negated=st.just(value=True)), max_size=4).map(
    lambda found: tuple(dict.fromkeys(found))
)
LINKS = st.lists(st.builds(OnLink, SIDES, st.just("nm*"), st.booleans()), max_size=1).map(tuple)
TAILS = st.lists(st.builds(InPrefix, SIDES, PREFIXES), max_size=1).map(tuple)
PACKETS = st.fixed_dictionaries(
    {
        side: st.tuples(
            st.sampled_from(["nm1", "eth0"]),
            st.integers(0, 15).map(lambda value: Address(Family.V4, value << 28)),
        )
        for side in Side
    }
)


@st.composite
def rulesets(draw: st.DrawFn) -> list[Rule]:
    heads = draw(st.lists(st.tuples(LINKS, HEADS), min_size=1, max_size=3))
    drawn = draw(
        st.lists(st.tuples(st.sampled_from(heads), TAILS, st.sampled_from([Return(), Continue()])))
    )
    return [
        Rule(f"rule {number}", Family.V4, (*links, *head, *tail), action)
        for number, ((links, head), tail, action) in enumerate(drawn)
    ]


def is_met(match: Match, packet: Packet) -> bool:
    if isinstance(match, OnLink):
        return packet[match.side][0].startswith("nm") != match.negated
    assert isinstance(match, InPrefix)
    return match.prefix.holds(packet[match.side][1]) != match.negated


def meets(rule: Rule, packet: Packet) -> bool:
    return all(is_met(match, packet) for match in rule.matches)


def met_in_order(rules: Sequence[Rule], packet: Packet) -> list[str]:
    found = []
    for rule in rules:
        if meets(rule, packet):
            found.append(rule.id)
            if isinstance(rule.action, Return):
                break
    return found


def met_in_chains(
    made: Mapping[str, Sequence[Line]], packet: Packet, at: str = chain_name(Hook.FORWARD)
) -> list[str]:
    found: list[str] = []
    for line in made.get(at, ()):
        if meets(line.rule, packet):
            if line.to:
                found += met_in_chains(made, packet, line.to)
            elif not line.is_helper:
                found.append(line.rule.id)
            if line.is_goto if line.to else isinstance(line.rule.action, Return):
                break
    return found


@given(rulesets(), PACKETS)
def test_a_packet_meets_the_same_rules_in_the_chains(rules, packet):
    assert met_in_chains(chains(Hook.FORWARD, rules), packet) == met_in_order(rules, packet)


@given(rulesets())
def test_every_line_is_one_entry_and_no_two_have_one_comment(rules):
    lines = [line for one in chains(Hook.FORWARD, rules).values() for line in one]
    assert all(fits_one_entry(line.rule) for line in lines)
    assert len({line.rule.id for line in lines}) == len(lines)
    kept = [line.rule.id for line in lines if not line.is_helper]
    assert sorted(kept) == sorted(rule.id for rule in rules)


def test_neighbours_that_leave_out_the_same_prefixes_share_one_decision():
    head = tuple(
        InPrefix(Side.SOURCE, Prefix.parse(text), negated=True)
        for text in ("10.0.0.0/8", "192.168.0.0/16")
    )
    rules = [Rule(f"rule {number}", Family.V4, head, Continue()) for number in range(3)]
    made = chains(Hook.FORWARD, rules)
    assert list(made) == ["NETMGR-FORWARD", "NETMGR-FORWARD-2"]
    assert sum(map(len, made.values())) == 1 + len(head) + len(rules)
