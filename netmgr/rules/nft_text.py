"""The ruleset as nft commands, and nft's JSON listing as what was observed.

Every rule carries a comment with its id and a digest of its text; so a rule is recognised
after a restart, and an altered one is told from an intact one, without comparing listings
whose wording changes from one nft version to the next. Commands are flat (`add …`, `flush …`)
and keep to what nft 1.0.2 to 1.1 have in common.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, assert_never

from netmgr.prefixes import Address, Family, Prefix
from netmgr.rules import nft_sort
from netmgr.rules.model import (
    SET_CAPACITY,
    Action,
    Count,
    Drop,
    Element,
    GoOn,
    Hook,
    InPrefix,
    InSet,
    Masquerade,
    Match,
    Netmap,
    Observed,
    OneIn,
    OnLink,
    OriginallyTo,
    Pass,
    Rewrite,
    Rule,
    Ruleset,
    Seen,
    SetSpec,
    Side,
    Sort,
    SourceNat,
    Tally,
    in_order,
)
from netmgr.rules.packets import Asking, IcmpType, Returnable, UdpTo
from netmgr.rules.transaction import (
    AddElements,
    CreateSet,
    DeclareCounter,
    DeleteSet,
    DeleteStray,
    DropChain,
    FillChain,
    Operation,
    RemoveElements,
    ReplaceElements,
)

TABLE = "inet netmgr"

Listing = Mapping[str, Any]
"""One object of nft's JSON output (libnftables-json(5))."""


class _Base(NamedTuple):
    kind: str
    hook: str
    priority: int


BASES = {
    Hook.PREROUTING: _Base("filter", "prerouting", -300),
    Hook.DSTNAT: _Base("nat", "prerouting", -110),
    Hook.INPUT: _Base("filter", "input", -150),
    Hook.FORWARD: _Base("filter", "forward", -150),
    Hook.OUTPUT: _Base("filter", "output", -150),
    Hook.POSTROUTING: _Base("nat", "postrouting", 100),
    Hook.DEPARTURE: _Base("filter", "postrouting", 320),
}
"""Chain type, the kernel's hook and priority: raw, before others' translation, mangle, source translation, the end."""

COMMENT_LENGTH = 127
"""The most bytes a rule's comment has (NFTNL_UDATA_COMMENT_MAXLEN, less the final zero)."""

Line = tuple[Rule, ...]
"""One or two rules that are one rule to the kernel."""

_ID_SEPARATOR = " + "
_DIGEST_LENGTH = 12


def commands(operations: Iterable[Operation]) -> list[str]:
    """Commands for nft, one a line, that carry the operations out as one transaction."""
    listed = list(operations)
    makes = any(isinstance(operation, CreateSet | FillChain | DeclareCounter) for operation in listed)
    lines = [f"add table {TABLE}"] if makes else []
    for operation in listed:
        lines += _lines(operation)
    return lines


def _lines(operation: Operation) -> list[str]:  # noqa: PLR0911 - one return per kind of operation reads best
    match operation:
        case DropChain(hook, rules):
            # The one that jumps before those that it jumps to.
            return [line for name in (hook, *reversed(nft_sort.chains(rules))) for line in _delete_chain(name)]
        case FillChain(hook, rules):
            return _fill(hook, rules)
        case CreateSet(spec):
            return [f"add set {TABLE} {spec.name} {{ {_set_type(spec)} }}"]
        case DeleteSet(spec):
            return [f"delete set {TABLE} {spec.name}"]
        case DeleteStray(name, is_chain):
            return _delete_chain(name) if is_chain else [f"delete set {TABLE} {name}"]
        case AddElements(spec, elements):
            return [_elements("add", spec, elements)]
        case RemoveElements(spec, elements):
            # Added first for the same reason as above; there is no `destroy` before nft 1.0.7.
            return [_elements("add", spec, elements), _elements("delete", spec, elements)]
        case ReplaceElements(spec, elements):
            return [f"flush set {TABLE} {spec.name}", *([_elements("add", spec, elements)] if elements else [])]
        case DeclareCounter(name):
            return [f"add counter {TABLE} {name}"]
    assert_never(operation)


def _fill(hook: Hook, rules: Sequence[Rule]) -> list[str]:
    kind, place, priority = BASES[hook]
    base = f"{{ type {kind} hook {place} priority {priority}; policy accept; }}"
    lines = [f"add chain {TABLE} {hook} {base}", f"flush chain {TABLE} {hook}"]
    for name, texts in nft_sort.chains(rules).items():
        lines += [f"add chain {TABLE} {name}", f"flush chain {TABLE} {name}"]
        marks = _sorting_marks(name, texts)
        lines += [f'add rule {TABLE} {name} {one} comment "{its}"' for one, its in zip(texts, marks, strict=True)]
    lines += [f'add rule {TABLE} {hook} {text(line)} comment "{mark(line)}"' for line in fused(rules)]
    return lines


def _delete_chain(name: str) -> list[str]:
    # `add` first, since deleting a chain that is not there would fail the whole transaction.
    return [f"add chain {TABLE} {name}", f"flush chain {TABLE} {name}", f"delete chain {TABLE} {name}"]


def _sorting_marks(name: str, texts: Sequence[str]) -> list[str]:
    """The comments of the rules in a chain that a sorting rule leads to."""
    return [f"{name} {number} {_digest(one)}" for number, one in enumerate(texts, start=1)]


def fused(rules: Sequence[Rule]) -> list[Line]:
    """The rules as lines of the kernel: a counting rule and the pod rule with the same matches become one.

    What a packet pays for is finding that its peer is not internal; so that is done once for both.
    """
    lines: list[Line] = []
    counting: dict[tuple[Match, ...], list[int]] = {}
    for rule in rules:
        if places := counting.get(rule.matches[:-1]):
            lines[places.pop(0)] += (rule,)
            continue
        if isinstance(rule.action, Count):
            counting.setdefault(rule.matches, []).append(len(lines))
        lines.append((rule,))
    return lines


def _set_type(spec: SetSpec) -> str:
    kind = f"type ipv{spec.family.value}_addr;"
    return f"{kind} flags interval;" if spec.counts is None else f"{kind} size {SET_CAPACITY}; counter;"


def _elements(verb: str, spec: SetSpec, elements: Iterable[Element]) -> str:
    return f"{verb} element {TABLE} {spec.name} {{ {', '.join(map(str, sorted(elements)))} }}"


def mark(line: Line) -> str:
    """The comment a line is recognised by: the ids of its rules and a digest of its text."""
    return f"{_ids(line)} {_digest(text(line))}"


def _ids(line: Line) -> str:
    """The ids of a line's rules; what would be too long for a comment ends in a digest instead."""
    ids = _ID_SEPARATOR.join(rule.id for rule in line)
    room = COMMENT_LENGTH - _DIGEST_LENGTH - 1
    return ids if len(ids) <= room else f"{ids[: room - _DIGEST_LENGTH - 1]}-{_digest(ids)}"


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:_DIGEST_LENGTH]


def text(line: Line) -> str:
    """The line's matches and actions in nft's language; of two rules, the second's last match comes last."""
    first, *more = line
    parts = [_match_text(match, first) for match in first.matches]
    if not any(isinstance(match, InSet | InPrefix) for match in first.matches):
        parts.insert(0, f"meta nfproto ipv{first.family.value}")
    parts.append(_action_text(first.action, first.family))
    for second in more:
        parts += [_match_text(second.matches[-1], second), _action_text(second.action, second.family)]
    return " ".join(filter(None, parts))


def _action_text(action: Action, family: Family) -> str:  # noqa: PLR0911 - one return per kind of action reads best
    match action:
        case Count() | Tally():
            return f'counter name "{action.name}"'
        case Drop(name):
            return f'counter name "{name}" drop'
        case Masquerade():
            return "masquerade"
        case SourceNat(address):
            return f"snat {_protocol(family)} to {address}"
        case Netmap(real):
            return f"dnat {_protocol(family)} prefix to {real}"
        case Rewrite(side, prefix, name):
            field = f"{_protocol(family)} {_field(side)}"
            host_bits = Address(family, prefix.size - 1)
            return f'counter name "{name}" {field} set {field} & {host_bits} | {prefix.network}'
        case GoOn():
            return ""
        case Sort():
            return nft_sort.jump(action)
        case Pass():
            # A packet that counted for a pod in one direction never does in the other.
            return "return"
    assert_never(action)


def _match_text(match: Match, rule: Rule) -> str:  # noqa: PLR0911 - one return per kind of match reads best
    protocol = _protocol(rule.family)
    match match:
        case InSet(side, name, negated):
            return f"{protocol} {_field(side)} {'!= ' if negated else ''}@{name}"
        case InPrefix(side, prefix, negated):
            return f"{protocol} {_field(side)} {'!= ' if negated else ''}{prefix}"
        case OnLink(side, name, negated, group):
            way, operator = "i" if side is Side.SOURCE else "o", "!= " if negated else ""
            return f"meta {way}ifgroup {operator}{group}" if group else f'{way}ifname {operator}"{name}"'
        case Returnable(negated):
            return f"fib saddr . iif oif {'' if negated else '!= '}0"
        case IcmpType(number):
            return f"{'icmp' if rule.family is Family.V4 else 'icmpv6'} type {number}"
        case UdpTo(port):
            return f"udp dport {port}"
        case Asking(besides):
            # The packet's port, where answers come from; nft has no `ct reply proto-src` of any protocol.
            return f"ct direction original @th,16,16 != {besides}"
        case OriginallyTo(prefix):
            return f"ct original {protocol} daddr {prefix}"
        case OneIn(number):
            return f"numgen inc mod {number} 0"
    assert_never(match)


def _protocol(family: Family) -> str:
    return "ip" if family is Family.V4 else "ip6"


def _field(side: Side) -> str:
    return "saddr" if side is Side.SOURCE else "daddr"


def observed(listing: Iterable[Listing], desired: Ruleset) -> Observed:
    """What `list table` shows, in terms of the desired ruleset."""
    objects = [(kind, body) for item in listing for kind, body in item.items()]
    sets = {body["name"]: body for kind, body in objects if kind == "set"}
    chains = {body["name"]: body for kind, body in objects if kind == "chain"}
    well_made = {spec.name for spec in desired.sets if spec.name in sets and _is_made_as(spec, sets[spec.name])}
    sound = {hook for hook in Hook if hook in chains and _is_base(hook, chains[hook])}
    seen: dict[Hook, list[Seen]] = {hook: [] for hook in sound}
    lines = [line for rules in desired.chains.values() for line in fused(rules)]
    intact = {mark(line): [Seen(rule.id) for rule in line] for line in lines}
    known = {_ids(line): [rule.id for rule in line] for line in lines}
    sorting = _comments(objects)
    for rule in desired.rules():
        wanted = {name: _sorting_marks(name, texts) for name, texts in nft_sort.chains([rule]).items()}
        if any(sorting.get(name) != marks for name, marks in wanted.items()):
            intact.pop(mark((rule,)))
    for kind, body in objects:
        if kind == "rule" and body["chain"] in sound:
            seen[Hook(body["chain"])] += _seen(body.get("comment", ""), intact, known)
    return Observed(
        members={name: frozenset(element for element, _ in elements(sets[name])) for name in well_made},
        chains={hook: _unfused(rules, desired.chains[hook]) for hook, rules in seen.items()},
        counters=frozenset(body["name"] for kind, body in objects if kind == "counter"),
        malformed=frozenset(
            {spec.name for spec in desired.sets if spec.name in sets and spec.name not in well_made}
            | {hook for hook in Hook if hook in chains and hook not in sound}
        ),
        strays=frozenset(sets) - {spec.name for spec in desired.sets},
        stray_chains=frozenset(chains) - frozenset(Hook) - nft_sort.chains(desired.rules()).keys(),
        # What they are is not to be read in the listing of nft 1.0.6; others than `dormant` refuse it altogether.
        asleep=any(kind == "table" and "flags" in body for kind, body in objects),
    )


def _comments(objects: Iterable[tuple[str, Listing]]) -> dict[str, list[str]]:
    """The comments of every chain's rules in their order, by the chain's name."""
    found: dict[str, list[str]] = {}
    for kind, body in objects:
        if kind == "rule":
            found.setdefault(body["chain"], []).append(body.get("comment", ""))
    return found


def _seen(comment: str, intact: Mapping[str, list[Seen]], known: Mapping[str, list[str]]) -> list[Seen]:
    if comment in intact:
        return intact[comment]
    ids = comment.rpartition(" ")[0] or comment or "(without a comment)"
    return [Seen(one, intact=False) for one in known.get(ids, ids.split(_ID_SEPARATOR))]


def _unfused(seen: list[Seen], rules: Sequence[Rule]) -> tuple[Seen, ...]:
    """What was seen, in the order of the rules if the lines stand in theirs."""
    return in_order(seen, [rule.id for line in fused(rules) for rule in line], rules)


def _is_made_as(spec: SetSpec, body: Listing) -> bool:
    flags = body.get("flags", [])
    interval = "interval" in ([flags] if isinstance(flags, str) else flags)
    if body["type"] != f"ipv{spec.family.value}_addr":
        return False
    return interval if spec.counts is None else not interval and body.get("size") == SET_CAPACITY


def _is_base(hook: Hook, body: Listing) -> bool:
    found = (body.get("type"), body.get("hook"), body.get("prio"), body.get("policy"))
    return found == (*BASES[hook], "accept")


def elements(body: Listing) -> Iterator[tuple[Element, Listing]]:
    """The elements of a listed set, each with its counter (empty where it has none)."""
    for entry in body.get("elem", ()):
        inner = entry["elem"] if isinstance(entry, dict) and "elem" in entry else {"val": entry}
        value, counter = inner["val"], inner.get("counter") or {}
        if "size" in body and isinstance(value, str):
            yield Address.parse(value), counter
        else:
            for block in _prefixes(value):
                yield block, counter


def _prefixes(value: Any) -> Iterator[Prefix]:  # noqa: ANN401 - nft's JSON has three shapes of interval
    if isinstance(value, str):
        yield Address.parse(value).prefix
    elif "prefix" in value:
        yield Prefix.parse(f"{value['prefix']['addr']}/{value['prefix']['len']}")
    else:
        low, high = map(Address.parse, value["range"])
        first = low.value
        while first <= high.value:
            size = min(first & -first or 1 << low.family.width, 1 << (high.value - first + 1).bit_length() - 1)
            yield Prefix(low.family, first, low.family.width - size.bit_length() + 1)
            first += size


def counting_sets(desired: Ruleset) -> dict[str, SetSpec]:
    """The sets whose elements are counters, by name."""
    return {spec.name: spec for spec in desired.sets if spec.counts is not None}
