"""Recognises our rules in one table of iptables, and says which edits make them as wanted.

They are in our own chains, NETMGR-… (`iptables_layout`), with one jump from the built-in chain.
Only the article's four rules are in the built-in chains themselves, where its readers look for
them. Among others' rules ours are known by the set of ours that they look into. One that looks into
none reads like a user's that has the same words; then an empty chain NETMGR-RULE-… says that we put
one in, which is the first of its like. Other rules are never touched or moved, whatever their
comment says. One that equals an article's rule of ours serves in its place and stays its owner's.
But ours come before any that may decide about a packet, except where addresses are translated.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter as Multiset
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from functools import cached_property
from itertools import chain, dropwhile

from netmgr.kernel.xtables.saved import NO_TABLE, SavedRule, SavedTable
from netmgr.model import CHAIN_PREFIX
from netmgr.prefixes import Family
from netmgr.rules import model
from netmgr.rules.ipset import PREFIX as SET_PREFIX
from netmgr.rules.iptables_layout import Line, chain_name, chains, fits_one_entry
from netmgr.rules.iptables_text import comment_of, line_text, same_words, text
from netmgr.rules.observed import ObservedRule
from netmgr.rules.policy import internal_set
from netmgr.rules.transaction import DropChain, FillChain

# Which table has the hook at the priority we use there. None has one behind all translation.
TABLES = {
    model.Hook.PREROUTING: "raw",
    model.Hook.DSTNAT: "nat",
    model.Hook.INPUT: "mangle",
    model.Hook.FORWARD: "mangle",
    model.Hook.OUTPUT: "mangle",
    model.Hook.BEFORE_SRCNAT: "mangle",
    model.Hook.POSTROUTING: "nat",
}

ReadTable = Callable[[str, Family], SavedTable]

_ANY_OWNER = re.compile(r"iptables-exporter .* traffic=internet-(in|out)")
_BUILTIN = {model.Hook.DSTNAT: "PREROUTING", model.Hook.BEFORE_SRCNAT: "POSTROUTING"}
# The next rule gets the packet after these (iptables-extensions(8)), but in a built-in chain not
# after RETURN.
_GOES_ON = frozenset(
    {"CHECKSUM", "CLASSIFY", "CONNMARK", "CT", "DSCP", "ECN", "HL", "LOG", "MARK", "NFLOG"}
    | {"NOTRACK", "SET", "TCPMSS", "TEE", "TOS", "TRACE", "TTL"}
)
_DIGEST_LENGTH = 8


def builtin(hook: model.Hook) -> str:
    """The kernel's own chain at a hook."""
    return _BUILTIN.get(hook, hook.upper())


def _in_one_entry(rule: model.Rule) -> model.Rule:
    """The article's rule as the built-in chain has it, where an entry compares one prefix."""
    # Others look for it there by name, PyPI's iptables-exporter for one. So chains of our own,
    # which compare one prefix after the other, are not for it.
    if fits_one_entry(rule):
        return rule
    internal = next(match for match in rule.matches if isinstance(match, model.InPrefix))
    links = (match for match in rule.matches if not isinstance(match, model.InPrefix))
    looked_up = model.InSet(internal.side, internal_set(rule.family).name, negated=True)
    return replace(rule, matches=(*links, looked_up))


class HookRules:
    """What a table has at a hook, for one family's rules of ours there.

    Attributes:
        article: the article's rules, as the built-in chain should have them.
        own: the rules for our own chains.
        obstacle: another program's rule that may keep packets from ours, which come after it.
    """

    def __init__(
        self, table: SavedTable, hook: model.Hook, rules: Sequence[model.Rule], family: Family
    ) -> None:
        self._table = table
        self._hook = hook
        rules = [rule for rule in rules if rule.family is family]
        self.article = [_in_one_entry(rule) for rule in rules if rule.comment]
        self.own = [rule for rule in rules if not rule.comment]
        self._jump = f"-j {chain_name(hook)}"
        self._rules = _rules(table, builtin(hook))
        self._ours = [
            rule for rule in self._rules if _is_ours(rule, hook, self._rules, table.lines)
        ]
        # Including those of a former layout.
        ours = re.compile(rf"{chain_name(hook)}(-\d+)?")
        self._present = [name for name in table.lines if ours.fullmatch(name)]
        self.obstacle, self._late = self._find_obstacle()

    def _find_obstacle(self) -> tuple[SavedRule | None, frozenset[str]]:
        """The first such rule, and the words of ours that come after it."""
        # Where addresses are translated, the first verdict wins, and others' rules go first.
        if TABLES[self._hook] == "nat":
            return None, frozenset()
        ours = {self._jump, *(rule.text for rule in self._ours)}
        rest = list(dropwhile(lambda rule: rule.text in ours or _goes_on(rule), self._rules))
        late = frozenset(rule.text for rule in rest) & ours
        return (rest[0] if late else None), late

    @cached_property
    def _wanted(self) -> dict[str, list[Line]]:
        return chains(self._hook, self.own)

    def observed(self, malformed: Collection[str] = ()) -> Iterator[ObservedRule]:
        """The rules that are there, in the order of the ruleset as far as they agree.

        A rule that looks into a set that is `malformed` cannot stay, so it is altered.
        """
        yield from self._observed_article(malformed)
        article = {rule.comment for rule in self.article}
        # Whom a rule counts for is in its comment: these are of a former owner.
        former = (rule.comment for rule in self._ours if rule.comment not in article)
        yield from (ObservedRule(comment, intact=False) for comment in former)
        if self.obstacle:
            yield ObservedRule(f"{self.obstacle.text}, before ours", intact=False)
        jumps = self._jumps()
        if not self._wanted:
            yield from (ObservedRule(f"chain {name}", intact=False) for name in self._present)
        elif self._jump in jumps:
            jumps.remove(self._jump)
            yield from self._observed_own(malformed)
        for _ in jumps:
            yield ObservedRule(f"jump to {chain_name(self._hook)}", intact=False)

    def _observed_article(self, malformed: Collection[str]) -> Iterator[ObservedRule]:
        all_words = {rule.text for rule in self._rules}
        for wanted in self.article:
            words = text(wanted)
            written = [rule.text for rule in self._ours if rule.comment == wanted.comment]
            # Another's that is equal serves in its place.
            present = written or [words] * (words in all_words)
            is_sound = wanted.set_names.isdisjoint(malformed)
            is_sound = is_sound and words not in self._late
            yield from (
                ObservedRule(wanted.id, is_sound and rule_text == words) for rule_text in present
            )

    def _observed_own(self, malformed: Collection[str]) -> Iterator[ObservedRule]:
        by_chain = {
            name: list(self._lines(name, wanted, malformed))
            for name, wanted in self._wanted.items()
        }
        # Without what leads packets past them, rules count others' packets.
        leads = all(_leads(by_chain[name], wanted) for name, wanted in self._wanted.items())
        for name in chain.from_iterable(by_chain.values()):
            if isinstance(name, str):
                yield ObservedRule(name, intact=False)
        for name in _in_order(map(_ruleset_of, by_chain.values()), self.own):
            yield ObservedRule(name, intact=leads)
        for name in self._present:
            if name not in self._wanted:
                yield ObservedRule(f"chain {name}", intact=False)

    def _lines(
        self, name: str, wanted: Sequence[Line], malformed: Collection[str]
    ) -> Iterator[Line | str]:
        """Wanted lines that a chain has, in its order, and names of other rules."""
        # Equal rules have equal comments, so that each is compared with its like alone.
        by_comment = {comment_of(line.rule): line for line in wanted}
        for rule in _rules(self._table, name):
            line = by_comment.get(rule.comment)
            if (
                line is not None
                and rule.text == line_text(line)
                and line.rule.set_names.isdisjoint(malformed)
            ):
                yield line
            else:
                yield rule.comment.removeprefix("netmgr ") or rule.target or "(without a comment)"

    @cached_property
    def _counting(self) -> dict[str, SavedRule]:
        """Our rules at the hook by their comment, which names what they count."""
        # Not by their words: one that has another form or place now goes on from that count.
        rules: dict[str, SavedRule] = {}
        # Of equals the first has the longest count.
        for rule in chain(self._ours, *(_rules(self._table, name) for name in self._present)):
            rules.setdefault(rule.comment, rule)
        return rules

    def kept(self) -> Iterator[str]:
        """Ids of the rules that have a count, which they keep when they are written again."""
        rules = (*self.article, *self.own)
        return (rule.id for rule in rules if comment_of(rule) in self._counting)

    def counting(self) -> Iterator[tuple[model.Rule, SavedRule]]:
        """Each rule that is there, and what counts for it: ours, or another that is equal."""
        for wanted in (*self.article, *self.own):
            counts = self._counting.get(comment_of(wanted))
            if counts is None and wanted.comment:
                words = text(wanted)
                counts = next((rule for rule in self._rules if rule.text == words), None)
            if counts is not None:
                yield wanted, counts

    def edits(self, *, fill: bool = True) -> list[str]:
        """Lines for iptables-restore by which the table has exactly our rules here, or none."""
        return [
            *self._article_edits(self.article if fill else ()),
            *self._own_edits(self._wanted if fill else {}),
        ]

    def _article_edits(self, article: Sequence[model.Rule]) -> Iterator[str]:
        name = builtin(self._hook)
        ours = Multiset(rule.text for rule in self._ours)
        theirs = {rule.text for rule in self._rules} - ours.keys()
        wanted = {words: rule for rule in article if (words := text(rule)) not in theirs}
        # A rule of the article is itself a counter of the node, so it is left alone while it is
        # intact.
        kept = {words for words in wanted if ours[words] == 1 and words not in self._late}
        # By its words: others may insert rules of their own at this moment. Ours is the first.
        yield from (f"-D {name} {words}" for words in ours.elements() if words not in kept)
        yield from self._mark_edits(wanted)
        # Each goes to the head of the chain, so the last one goes in first.
        for words, rule in reversed(wanted.items()):
            if words not in kept:
                yield f"{_counted(self._counting, rule.comment)}-I {name} 1 {words}"

    def _mark_edits(self, wanted: Iterable[str]) -> Iterator[str]:
        """Have a mark for each rule in these words that looks into no set of ours."""
        # One that looks into a set of ours is known by that.
        marks = {_mark(self._hook, words) for words in wanted if not _looks_into_ours(words)}
        present = {mark for mark in self._table.lines if mark.startswith(_mark(self._hook, ""))}
        yield from (f"-X {mark}" for mark in sorted(present - marks))
        yield from (f":{mark} - [0:0]" for mark in sorted(marks - present))

    def _own_edits(self, wanted: Mapping[str, Sequence[Line]]) -> Iterator[str]:
        name, jumps = builtin(self._hook), self._jumps()
        is_reached = bool(wanted) and self._jump in jumps and self._jump not in self._late
        if is_reached:
            jumps.remove(self._jump)
        yield from (f"-D {name} {words}" for words in jumps)
        yield from (f":{own} - [0:0]" for own in wanted if own not in self._present)
        for own, lines in wanted.items():
            yield from _chain_edits(own, _rules(self._table, own), lines, self._counting)
        yield from _without_chains([own for own in self._present if own not in wanted])
        if wanted and not is_reached:
            how = f"-A {name}" if TABLES[self._hook] == "nat" else f"-I {name} 1"
            yield f"{how} {self._jump}"

    def _jumps(self) -> list[str]:
        return [rule.text for rule in self._rules if rule.target == chain_name(self._hook)]


def counters(
    desired: model.Ruleset,
    observed: Mapping[model.Hook, Sequence[ObservedRule]],
    kept: Collection[str],
) -> frozenset[str]:
    """Names of the counters that exist: those of rules that are intact or kept."""
    there = {rule.id for rules in observed.values() for rule in rules if rule.intact}.union(kept)
    return frozenset(
        rule.action.name
        for rule in desired.rules()
        if isinstance(rule.action, model.Count | model.Drop | model.Tally) and rule.id in there
    )


def obstacles(tables: Mapping[str, SavedTable], family: Family) -> Iterator[tuple[str, str]]:
    """Others' rules that may keep packets from ours: the table, and the rule with its chain."""
    for hook, name in TABLES.items():
        if rule := HookRules(tables.get(name, NO_TABLE), hook, (), family).obstacle:
            yield name, f"{builtin(hook)} {rule.text}"


def script(changes: Sequence[DropChain | FillChain], family: Family, read: ReadTable) -> str:
    """What iptables-restore gets for one family: the edits, table by table."""
    parts = []
    for name in sorted({TABLES[change.hook] for change in changes}):
        table = read(name, family)
        lines: list[str] = []
        for change in changes:
            if TABLES[change.hook] == name:
                there = HookRules(table, change.hook, change.rules, family)
                lines += there.edits(fill=isinstance(change, FillChain))
        parts.append(_section(name, lines))
    return "".join(parts)


def removal(tables: Mapping[str, SavedTable]) -> str:
    """What iptables-restore gets to remove everything of ours, whichever ruleset it is of."""
    return "".join(_section(name, list(_removal(table))) for name, table in tables.items())


def _section(table: str, lines: Sequence[str]) -> str:
    return "\n".join([f"*{table}", *lines, "COMMIT", ""]) if lines else ""


def _removal(table: SavedTable) -> Iterator[str]:
    own = [name for name in table.lines if name.startswith(CHAIN_PREFIX)]
    # Jumps first, since no chain is deleted that something leads to.
    for name in table.lines.keys() - own:
        yield from (f"-D {name} {rule.text}" for rule in _ours_in(table, name, own))
    yield from _without_chains(own)


def _ours_in(table: SavedTable, name: str, own: Collection[str]) -> Iterator[SavedRule]:
    """Our rules in a chain of others'."""
    rules = _rules(table, name)
    hooks = [hook for hook in TABLES if builtin(hook) == name]
    for rule in rules:
        if rule.target in own or any(_is_ours(rule, hook, rules, own) for hook in hooks):
            yield rule


def _without_chains(names: Sequence[str]) -> Iterator[str]:
    # All are emptied first, since they lead to each other.
    yield from (f"-F {name}" for name in names)
    yield from (f"-X {name}" for name in names)


def _rules(table: SavedTable, name: str) -> list[SavedRule]:
    return [replace(rule, text=same_words(rule.text)) for rule in table.rules(name)]


def _goes_on(rule: SavedRule) -> bool:
    """Whether the next rule gets every packet that comes to this one, or the rule is ours."""
    return not rule.target or rule.target in _GOES_ON or rule.target.startswith(CHAIN_PREFIX)


def _is_ours(
    rule: SavedRule, hook: model.Hook, rules: Sequence[SavedRule], chains: Collection[str]
) -> bool:
    """Whether a rule of a built-in chain is one of the article's that we put in."""
    if rule.target or not _ANY_OWNER.fullmatch(rule.comment):
        return False
    if _looks_into_ours(rule.text):
        return True
    first = next(other for other in rules if other.text == rule.text)
    return first is rule and _mark(hook, rule.text) in chains


def _looks_into_ours(words: str) -> bool:
    return f"--match-set {SET_PREFIX}" in words


def _mark(hook: model.Hook, words: str) -> str:
    """The empty chain saying that we put a rule of these words into the built-in chain."""
    digest = hashlib.sha256(words.encode()).hexdigest()[:_DIGEST_LENGTH] if words else ""
    return f"{CHAIN_PREFIX}RULE-{builtin(hook)}-{digest}"


def _chain_edits(
    name: str,
    present: Sequence[SavedRule],
    lines: Sequence[Line],
    counting: Mapping[str, SavedRule],
) -> Iterator[str]:
    """Edits by which a chain has exactly these lines."""
    # A rule that stays as it is is never written again, since its count is the table's alone.
    wanted = list(map(line_text, lines))
    counted = [_counted(counting, comment_of(line.rule)) for line in lines]
    if not present:
        yield from (
            f"{counts}-A {name} {words}" for counts, words in zip(counted, wanted, strict=True)
        )
        return
    # Without autojunk, by which difflib ignores lines that recur in a long chain: a rule that stays
    # would be written again.
    matcher = SequenceMatcher(None, [rule.text for rule in present], wanted, autojunk=False)
    # From the end, so that the numbers of what comes before stay true.
    for kind, first, last, begin, end in reversed(matcher.get_opcodes()):
        if kind == "equal":
            continue
        yield from (f"-D {name} {number}" for number in range(last, first, -1))
        # What is inserted goes before what was inserted last.
        for place in range(end - 1, begin - 1, -1):
            yield f"{counted[place]}-I {name} {first + 1} {wanted[place]}"


def _counted(counting: Mapping[str, SavedRule], comment: str) -> str:
    """What a rule that is written again goes on from, as iptables-restore takes it."""
    rule = counting.get(comment)
    return f"[{rule.packets}:{rule.bytes}] " if rule and (rule.packets or rule.bytes) else ""


def _leads(present: Iterable[Line | str], wanted: Sequence[Line]) -> bool:
    """Whether all helper rules are present, in order."""
    there = [line for line in present if isinstance(line, Line)]
    if [line for line in there if line.is_helper] != [line for line in wanted if line.is_helper]:
        return False
    # The order of the others among themselves is reported as such.
    kept = [line for line in wanted if line in there]
    return there == kept or _ruleset_of(there) != _ruleset_of(kept)


def _ruleset_of(lines: Iterable[Line | str]) -> list[str]:
    return [line.rule.id for line in lines if isinstance(line, Line) and not line.is_helper]


def _in_order(by_chain: Iterable[list[str]], rules: Iterable[model.Rule]) -> list[str]:
    """Ids of rules as the chains have them, in the ruleset's order if each chain has its own so."""
    places = {rule.id: place for place, rule in enumerate(rules)}
    listed = list(by_chain)
    ids = list(chain.from_iterable(listed))
    if all(names == sorted(names, key=places.__getitem__) for names in listed):
        ids.sort(key=places.__getitem__)
    return ids
