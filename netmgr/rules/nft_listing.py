"""Turns a listing of our table into what was observed, in terms of the ruleset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from netmgr.model import Sender
from netmgr.prefixes import Address
from netmgr.rules import model, nft_chains, nft_pairs, nft_text
from netmgr.rules.nft_table import Listing, Object, odd_objects, prefixes
from netmgr.rules.observed import Observed, ObservedRule, in_order


class _Recognition:
    """Finds the rules of a ruleset in the kernel by the comments of each chain's rules."""

    def __init__(self, desired: model.Ruleset, comments: Mapping[str, list[str]]) -> None:
        self._desired = desired
        self._comments = comments
        self._intact: dict[str, list[str]] = {}
        self._known: dict[str, list[str]] = {}
        for rules in desired.chains.values():
            for line in nft_text.fused(rules):
                ids = [rule.id for rule in line]
                self._known[nft_text.ids_of(line)] = ids
                if _leads_to_whole_chains(line, comments):
                    self._intact[nft_text.mark(line)] = ids

    def chain(self, hook: model.Hook) -> tuple[ObservedRule, ...]:
        """The rules at a hook, in the order of the ruleset's if their lines are in it."""
        comments = list(self._comments.get(hook, ()))
        # Without its first rule no packet meets those of IPv6.
        if comments[:1] == [nft_text.lead_mark(hook)]:
            comments[:1] = self._comments.get(nft_text.family_chain(hook), ())
        seen = [rule for comment in comments for rule in self._seen(comment)]
        rules = self._desired.chains[hook]
        # IPv6 first, as the comments are.
        lines = sorted(nft_text.fused(rules), key=lambda line: -line[0].family)
        return in_order(seen, [rule.id for line in lines for rule in line], rules)

    def _seen(self, comment: str) -> list[ObservedRule]:
        if comment in self._intact:
            return [ObservedRule(rule_id) for rule_id in self._intact[comment]]
        ids = comment.rpartition(" ")[0] or comment or "(without a comment)"
        return [
            ObservedRule(rule_id, intact=False)
            for rule_id in self._known.get(ids, ids.split(nft_text.ID_SEPARATOR))
        ]


def _leads_to_whole_chains(line: nft_text.Line, comments: Mapping[str, list[str]]) -> bool:
    wanted = nft_text.class_chains(line)
    return all(
        comments.get(name) == nft_chains.marks(name, texts) for name, texts in wanted.items()
    )


def observed(table: Listing, desired: model.Ruleset) -> Observed:
    """What a listing of our table shows, in terms of the desired ruleset."""
    wanted = {spec.name for spec in desired.sets}
    with odd_objects():
        members = {
            spec.name: _members(spec, table.sets.get(spec.name, {}))
            for spec in desired.sets
            if _is_made_as(spec, table)
        }
    bases = {hook for hook in model.Hook if table.is_base(hook, nft_text.BASES[hook])}
    filled = bases | {hook for hook, rules in desired.chains.items() if rules}
    flowtables = {spec.name for spec in desired.sets if spec.has_flows}
    # Another program's set may have a flowtable's name.
    malformed_sets = wanted & table.sets.keys() - (members.keys() - flowtables)
    malformed_chains = table.chains.keys() & set(model.Hook) - bases
    recognition = _Recognition(desired, table.comments)
    return Observed(
        members=members,
        chains={hook: recognition.chain(hook) for hook in bases},
        counters=frozenset(table.counters),
        malformed=frozenset(malformed_sets | malformed_chains),
        orphans=frozenset(table.sets) - wanted,
        orphan_chains=frozenset(table.chains)
        - frozenset(model.Hook)
        - frozenset(map(nft_text.family_chain, filled))
        - nft_text.class_chains(desired.rules()).keys(),
        orphan_flowtables=frozenset(table.flowtables) - wanted,
        is_dormant=table.is_dormant,
    )


def _members(spec: model.SetSpec, body: Object) -> frozenset[model.Element]:
    # What a dynamic set or a flowtable has is the kernel's own business.
    return frozenset() if spec.is_dynamic or spec.has_flows else frozenset(elements(body))


def _is_made_as(spec: model.SetSpec, table: Listing) -> bool:
    """Whether the table has the set or flowtable, of the type and size that it is made with."""
    if spec.has_flows:
        return spec.name in table.flowtables
    body = table.sets.get(spec.name, {})
    shown = body.get("flags", [])
    flags = [shown] if isinstance(shown, str) else shown
    interval = "interval" in flags
    if spec.pairs:
        return (body.get("type"), body.get("size")) == (nft_pairs.KEY_TYPES, spec.pairs)
    made = (body.get("size"), body.get("timeout"))
    kind = "ifname" if spec.has_links else f"ipv{spec.family.value}_addr"
    if body.get("type") != (["ifname", kind] if spec.has_senders else kind):
        return False
    if spec.is_dynamic:
        # nft 1.0.6 does not show the flag `dynamic` in JSON.
        of_links = model.SET_CAPACITY, model.FRAGMENT_SECONDS
        return made == (
            of_links if spec.has_links else (model.DYNAMIC_CAPACITY, model.DYNAMIC_SECONDS)
        )
    if spec.has_prefixes:
        return interval
    # An earlier release made larger ones, whose counters must not be lost.
    return not interval and body.get("size", 0) >= model.SET_CAPACITY


def elements(body: Object) -> Iterator[model.Element]:
    # Only sets of pods have a size; the others hold prefixes.
    of_pods = "size" in body
    for entry in body.get("elem", ()):
        # One with a counter is an object of its own.
        value = entry["elem"]["val"] if isinstance(entry, dict) and "elem" in entry else entry
        if not of_pods:
            yield from prefixes(value)
        elif isinstance(value, str):
            yield Address.parse(value)
        else:
            link, address = value["concat"]
            yield Sender(link, Address.parse(address))
