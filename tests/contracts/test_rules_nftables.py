"""What holds on the nftables backend alone: nft can change a rule and leave its comment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import repeat

import pytest

from netmgr import programs
from netmgr.errors import KernelError, TryAgainLater
from netmgr.kernel import netns, nf_tables
from netmgr.kernel.netlink import Operation
from netmgr.kernel.nf_tables_socket import NftSocket
from netmgr.model import Counter, Sample, Traffic
from netmgr.prefixes import Address
from netmgr.rules import model, nft_listing
from netmgr.rules.engine import Rules
from netmgr.rules.nft_table import Fingerprints, Listing
from netmgr.rules.nftables import NftablesBackend
from netmgr.rules.policy import desired
from tests.contracts.conftest import put_right

pytestmark = pytest.mark.root

PODS = [Address.parse("10.1.0.5"), Address.parse("2001:db8:1::5")]

LINK, OTHER_LINK = "nm0123456789ab", "nmba9876543210"


@pytest.fixture
def rules(namespaces, policy) -> Iterator[Rules]:
    with netns.entered(namespaces("node").descriptor):
        made = Rules(NftablesBackend(), policy)
        try:
            made.apply(made.plan(PODS))
            yield made
        finally:
            made.close()


def replace_rule(program, hook: str, name: str, text: str) -> None:
    """Put other words in place of a rule's, under the comment it had."""
    (line,) = [
        line
        for line in program(f"nft -a list chain inet netmgr {hook}").splitlines()
        if name in line
    ]
    found = re.search(r'(comment ".*") # handle (\d+)', line)
    program("nft -f -", f"replace rule inet netmgr {hook} handle {found[2]} {text} {found[1]}\n")


@pytest.mark.parametrize("planned_before", [True, False])
def test_a_rule_that_was_altered_under_its_comment_is_found_and_put_right(
    rules, program, planned_before
):
    if planned_before:
        assert not rules.plan(PODS)
    replace_rule(program, "prerouting", "anti-spoofing v4", "ip saddr 198.51.100.77 drop")
    assert rules.check(PODS) == ["chain prerouting: rule 'anti-spoofing v4' was altered"]
    plan = put_right(rules, PODS)
    assert plan.repairs == ("chain prerouting: rule 'anti-spoofing v4' was altered",)
    assert plan.created == frozenset()
    assert "198.51.100.77" not in program("nft list table inet netmgr")


def test_an_altered_rule_stays_known_as_altered_while_another_chain_is_put_right(rules, program):
    replace_rule(program, "prerouting", "anti-spoofing v4", "ip saddr 203.0.113.1 drop")
    program("nft flush chain inet netmgr postrouting")
    assert {
        "chain prerouting: rule 'anti-spoofing v4' was altered",
        "chain postrouting: rule 'masquerade v4' was missing",
    } <= set(put_right(rules, PODS).repairs)


@pytest.mark.parametrize(
    "harm",
    [
        "flush chain {0}\ndelete chain {0}\n",
        "delete rule {0} handle {1}\n",
        "replace rule {0} handle {1} meta nfproto ipv6 accept {2}\n",
        "flush chain {0}6\n",
    ],
    ids=["base", "lead", "altered lead", "chain"],
)
def test_rules_of_ipv6_that_no_packet_meets_any_more_are_missing(rules, program, harm):
    made = program("nft -s list table inet netmgr")
    chain = "inet netmgr before_srcnat"
    listed = program(f"nft -a list chain {chain}")
    comment, handle = re.search(r'(comment "before_srcnat6 .*") # handle (\d+)', listed).groups()
    program("nft -f -", harm.format(chain, handle, comment))
    repairs = put_right(rules, PODS).repairs
    assert any("before_srcnat" in repair for repair in repairs)
    # A chain that was made anew is listed last.
    shown = program("nft -s list table inet netmgr")
    assert sorted(shown.splitlines()) == sorted(made.splitlines())


def test_a_table_that_was_put_to_sleep_is_woken_and_counts_on(rules, program):
    made = program("nft list table inet netmgr")
    program("nft add table inet netmgr { flags dormant ; }")
    plan = put_right(rules, PODS)
    assert plan.repairs == ("the table was dormant, so that nothing of it was in effect",)
    assert plan.created == frozenset()
    assert program("nft list table inet netmgr") == made


def test_only_a_plan_wakes_a_table_so_that_somebody_says_that_it_slept(rules, program):
    rules.mark(Address.parse("fd00::1"))
    rules.apply(rules.plan(PODS))
    program("nft add table inet netmgr { flags dormant ; }")
    asleep = rules.plan(PODS).repairs
    rules.mark(Address.parse("fd00::2"))
    rules.admit([Address.parse("10.1.0.6")])
    assert rules.plan([*PODS, Address.parse("10.1.0.6")]).repairs == asleep
    assert "flags dormant" in program("nft list table inet netmgr")


def test_a_chain_that_another_program_put_into_our_table_is_told_and_goes(rules, program):
    program(
        "nft -f -",
        "add chain inet netmgr other { type filter hook forward priority -400; policy drop; }\n",
    )
    assert put_right(rules, PODS).repairs == ("chain other does not belong there",)
    assert "other" not in program("nft list table inet netmgr")


def test_a_pods_link_is_known_from_its_admission_to_its_end(rules, program):
    rules.know(PODS, "research", LINK)
    rules.admit(PODS)
    for family, pod in ((4, PODS[0]), (6, PODS[1])):
        listed = program(f"nft list set inet netmgr senders{family}")
        assert f'"{LINK}" . {pod}' in listed
    assert not rules.plan(PODS)
    rules.expel(PODS)
    assert all(LINK not in program(f"nft list set inet netmgr senders{n}") for n in (4, 6))


def test_a_link_that_another_program_put_beside_an_address_or_took_away_is_named_and_repaired(
    rules, program
):
    rules.know(PODS, "research", LINK)
    rules.admit(PODS)
    forged = f'"{OTHER_LINK}" . {PODS[0]}'
    program("nft -f -", f"add element inet netmgr senders4 {{ {forged} }}\n")
    program("nft -f -", f'delete element inet netmgr senders6 {{ "{LINK}" . {PODS[1]} }}\n')
    plan = put_right(rules, PODS)
    assert plan.repairs == (
        f"set senders4: {OTHER_LINK} . {PODS[0]} does not belong there",
        f"set senders6: {LINK} . {PODS[1]} was missing",
    )
    assert plan.created == frozenset()
    assert OTHER_LINK not in program("nft list table inet netmgr")


class Refusing:
    """In place of libnftables."""

    def listing(self, command: str) -> list[object]:
        raise AssertionError(command)


def test_rules_are_listed_again_only_after_somebody_changed_some(rules, program, monkeypatch):
    rules.plan(PODS)
    with monkeypatch.context() as patched:
        patched.setattr(rules.backend._table, "_nft", Refusing())
        assert not rules.plan(PODS)
        for change in ("add table inet another", "flush chain inet netmgr before_srcnat"):
            program(f"nft {change}")
            with pytest.raises(AssertionError, match="list table inet netmgr"):
                rules.plan(PODS)
    assert any("before_srcnat" in what for what in rules.plan(PODS).repairs)


def test_larger_sets_of_an_earlier_release_stay_and_count_on(
    namespaces, policy, program, monkeypatch
):
    with netns.entered(namespaces("upgraded").descriptor):
        rules = Rules(NftablesBackend(), policy)
        monkeypatch.setattr(model, "SET_CAPACITY", 65_536)
        rules.apply(rules.plan(PODS))
        monkeypatch.undo()
        assert "size 65536" in program("nft list set inet netmgr pod_in4")
        assert not rules.plan(PODS)
        rules.close()


def test_elements_of_other_shapes_count_as_well(rules, program):
    """Another program's comment follows the counter, so that not all elements are of one size."""
    program(
        "nft -f -",
        "add element inet netmgr pod_in4 { 10.1.0.6 counter packets 7 bytes 700 comment "
        '"another program" }\n',
    )
    known = Sample(Counter.of_pod(PODS[0], Traffic.INTERNET_IN), 0, 0)
    added = Counter.of_pod(Address.parse("10.1.0.6"), Traffic.INTERNET_IN)
    assert {known, Sample(added, 700, 7)} <= {one._replace(life=0) for one in rules.read()}


@pytest.mark.usefixtures("rules")
def test_elements_that_do_not_count_are_left_out(program):
    """So many that the kernel's message is as long as one of 24 elements that count."""
    program("nft add set inet netmgr both { type ipv4_addr; flags dynamic; size 99; }")
    silent = [str(address(number)) for number in range(30)]
    counting = [f"{address(number)} counter packets 7 bytes 700" for number in range(30, 46)]
    program(f"nft add element inet netmgr both {{ {', '.join(silent + counting)} }}")
    with NftSocket() as socket:
        counted = [(address(number).packed, 7, 700) for number in range(30, 46)]
        assert sorted(socket.counts("netmgr", "both")) == counted
        assert socket.counts("netmgr", "no_such_set") == []


class Disturbed(NftSocket):
    """Other programs make these transactions while listings are under way."""

    def __init__(self, transactions: Iterator[list[Operation]]) -> None:
        super().__init__()
        self._transactions = transactions

    def _receive(self):
        with NftSocket() as other:
            other.commit(next(self._transactions, []))
        return super()._receive()


def address(number: int) -> Address:
    return Address(PODS[0].family, PODS[0].value + number)


@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_listing_that_a_transaction_interrupts_is_repeated(rules, times):
    rules.admit([address(number) for number in range(3000)])
    gone = ([address(number).packed] for number in range(times))
    removals = (list(nf_tables.delete_elements("netmgr", "pod_in4", keys)) for keys in gone)
    with Disturbed(removals) as socket:
        listed = [key for key, _, _ in socket.counts("netmgr", "pod_in4")]
    assert sorted(listed) == [address(number).packed for number in range(times, 3000)]


def test_a_listing_that_is_always_interrupted_is_given_up(rules):
    rules.admit([address(number) for number in range(3000)])
    change = [
        nf_tables.new_table("another"),
        nf_tables.new_chain("another", "chain"),
        nf_tables.add_rule("another", "chain", []),
    ]
    with Disturbed(repeat(change)) as socket, pytest.raises(TryAgainLater):
        socket.counts("netmgr", "pod_in4")


def test_bytes_that_are_no_text_in_anothers_comment_are_read(rules):
    harm = b'add rule inet netmgr before_srcnat accept comment "\xff\xfe"\n'
    nft = programs.locate("nft", "nftables")
    assert programs.run([nft, "-f", "-"], stdin=harm).returncode == 0
    assert rules.check(PODS)
    rules.apply(rules.plan(PODS))
    assert rules.check(PODS) == []


@pytest.mark.parametrize(
    "listing",
    [
        [{"rule": {"comment": "x"}}],
        [{"set": {"name": "internal4", "type": "ipv4_addr", "flags": ["interval"], "elem": [5]}}],
        [{"chain": 5}],
        [{"set": {"name": None}}],
        [{"rule": {"chain": "forward", "comment": 5, "expr": []}}],
        [5],
    ],
)
def test_a_shape_that_nft_has_not_shown_so_far_is_an_error_and_no_fault(policy, listing):
    def read():
        table = Listing.of(Fingerprints().compared(listing))
        return nft_listing.observed(table, desired(policy, PODS))

    with pytest.raises(KernelError, match="nft list table: shows an odd object"):
        read()
