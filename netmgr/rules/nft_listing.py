"""Turns nft's JSON listing of our table into what was observed (libnftables-json(5)).

A comment's digest covers what we wrote, not what the rule is now: `nft replace rule` may keep the
comment and change the rule. So `Fingerprints` remembers how nft shows a rule right after we wrote
it, and compares later listings with that. A rule that was there before us counts as intact if its
comment does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from netmgr.errors import KernelError
from netmgr.model import Sender
from netmgr.prefixes import Address, Prefix
from netmgr.rules import model, nft_pairs, nft_text
from netmgr.rules.observed import Observed, ObservedRule, in_order

_NOTHING: frozenset[model.Element] = frozenset()

Listing = Mapping[str, Any]
"""One object of nft's JSON output."""


class Fingerprints:
    """What nft shows of each rule, by the rule's comment. Its listings are all of one table."""

    def __init__(self) -> None:
        # Not kept on disk, where it would have to survive nft versions that show a rule in another
        # form.
        self._known: dict[str, Any] = {}

    def learn(self, listing: Iterable[Listing], chains: Collection[str]) -> None:
        """Remember how nft shows the rules of these chains, which were written a moment ago."""
        for rule in _commented(listing):
            if rule["chain"] in chains:
                self._known[rule["comment"]] = rule["expr"]

    def compared(self, listing: Iterable[Listing]) -> list[Listing]:
        """The listing, with another comment on every rule that was altered."""
        listed = list(listing)
        shown = {rule["comment"]: rule["expr"] for rule in _commented(listed)}
        # What was learned wins: a rule that is shown otherwise now was altered.
        self._known = shown | self._known
        return [self._compared(item) for item in listed]

    def _compared(self, item: Listing) -> Listing:
        rule = item.get("rule", {})
        comment = rule.get("comment", "")
        if not comment or rule["expr"] == self._known[comment]:
            return item
        # The ids stay readable; only the digest of the text goes.
        return {"rule": rule | {"comment": f"{comment.rpartition(' ')[0]} altered"}}


def _commented(listing: Iterable[Listing]) -> Iterator[Listing]:
    return (item["rule"] for item in listing if "comment" in item.get("rule", {}))


@dataclass
class _Table:
    """A listing by kinds of objects; `comments` are those of each chain's rules in their order."""

    sets: dict[str, Listing] = field(default_factory=dict)
    flowtables: set[str] = field(default_factory=set)
    chains: dict[str, Listing] = field(default_factory=dict)
    counters: set[str] = field(default_factory=set)
    comments: dict[str, list[str]] = field(default_factory=dict)
    is_dormant: bool = False

    @classmethod
    def of(cls, listing: Iterable[Listing]) -> _Table:
        table = cls()
        for item in listing:
            for kind, body in item.items():
                table.take(kind, body)
        return table

    def take(self, kind: str, body: Listing) -> None:
        """Take one object; names are compared and sorted later, where other types would fail."""
        for key in ("name", "chain", "comment"):
            if not isinstance(body.get(key, ""), str):
                raise TypeError(f"{key} is {body[key]!r}")
        match kind:
            case "set":
                self.sets[body["name"]] = body
            case "flowtable":
                self.flowtables.add(body["name"])
            case "chain":
                self.chains[body["name"]] = body
            case "counter":
                self.counters.add(body["name"])
            case "rule":
                self.comments.setdefault(body["chain"], []).append(body.get("comment", ""))
            case "table":
                # nft 1.0.6 does not show which flags; with any but `dormant` it cannot list the
                # table at all.
                self.is_dormant = "flags" in body
            case _:
                pass


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
        seen: list[ObservedRule] = []
        for comment in self._comments.get(hook, ()):
            seen += self._seen(comment)
        rules = self._desired.chains[hook]
        return in_order(seen, [rule.id for line in nft_text.fused(rules) for rule in line], rules)

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
        comments.get(name) == nft_text.class_marks(name, texts) for name, texts in wanted.items()
    )


def observed(
    listing: Iterable[Listing], desired: model.Ruleset, fingerprints: Fingerprints
) -> Observed:
    """What `list table` shows, in terms of the desired ruleset.

    Raises:
        KernelError: something in it has another shape than nft has shown so far.
    """
    try:
        return _observed(fingerprints.compared(listing), desired)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise KernelError("nft list table", details=f"shows an odd object: {error!r}") from None


def _observed(listing: Iterable[Listing], desired: model.Ruleset) -> Observed:
    table = _Table.of(listing)
    wanted = {spec.name for spec in desired.sets}
    sets = {spec.name for spec in desired.sets if _is_made_as(spec, table.sets.get(spec.name, {}))}
    bases = {hook for hook in model.Hook if _is_base(hook, table.chains.get(hook, {}))}
    malformed = (wanted & table.sets.keys()) - sets | (
        set(model.Hook) & table.chains.keys()
    ) - bases
    recognition = _Recognition(desired, table.comments)
    return Observed(
        members=_members_of(desired, table, sets),
        chains={hook: recognition.chain(hook) for hook in bases},
        counters=frozenset(table.counters),
        malformed=frozenset(malformed),
        orphans=frozenset(table.sets) - wanted,
        orphan_chains=frozenset(table.chains)
        - frozenset(model.Hook)
        - nft_text.class_chains(desired.rules()).keys(),
        orphan_flowtables=frozenset(table.flowtables) - wanted,
        asleep=table.is_dormant,
    )


def _members_of(
    desired: model.Ruleset, table: _Table, sets: Collection[str]
) -> dict[str, frozenset[model.Element]]:
    members = {}
    for spec in desired.sets:
        # What a dynamic set or a flowtable has is the kernel's own business.
        if spec.has_flows and spec.name in table.flowtables:
            members[spec.name] = _NOTHING
        elif spec.name in sets:
            members[spec.name] = (
                _NOTHING if spec.is_dynamic else frozenset(elements(table.sets[spec.name]))
            )
    return members


def _is_made_as(spec: model.SetSpec, body: Listing) -> bool:
    shown = body.get("flags", [])
    flags = [shown] if isinstance(shown, str) else shown
    interval = "interval" in flags
    if spec.has_flows:
        return False
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


def _is_base(hook: model.Hook, body: Listing) -> bool:
    attributes = (body.get("type"), body.get("hook"), body.get("prio"), body.get("policy"))
    return attributes == (*nft_text.BASES[hook], "accept")


def elements(body: Listing) -> Iterator[model.Element]:
    for entry in body.get("elem", ()):
        # One with a counter is an object of its own.
        value = entry["elem"]["val"] if isinstance(entry, dict) and "elem" in entry else entry
        yield from _elements(value, of_pods="size" in body)


def _elements(value: Any, *, of_pods: bool) -> Iterator[model.Element]:  # noqa: ANN401 - as `_prefixes`
    """What one entry of a set has. Only sets of pods have a size; the others hold prefixes."""
    if of_pods and isinstance(value, str):
        yield Address.parse(value)
    elif of_pods:
        link, address = value["concat"]
        yield Sender(link, Address.parse(address))
    else:
        yield from _prefixes(value)


def _prefixes(value: Any) -> Iterator[Prefix]:  # noqa: ANN401 - nft's JSON has three shapes of interval
    if isinstance(value, str):
        yield Address.parse(value).prefix
    elif "prefix" in value:
        yield Prefix.parse(f"{value['prefix']['addr']}/{value['prefix']['len']}")
    else:
        # nft joins neighbouring prefixes into one range when it lists them.
        low, high = map(Address.parse, value["range"])
        first = low.value
        while first <= high.value:
            size = min(
                first & -first or 1 << low.family.width,
                1 << (high.value - first + 1).bit_length() - 1,
            )
            yield Prefix(low.family, first, low.family.width - size.bit_length() + 1)
            first += size
