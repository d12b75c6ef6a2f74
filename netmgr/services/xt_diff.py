"""What our chains in a legacy table should hold, what they hold, and the way from one to the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from netmgr.prefixes import Family, Prefix
from netmgr.rules import xt_entries
from netmgr.rules.legacy_tables import LegacyTable
from netmgr.rules.xt_entries import encode_jump
from netmgr.rules.xt_listing import Rule, Table
from netmgr.services import xt_rules
from netmgr.services.model import Frontend, ServicePort
from netmgr.services.xt_rules import BUCKET_PREFIX, ENTRY_OF, JUMPED_FROM, REFUSED, SERVICE_PREFIX, SERVICES

_OURS = {"nat": (SERVICES, BUCKET_PREFIX, SERVICE_PREFIX), "filter": (REFUSED,)}
_MOST_SENTENCES = 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """The chains of one table and what is in them; without chains, no jumps either."""

    name: str
    chains: Mapping[str, Sequence[bytes]]
    services: Mapping[str, ServicePort] = field(default_factory=dict)
    """Whose chain it is, for people to read."""

    @classmethod
    def nothing(cls, name: str) -> Wanted:
        """A table without us."""
        return cls(name, {})

    @classmethod
    def of(cls, name: str, services: Mapping[ServicePort, Frontend], ranges: Iterable[Prefix]) -> Wanted:
        """A table that translates, or that refuses what was not translated."""
        if name == "filter":
            return cls(name, {REFUSED: [rule for prefix in ranges for rule in xt_rules.refusals(prefix)]})
        chains: dict[str, list[bytes]] = {SERVICES: []}
        for seen, frontend in services.items():
            bucket = xt_rules.bucket(seen.address)
            chain = xt_rules.bucket_chain(bucket)
            if chain not in chains:
                chains[chain] = []
                chains[SERVICES].append(xt_rules.to_bucket(bucket))
            chains[chain].append(xt_rules.to_service(seen))
            chains[xt_rules.service_chain(seen)] = xt_rules.endpoint_rules(seen, frontend)
        return cls(name, chains, {xt_rules.service_chain(seen): seen for seen in services})

    def told(self, chain: str) -> str:
        """A chain as a person is told of it."""
        return f"chain {chain}" + (f" of {self.services[chain]}" if chain in self.services else "")


def changes(
    state: Mapping[ServicePort, Frontend], wanted: Mapping[ServicePort, Frontend]
) -> dict[ServicePort, Frontend | None]:
    """What of `wanted` is not so in `state`."""
    found: dict[ServicePort, Frontend | None] = {
        seen: frontend for seen, frontend in wanted.items() if state.get(seen) != frontend
    }
    return found | dict.fromkeys(state.keys() - wanted.keys())


def apply(table: LegacyTable, changed: Mapping[ServicePort, Frontend | None]) -> None:
    """Fill, make or take away the chains of some ServicePorts; other chains only lead there."""
    for seen, frontend in changed.items():
        chain, bucket = xt_rules.service_chain(seen), xt_rules.bucket(seen.address)
        if frontend is None:
            _close(table, seen)
            continue
        is_new = not table.has_chain(chain)
        if is_new:
            table.create_chain(chain)
        _fill(table, chain, xt_rules.endpoint_rules(seen, frontend))
        if is_new:
            if not table.has_chain(bucket_name := xt_rules.bucket_chain(bucket)):
                table.create_chain(bucket_name)
                table.append(SERVICES, xt_rules.to_bucket(bucket))
            table.append(bucket_name, xt_rules.to_service(seen))


def _close(table: LegacyTable, seen: ServicePort) -> None:
    chain, bucket = xt_rules.service_chain(seen), xt_rules.bucket_chain(xt_rules.bucket(seen.address))
    if not table.has_chain(chain):
        return
    _leave(table, bucket, chain)
    if not table.entries(bucket):
        _leave(table, SERVICES, bucket)


def _leave(table: LegacyTable, above: str, chain: str) -> None:
    """Delete a chain, and before it the rule that leads to it."""
    for entry in table.entries(above):
        if entry.target == chain:
            table.delete(above, entry)
    table.flush_chain(chain)
    table.delete_chain(chain)


def converge(table: LegacyTable, listed: Table, wanted: Wanted) -> list[str]:
    """Bring our chains and the jumps to what they should be; says what was not so."""
    present = listed.chains(*_OURS[wanted.name])
    builtin = {name: present.pop(name) for name in list(present) if not name.startswith(_OURS[wanted.name])}
    sentences: list[str] = []
    for chain in wanted.chains.keys() - present.keys():
        sentences.append(f"{wanted.told(chain)} was missing")
        table.create_chain(chain)
    for chain, rules in wanted.chains.items():
        held = present.get(chain, [])
        if sorted(rule.raw for rule in held) == sorted(rules) and (_is_unordered(chain) or _raws(held) == list(rules)):
            continue
        if chain in present:
            sentences.append(f"{wanted.told(chain)} was altered")
        _fill(table, chain, [_counting_on(rule, held, table.family) for rule in rules])
    sentences += _jumps(table, builtin, wanted)
    leftover = present.keys() - wanted.chains.keys()
    for chain in leftover:
        table.flush_chain(chain)
    for chain in leftover:
        sentences.append(f"chain {chain} was left over")
        table.delete_chain(chain)
    rest = len(sentences) - _MOST_SENTENCES
    return sentences[:_MOST_SENTENCES] + ([f"and {rest} more"] if rest > 0 else [])


def state_of(table: Table, family: Family) -> dict[ServicePort, Frontend]:
    """What the chains translate, as far as they make sense."""
    chains = table.chains(*_OURS["nat"])
    found: dict[ServicePort, Frontend] = {}
    for name, rules in chains.items():
        for rule in rules if name.startswith(BUCKET_PREFIX) else ():
            seen = _seen_by(rule, family)
            held = chains.get(rule.target, [])
            if seen is not None and rule.target == xt_rules.service_chain(seen):
                found[seen] = _frontend(held, family)
    return found


def hits_of(table: Table, family: Family) -> dict[ServicePort, int]:
    """How many connections the rules of the buckets counted."""
    rules = [rule for rules in table.chains(BUCKET_PREFIX).values() for rule in rules]
    return {
        seen: rule.packets
        for rule in rules
        if rule.target.startswith(SERVICE_PREFIX) and (seen := _seen_by(rule, family)) is not None
    }


def _frontend(rules: Sequence[Rule], family: Family) -> Frontend:
    endpoints = [
        xt_rules.endpoint_of(xt_entries.target_data(rule.raw, family), family)
        for rule in rules
        if rule.target == "DNAT"
    ]
    sticky = any(name == "bpf" for rule in rules for name, _, _ in xt_entries.conditions(rule.raw, family)[1])
    return Frontend(frozenset(endpoints), sticky)


def _seen_by(rule: Rule, family: Family) -> ServicePort | None:
    matches = xt_entries.conditions(rule.raw, family)[1]
    return xt_rules.seen_of(rule.raw, family, matches[0][2]) if matches else None


def _fill(table: LegacyTable, chain: str, rules: Iterable[bytes]) -> None:
    table.flush_chain(chain)
    for rule in rules:
        table.append(chain, rule)


def _jumps(table: LegacyTable, builtin: Mapping[str, Sequence[Rule]], wanted: Wanted) -> list[str]:
    """One jump from each built-in chain, or none."""
    entry, sentences = ENTRY_OF[wanted.name], list[str]()
    jump = encode_jump(entry, table.family)
    for chain in JUMPED_FROM[wanted.name]:
        count = sum(rule.target == entry for rule in builtin.get(chain, ()))
        sound = sum(rule.target == entry and rule.raw == jump for rule in builtin.get(chain, ()))
        if count == sound == bool(wanted.chains):
            continue
        sentences.append(f"the jump from {chain} to {entry} was {'altered' if count else 'missing'}")
        for rule in table.entries(chain):
            if rule.target == entry:
                table.delete(chain, rule)
        if wanted.chains:
            table.insert(chain, jump)
    return sentences


def _is_unordered(chain: str) -> bool:
    """Whether the chain's rules exclude each other, so that their order says nothing."""
    return not chain.startswith((SERVICE_PREFIX, REFUSED))


def _raws(rules: Sequence[Rule]) -> list[bytes]:
    return [rule.raw for rule in rules]


def _counting_on(rule: bytes, held: Sequence[Rule], family: Family) -> bytes:
    """The rule with what an equal one has counted so far."""
    packets = next((one.packets for one in held if one.raw == rule), 0)
    return xt_entries.with_counts(rule, packets, 0, family) if packets else rule
