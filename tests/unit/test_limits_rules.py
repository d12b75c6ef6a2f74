"""The nft commands that lead limited pods' packets to their classes, and what a table has."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from netmgr.limits import rules
from netmgr.limits.rules import KnownPeers, LinkChain, QuotaObject
from netmgr.model import Traffic
from netmgr.rules import nft_chains
from netmgr.rules.nft_table import Listing
from tests.builders import prefixes

OUT, IN = Traffic.INTERNET_OUT, Traffic.INTERNET_IN


PEERS = KnownPeers(
    prefixes("10.0.0.0/8", "172.16.0.0/12", "fc00::/7"),
    {"hub": prefixes("10.9.0.0/16", "10.8.0.0/16", "fd09::/32"), "lab": prefixes("10.7.0.0/16")},
)
LIMITED = LinkChain("nm1", 7, OUT, 0x2A)
ALL = LinkChain("nm2", 8, IN, 0x2B, rest=0x2C, classes=(("hub-in", 0x2D), ("lab-in", 0x2E)))
CHARGED = LinkChain("nm3", 9, OUT, 0x2F, quotas=(("month", 0), ("day", 0x30)))
OTHER = LinkChain("nm5", 11, IN, 0x32)
CHARGED_ONLY = LinkChain("nm4", 10, IN, 0, quotas=(("day", 0x31), ("month", 0x30), ("other", 0)))


def commands(text: str) -> list[str]:
    """Without the table's name, comments, and flushing what is filled a moment later."""
    assert text == "" or text.endswith("\n")
    lines = [line.replace("netdev netmgr ", "") for line in text.splitlines()]
    made = {line.split()[2] for line in lines if line.startswith("add chain ")}
    return [
        line.partition(" comment ")[0]
        for line in lines
        if line not in {f"flush chain {name}" for name in made}
    ]


def base(chain: LinkChain, hook: str) -> str:
    return (
        f"add chain {chain.name} {{ type filter hook {hook} "
        f'device "{chain.link}" priority -10; policy accept; }}'
    )


def test_a_rate_for_the_internet_leads_internet_packets_of_both_families_to_its_class() -> None:
    forward = 'meta priority set 1:2a fwd to "netmgr-out"'
    assert commands(rules.whole([LIMITED], PEERS)) == [
        "add table netdev netmgr",
        "flush table netdev netmgr",
        base(LIMITED, "ingress"),
        f"add rule internet_out_nm1 ip daddr != 10.0.0.0/8 ip daddr != 172.16.0.0/12 {forward}",
        f"add rule internet_out_nm1 ip6 daddr != fc00::/7 {forward}",
    ]


def test_classes_go_before_the_internet_and_the_rest_behind_it() -> None:
    def to(number: str) -> str:
        return f'meta priority set 1:{number} fwd to "netmgr-in"'

    assert commands(rules.changed([ALL], [], PEERS)) == [
        base(ALL, "egress"),
        f"add rule internet_in_nm2 ip saddr {{ 10.9.0.0/16, 10.8.0.0/16 }} {to('2d')}",
        f"add rule internet_in_nm2 ip6 saddr {{ fd09::/32 }} {to('2d')}",
        f"add rule internet_in_nm2 ip saddr {{ 10.7.0.0/16 }} {to('2e')}",
        f"add rule internet_in_nm2 ip saddr != 10.0.0.0/8 ip saddr != 172.16.0.0/12 {to('2b')}",
        f"add rule internet_in_nm2 ip6 saddr != fc00::/7 {to('2b')}",
        f"add rule internet_in_nm2 meta protocol ip {to('2c')}",
        f"add rule internet_in_nm2 meta protocol ip6 {to('2c')}",
    ]


def test_without_a_rate_for_the_internet_it_is_in_the_rest() -> None:
    only_rest = LIMITED._replace(number=0, rest=0x2C)
    assert commands(rules.changed([only_rest], [], PEERS))[1:] == [
        'add rule internet_out_nm1 meta protocol ip meta priority set 1:2c fwd to "netmgr-out"',
        'add rule internet_out_nm1 meta protocol ip6 meta priority set 1:2c fwd to "netmgr-out"',
    ]


def test_quotas_have_a_chain_of_their_own_that_internet_packets_meet_first() -> None:
    outside = "ip daddr != 10.0.0.0/8 ip daddr != 172.16.0.0/12"
    assert commands(rules.changed([CHARGED], [], PEERS)) == [
        "add chain charge_internet_out_nm3",
        "add rule charge_internet_out_nm3 meta priority set 1:2f",
        'add rule charge_internet_out_nm3 quota name "month" drop',
        'add rule charge_internet_out_nm3 quota name "day" meta priority set 1:30',
        'add rule charge_internet_out_nm3 fwd to "netmgr-out"',
        base(CHARGED, "ingress"),
        f"add rule internet_out_nm3 {outside} goto charge_internet_out_nm3",
        "add rule internet_out_nm3 ip6 daddr != fc00::/7 goto charge_internet_out_nm3",
    ]
    outside = "ip saddr != 10.0.0.0/8 ip saddr != 172.16.0.0/12"
    assert commands(rules.changed([CHARGED_ONLY], [], PEERS)) == [
        "add chain charge_internet_in_nm4",
        'add rule charge_internet_in_nm4 quota name "day" meta priority set 1:31',
        'add rule charge_internet_in_nm4 quota name "month" meta priority set 1:30',
        'add rule charge_internet_in_nm4 quota name "other" drop',
        'add rule charge_internet_in_nm4 meta priority 1:30 fwd to "netmgr-in"',
        'add rule charge_internet_in_nm4 meta priority 1:31 fwd to "netmgr-in"',
        base(CHARGED_ONLY, "egress"),
        f"add rule internet_in_nm4 {outside} goto charge_internet_in_nm4",
        "add rule internet_in_nm4 ip6 saddr != fc00::/7 goto charge_internet_in_nm4",
    ]


@pytest.mark.parametrize(("count", "is_set"), [(16, False), (17, True)])
def test_many_prefixes_of_a_family_are_a_set(count: int, *, is_set: bool) -> None:
    many = [f"10.{each}.0.0/17" for each in range(count)]
    many6 = [f"fd00:{each + 1}::/32" for each in range(count)]
    text = commands(rules.whole([LIMITED], KnownPeers(prefixes(*many, *many6))))
    made = (("internal4", "ipv4_addr", many), ("internal6", "ipv6_addr", many6))
    sets = [
        f"add set {name} {{ type {kind}; flags interval; elements = {{ {', '.join(each)} }}; }}"
        for name, kind, each in made
    ]
    assert [line for line in text if line.startswith("add set")] == (sets if is_set else [])
    assert ("ip daddr != @internal4 " in "\n".join(text)) is is_set
    assert ("ip6 daddr != @internal6 " in "\n".join(text)) is is_set


def test_what_is_not_kept_is_removed_before_anything_is_made() -> None:
    present = [("chain", "internet_out_nm9"), ("set", "internal4"), ("quota", "old")]
    quotas = {"day": QuotaObject(900, 5), "month": QuotaObject(9000, 0)}
    assert commands(rules.whole([], PEERS, present, quotas))[2:] == [
        # It may have gone with its link.
        "add chain internet_out_nm9",
        "delete chain internet_out_nm9",
        "delete set internal4",
        "delete quota old",
        "add quota day { over 900 bytes used 5 bytes }",
        "add quota month { over 9000 bytes used 0 bytes }",
    ]
    assert commands(rules.whole([], PEERS))[2:] == []


def test_a_change_removes_chains_and_then_quotas_before_it_makes_others() -> None:
    quotas = {"day": QuotaObject(900, 0)}
    text = commands(rules.changed([LIMITED], [CHARGED], PEERS, quotas, ["old", "older"]))
    assert text[:8] == [
        "flush chain internet_out_nm3",
        "flush chain charge_internet_out_nm3",
        "delete chain internet_out_nm3",
        "delete chain charge_internet_out_nm3",
        "delete quota old",
        "delete quota older",
        "add quota day { over 900 bytes used 0 bytes }",
        base(LIMITED, "ingress"),
    ]
    assert rules.changed([], [], PEERS) == ""
    assert commands(rules.changed([], [LIMITED, ALL], PEERS)) == [
        "flush chain internet_out_nm1",
        "delete chain internet_out_nm1",
        "flush chain internet_in_nm2",
        "delete chain internet_in_nm2",
    ]


def test_bounds_are_set_and_counts_are_reset_by_name() -> None:
    assert commands(rules.bounds({"day": 900, "month": 7})) == [
        "add quota day { over 900 bytes used 0 bytes }",
        "add quota month { over 7 bytes used 0 bytes }",
    ]
    assert commands(rules.resets(["day", "month"])) == ["reset quota day", "reset quota month"]
    names = {"internet_out_nm1", "internet_out_nm3", "charge_internet_out_nm3"}
    assert rules.names([LIMITED, CHARGED]) == names


def listed(*chains: LinkChain, peers: KnownPeers = PEERS) -> Listing:
    """What a table has after these chains were made."""
    listing = Listing()
    for chain in chains:
        for name, texts in rules.contents(chain, peers).items():
            base = rules.bases(chain).get(name)
            shape = {"type": base.kind, "hook": base.hook, "prio": base.priority} if base else {}
            more = {"policy": "accept", "dev": base.device} if base else {}
            listing.take("chain", {"name": name, **shape, **more})
            for comment in nft_chains.marks(name, texts):
                listing.take("rule", {"chain": name, "comment": comment})
    for name, known in rules.sets(peers).items():
        members = [
            {"prefix": {"addr": str(prefix.network), "len": prefix.length}} for prefix in known
        ]
        listing.take("set", {"name": name, "elem": members})
    return listing


@pytest.mark.parametrize("chain", [LIMITED, ALL, CHARGED, CHARGED_ONLY], ids=lambda each: each.link)
def test_what_was_made_is_held_until_somebody_alters_it(chain: LinkChain) -> None:
    def held(listing: Listing, gone: Collection[str] = ()) -> bool:
        return rules.holds(listing, [chain], gone, PEERS)

    assert held(listed(chain))
    assert not held(Listing())
    for name, comments in listed(chain).comments.items():
        for number in range(len(comments)):
            for altered in ([], ["x"], [comments[number]] * 2):
                listing = listed(chain)
                listing.comments[name][number : number + 1] = altered
                assert not held(listing), (name, number, altered)
    for key, value in (("policy", "drop"), ("prio", 0), ("hook", "prerouting"), ("dev", "lo")):
        listing = listed(chain)
        listing.chains[chain.name] = {**listing.chains[chain.name], key: value}
        assert not held(listing), key
    # Others' chains do not belong there, but for those of a link that goes.
    both = listed(chain, LIMITED._replace(link="nm9"))
    assert not held(both)
    assert held(both, {"internet_out_nm9"})
    both = listed(chain, OTHER)
    assert rules.holds(both, [chain, OTHER], (), PEERS)
    both.chains[chain.name] = {**both.chains[chain.name], "policy": "drop"}
    assert not rules.holds(both, [chain, OTHER], (), PEERS)


def test_the_set_of_what_is_not_internet_is_compared() -> None:
    many = KnownPeers(prefixes(*(f"10.{number}.0.0/17" for number in range(17))))
    listing = listed(LIMITED, peers=many)
    assert rules.holds(listing, [LIMITED], (), many)
    listing.sets["internal4"] = {"name": "internal4", "elem": ["10.0.0.0"]}
    assert not rules.holds(listing, [LIMITED], (), many)
    listing.sets.clear()
    assert not rules.holds(listing, [LIMITED], (), many)


def test_a_quota_is_over_at_its_bound() -> None:
    assert not QuotaObject(900, 899).is_over
    assert QuotaObject(900, 900).is_over
