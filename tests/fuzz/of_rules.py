"""What other programs may make of our own tables: nft's listing, and the elements of Services."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from unittest.mock import patch

from netmgr.documents.accounting import NodeRules
from netmgr.documents.node import Backend
from netmgr.documents.special_use import SPECIAL_USE
from netmgr.errors import KernelError
from netmgr.kernel.nf_tables import goto, plain
from netmgr.kernel.xtables import saved
from netmgr.kernel.xtables.saved import SavedTable
from netmgr.prefixes import Address, Family, Prefix, merge
from netmgr.rules import iptables_chains, nft_listing, tagged
from netmgr.rules.diff import diff
from netmgr.rules.iptables import IptablesBackend
from netmgr.rules.iptables_chains import HookRules
from netmgr.rules.model import Abilities, Ruleset
from netmgr.rules.policy import Policy, desired
from netmgr.services import nft_diff, nftables
from netmgr.services.model import Endpoint, Frontend, Protocol, ServicePort
from netmgr.services.nft_layout import sets
from netmgr.services.nftables import Listing
from tests.fuzz.mutation import Shape
from tests.fuzz.target import target

NFT = """
nftables set chain rule counter table flowtable map name family handle type hook prio policy
accept drop flags interval dormant size elem val prefix addr len range concat comment expr
dynamic timeout pod_in4 internal4 senders4 forward
"""
SAVED = """
*mangle *raw COMMIT :INPUT ACCEPT [0:0] :FORWARD :NETMGR-FORWARD :NETMGR-RULE-INPUT-0123abcd -
[3:40] -A INPUT FORWARD NETMGR-FORWARD -s -d 10.0.0.0/8 ! -m set --match-set netmgr-internal4 src
comment --comment
"iptables-exporter netmgr traffic=internet-in" "netmgr unattributed internet-in v4" -j -g RETURN
# Table `mangle' is incompatible, use 'nft' tool.
"""
RANGES = (Prefix.parse("10.1.0.0/28"), Prefix.parse("2001:db8:1::/112"))
PODS = [Address.parse("10.1.0.5"), Address.parse("10.1.0.6"), Address.parse("2001:db8:1::5")]


@functools.cache
def _desired() -> Ruleset:
    return desired(_policy(), PODS, Abilities())


@functools.cache
def _of_iptables() -> Ruleset:
    return desired(_policy(), PODS, IptablesBackend.abilities)


def _policy() -> Policy:
    return Policy(
        internal=tuple(merge((*SPECIAL_USE, Prefix.parse("10.0.0.0/8"), *RANGES))),
        ranges=RANGES,
        masquerade=True,
        node_rules=NodeRules.CORRECTED,
        rule_owner="netmgr",
        exact_prefix=Prefix.parse("10.0.0.0/8"),
    )


@target(Shape.JSON, rounds=500, longest=16384, tokens=NFT)
def nft_table(data: bytes) -> None:
    """Whatever nft lists of the table is a `KernelError`, or can be repaired by one transaction."""
    try:
        listed = json.loads(data)["nftables"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return
    fingerprints = nft_listing.Fingerprints()
    try:
        observed = nft_listing.observed(listed, _desired(), fingerprints)
    except KernelError:
        return
    plan = diff(_desired(), observed)
    assert plan.operations or not observed.malformed
    # What it shows twice alike is no drift.
    assert nft_listing.observed(listed, _desired(), fingerprints) == observed


@target(Shape.TEXT, rounds=2000, longest=16384, tokens=SAVED)
def saved_tables(data: bytes) -> None:
    """What iptables-save prints is a `KernelError`, or every line of it is a chain or a rule, and
    ours can be repaired by one script.
    """
    text = data.decode("utf-8", errors="replace")
    try:
        tables, _ = saved.parse(text)
        rules = {name: list(map(table.rules, table.lines)) for name, table in tables.items()}
        edits = [edit for name, table in tables.items() for edit in _edits(name, table)]
        edits += iptables_chains.removal(tables).splitlines()
    except KernelError:
        return
    count = sum(len(listed) for chains in rules.values() for listed in chains)
    assert count == sum(" -A " in line and line[0] not in "#*:" for line in text.split("\n"))
    assert all("\n" not in edit for edit in edits)
    _tagged(tables)


def _edits(name: str, table: SavedTable) -> Iterator[str]:
    for hook, of_table in iptables_chains.TABLES.items():
        if of_table == name:
            there = HookRules(table, hook, _of_iptables().chains.get(hook, ()), Family.V4)
            list(there.observed())
            yield from there.edits()


def _tagged(tables: Mapping[str, SavedTable]) -> None:
    places = [
        (tagged.Place(Backend.IPTABLES_LEGACY, Family.V4, name, chain), table)
        for name, table in tables.items()
        for chain in table.lines
    ]
    with patch.object(tagged, "_places", lambda: places):
        found = tagged.read(lambda _place, _table: ())
    assert len(found.chains) <= tagged.MOST_CHAINS
    assert len(found.packets) == len(found.bytes) <= tagged.MOST_RULES


WANTED = {
    ServicePort(Address.parse("100.64.1.1"), Protocol.TCP, 80): Frontend(
        frozenset(
            {Endpoint(Address.parse("10.1.0.9"), 80), Endpoint(Address.parse("10.1.0.8"), 81)}
        )
    ),
    ServicePort(Address.parse("fd00:64::1"), Protocol.SCTP, 81): Frontend(
        frozenset({Endpoint(Address.parse("fd00::9"), 80)}), sticky=False
    ),
}
_SETS = tuple(sets())


@target(Shape.BYTES, rounds=1000, longest=600)
def services_table(data: bytes) -> None:
    """Whatever others put into Services' sets, the difference makes them what is wanted."""
    listed = _listing(data)
    state = nftables._state_of(listed)
    wanted = {vip: nft_diff.placed(one, state.get(vip)) for vip, one in WANTED.items()}
    delta = nft_diff.against(listed.elements, wanted)
    assert all(delta.repairs()) or delta.is_empty
    held = {name: dict(elements) for name, elements in listed.elements.items()}
    for name, keys in delta.deleted.items():
        for key in keys:
            del held[name][key]
    for name, pairs in delta.added.items():
        for key, value in pairs:
            assert key not in held[name]
            held[name][key] = value
    assert nft_diff.against(held, wanted).is_empty
    assert nftables._state_of(Listing(1, frozenset(), {}, held)) == wanted
    for name in data.decode(errors="replace").split("\n"):
        chain = nftables._translating(name)
        assert chain is None or chain.name == name


def _listing(data: bytes) -> Listing:
    """Elements of the sizes that the kernel insists on: a byte for the set, key and data."""
    elements: dict[str, nft_diff.Elements] = {spec.name: {} for spec in _SETS}
    for name, key, value in _records(data):
        elements[name][key] = value
    return Listing(1, frozenset(), {}, elements)


def _records(data: bytes) -> Iterator[tuple[str, bytes, bytes]]:
    while data:
        spec = _SETS[data[0] % len(_SETS)]
        is_verdict = spec.data_type is not None and not spec.data_length
        size = 8 if is_verdict else spec.data_length
        key, value = (
            data[1 : 1 + spec.key_length],
            data[1 + spec.key_length :][:size].ljust(size, b"\0"),
        )
        data = data[1 + spec.key_length + size :]
        if is_verdict:
            value = goto(value.decode("latin-1").rstrip("\0"))
        elif size:
            value = plain(value)
        yield spec.name, key.ljust(spec.key_length, b"\0"), value
