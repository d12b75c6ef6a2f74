"""The ruleset as nft commands.

A hook's base chain leads packets of IPv6 to a chain of their own, so that neither family pays for
the other's rules. A rule that classifies packets by their peer jumps to a chain of its own. There a
few prefixes are compared one after the other; many are looked up in one verdict map, which leads to
a chain for each counting set. So does a rule that drops packets between spokes; `nft_pairs` has its
chain.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import assert_never

from netmgr.prefixes import Address, Family, Prefix
from netmgr.rules import model, nft_chains, nft_pairs, transaction
from netmgr.rules.nft_chains import DIGEST_LENGTH, Base, digest, protocol

TABLE = "inet netmgr"

# Fragments are put together at -400, and connection tracking begins at -200: -450 is before both.
# 320 is behind source translation (100) and the helpers of connection tracking (300). -110 and 90
# are just before kube-proxy's -100 and 100: the first chain that translates a connection decides.
# -150 is mangle's. 99 is behind the filters of postrouting, such as kube-network-policies' at 95.
BASES = {
    model.Hook.PREROUTING: Base("filter", "prerouting", -450),
    model.Hook.DSTNAT: Base("nat", "prerouting", -110),
    model.Hook.INPUT: Base("filter", "input", -150),
    model.Hook.FORWARD: Base("filter", "forward", -150),
    model.Hook.OUTPUT: Base("filter", "output", -150),
    model.Hook.BEFORE_SRCNAT: Base("filter", "postrouting", 99),
    model.Hook.POSTROUTING: Base("nat", "postrouting", 90),
    model.Hook.DEPARTURE: Base("filter", "postrouting", 320),
}

# The most bytes a rule's comment has (NFTNL_UDATA_COMMENT_MAXLEN, less the final zero).
COMMENT_LENGTH = 127

Line = tuple[model.Rule, ...]
"""One or more rules that are one rule to the kernel."""

# Up to so many prefixes are compared, not looked up: a rule costs 20 to 30 ns, a look-up 170.
FEW = 4

ID_SEPARATOR = " + "


def commands(operations: Iterable[transaction.Operation]) -> list[str]:
    """Commands for nft, one a line, that carry the operations out as one transaction."""
    listed = list(operations)
    makes = transaction.CreateSet | transaction.FillChain | transaction.DeclareCounter
    needs_table = any(isinstance(operation, makes) for operation in listed)
    lines = [f"add table {TABLE}"] if needs_table else []
    for operation in listed:
        lines += _lines(operation)
    return lines


def _lines(operation: transaction.Operation) -> list[str]:  # noqa: PLR0911 - one return per kind of operation reads best
    match operation:
        case transaction.DropChain(hook, rules):
            # A chain that something jumps to cannot be deleted, so the one that jumps goes first.
            names = (hook, family_chain(hook), *reversed(class_chains(rules)))
            return [line for name in names for line in nft_chains.delete(TABLE, name)]
        case transaction.FillChain(hook, rules):
            return _fill(hook, rules)
        case transaction.CreateSet(spec):
            return [_create(spec)]
        case transaction.DeleteSet(spec):
            return [f"delete {_kind(spec)} {TABLE} {spec.name}"]
        case transaction.EndFlows(spec, hook, rules):
            # Only a flowtable that no rule names can be deleted. All of it is one transaction, so
            # that no packet misses a rule.
            remade = [f"delete {_kind(spec)} {TABLE} {spec.name}", _create(spec)]
            flushed = [f"flush chain {TABLE} {name}" for name in (hook, family_chain(hook))]
            return [*flushed, *remade, *_fill(hook, rules)]
        case transaction.DeleteOrphan(name, kind):
            is_chain = kind == "chain"
            return nft_chains.delete(TABLE, name) if is_chain else [f"delete {kind} {TABLE} {name}"]
        case (
            transaction.AddElements() | transaction.RemoveElements() | transaction.ReplaceElements()
        ):
            return _changed_elements(operation)
        case transaction.DeclareCounter(name):
            return [f"add counter {TABLE} {name}"]
        case transaction.CountAtLinks():
            return []
    assert_never(operation)


def _changed_elements(
    operation: transaction.AddElements | transaction.RemoveElements | transaction.ReplaceElements,
) -> list[str]:
    match operation:
        case transaction.AddElements(spec, elements, packets=0):
            return _elements("add", spec, elements)
        case transaction.AddElements(spec, elements, packets=packets):
            return _elements("add", spec, elements, f" counter packets {packets} bytes 0")
        case transaction.RemoveElements(spec, elements):
            # Added first, since deleting an element that is not there fails the whole transaction;
            # there is no `destroy` before nft 1.0.7.
            return _elements("add", spec, elements) + _elements("delete", spec, elements)
        case transaction.ReplaceElements(spec, elements):
            # One transaction: no packet meets the empty set.
            return [f"flush set {TABLE} {spec.name}", *_elements("add", spec, elements)]


def _create(spec: model.SetSpec) -> str:
    return f"add {_kind(spec)} {TABLE} {spec.name} {{ {_set_type(spec)} }}"


def _kind(spec: model.SetSpec) -> str:
    return "flowtable" if spec.has_flows else "set"


def _fill(hook: model.Hook, rules: Sequence[model.Rule]) -> list[str]:
    lines = []
    for name, texts in class_chains(rules).items():
        lines += nft_chains.fill(TABLE, name, texts)
    listed = fused(rules)
    of_v4, of_v6 = ([line for line in listed if line[0].family is family] for family in Family)
    comments = list(map(mark, of_v6))
    lines += nft_chains.fill(TABLE, family_chain(hook), list(map(text, of_v6)), comments=comments)
    comments = [lead_mark(hook), *map(mark, of_v4)]
    whole = [_lead(hook), *map(text, of_v4)]
    return lines + nft_chains.fill(TABLE, hook, whole, BASES[hook], comments)


def family_chain(hook: model.Hook) -> str:
    """The chain of a hook's rules of IPv6; its base chain has those of IPv4."""
    return f"{hook}{Family.V6}"


def _lead(hook: model.Hook) -> str:
    return f"meta nfproto ipv6 goto {family_chain(hook)}"


def lead_mark(hook: model.Hook) -> str:
    """The comment of the rule that each base chain begins with."""
    return f"{family_chain(hook)} {digest(_lead(hook))}"


def class_chains(rules: Iterable[model.Rule]) -> dict[str, tuple[str, ...]]:
    """The chains that classifying rules lead to: the texts of their rules, by the chain's name.

    Callees come first.
    """
    chains: dict[str, tuple[str, ...]] = {}
    for rule in rules:
        if isinstance(rule.action, model.Classify):
            chains |= _class_chains(rule.family, rule.action)
        elif isinstance(rule.action, model.DropBetween):
            chains[_entry(rule.action)] = nft_pairs.texts(rule.action)
    return chains


def _class_chains(family: Family, action: model.Classify) -> dict[str, tuple[str, ...]]:
    peer, pod = (f"{protocol(family)} {_field(side)}" for side in (action.peer, action.pod))
    rest, entry = f"{pod} @{action.rest}", _entry(action)
    pieces = [(prefix, branch.counts) for branch in action.branches for prefix in branch.prefixes]
    if len(pieces) <= FEW:
        return {entry: (*_comparisons(pieces, peer, pod), rest)}
    counted = [branch.counts for branch in action.branches]
    counting_chains = {f"count_{counts}": (f"{pod} @{counts}",) for counts in counted}
    verdicts = ", ".join(f"{prefix} : goto count_{counts}" for prefix, counts in sorted(pieces))
    return {**counting_chains, entry: (f"{peer} vmap {{ {verdicts} }}", rest)}


def _comparisons(pieces: Iterable[tuple[Prefix, str]], peer: str, pod: str) -> Iterator[str]:
    for prefix, counts in pieces:
        # A packet of a pod that is counted nowhere is in no set of the rest either, or else stops
        # here.
        yield f"{peer} {prefix} {pod} @{counts} return"


def _entry(action: model.Classify | model.DropBetween) -> str:
    """The chain that the action's rule jumps to."""
    if isinstance(action, model.DropBetween):
        return nft_pairs.chain_name(action)
    # The kernel's names of these chains are older than the word for them here.
    return f"sort_{action.name}"


def fused(rules: Sequence[model.Rule]) -> list[Line]:
    """The rules as the kernel's: counting ones and the pod rule with the same matches are one."""
    # What a packet pays for is finding that its peer is not internal, so that is done once for all.
    lines: list[Line] = []
    counting: dict[tuple[model.Match, ...], int] = {}
    for rule in rules:
        # What ends the chain is the pod rule.
        is_last = isinstance(rule.action, model.Count) and rule.action.ends
        counts = isinstance(rule.action, model.Count | model.Tally) and not is_last
        place = counting.get(rule.matches) if counts else counting.pop(rule.matches[:-1], None)
        if place is not None:
            lines[place] += (rule,)
            continue
        if counts:
            counting[rule.matches] = len(lines)
        lines.append((rule,))
    return lines


def _set_type(spec: model.SetSpec) -> str:
    if spec.pairs:
        return f"type {' . '.join(nft_pairs.KEY_TYPES)}; size {spec.pairs}; flags dynamic;"
    if spec.has_flows:
        return "hook ingress priority 0;"
    if spec.has_links:
        lifetime = f"timeout {model.FRAGMENT_SECONDS}s;"
        return f"type ifname; size {model.SET_CAPACITY}; flags dynamic,timeout; {lifetime}"
    kind = f"type {'ifname . ' * spec.has_senders}ipv{spec.family}_addr;"
    if spec.is_dynamic:
        lifetime = f"timeout {model.DYNAMIC_SECONDS}s;"
        return f"{kind} size {model.DYNAMIC_CAPACITY}; flags dynamic,timeout; {lifetime}"
    if spec.has_prefixes:
        return f"{kind} flags interval;"
    return f"{kind} size {model.SET_CAPACITY};{' counter;' * (spec.counts is not None)}"


def _elements(
    verb: str, spec: model.SetSpec, elements: Collection[model.Element], counter: str = ""
) -> list[str]:
    """The command that adds or deletes these; none without any."""
    listed = ", ".join(f"{element}{counter}" for element in sorted(elements))
    return [f"{verb} element {TABLE} {spec.name} {{ {listed} }}"] if elements else []


def mark(line: Line) -> str:
    """The comment a line is recognised by: the ids of its rules and a digest of its text."""
    return f"{ids_of(line)} {digest(text(line))}"


def ids_of(line: Line) -> str:
    """The ids of a line's rules; what would be too long for a comment ends in a digest instead."""
    ids = ID_SEPARATOR.join(rule.id for rule in line)
    room = COMMENT_LENGTH - DIGEST_LENGTH - 1
    return ids if len(ids) <= room else f"{ids[: room - DIGEST_LENGTH - 1]}-{digest(ids)}"


def text(line: Line) -> str:
    """The line's matches and actions in nft's language."""
    first, *more = line
    parts = [_match_text(match, first) for match in first.matches]
    parts.append(_action_text(first.action, first.family))
    for other in more:
        # The one that looks further is the last: what does not match leaves the rule here.
        if other.matches != first.matches:
            parts.append(_match_text(other.matches[-1], other))
        parts.append(_action_text(other.action, other.family))
    return " ".join(filter(None, parts))


def _action_text(action: model.Action, family: Family) -> str:  # noqa: PLR0911 - one return per kind of action reads best
    match action:
        case model.Count(ends=True):
            return f'counter name "{action.name}" return'
        case model.Count(also_by=(side, name)):
            # Last in the rule, which a packet leaves if the set is full.
            by_address = f"update @{name} {{ {protocol(family)} {_field(side)} counter }}"
            return f'counter name "{action.name}" {by_address}'
        case model.Count() | model.Tally():
            return f'counter name "{action.name}"'
        case model.Drop(name):
            return f'counter name "{name}" drop'
        case model.Offload(flowtable):
            # The kernel takes TCP and UDP (nft_flow_offload_eval), and UDP also without an answer.
            return f"ct state established flow add @{flowtable}"
        case model.Masquerade() | model.SourceNat() | model.Netmap() | model.Rewrite():
            return _translation_text(action, family)
        case model.Continue():
            return ""
        case model.Classify() | model.DropBetween():
            return f"jump {_entry(action)}"
        case model.Return():
            # A packet that counted for a pod in one direction never does in the other.
            return "return"
    assert_never(action)


def _translation_text(
    action: model.Masquerade | model.SourceNat | model.Netmap | model.Rewrite, family: Family
) -> str:
    header = protocol(family)
    match action:
        case model.Masquerade():
            return "masquerade"
        case model.SourceNat(address):
            # To its own: the kernel gives a connection one source, so that no later chain does.
            return f"snat {header} to {address or f'{header} saddr'}"
        case model.Netmap(service_cidr):
            return f"dnat {header} prefix to {service_cidr}"
        case model.Rewrite(side, prefix, name):
            # The kernel corrects the checksums, that of TCP or UDP too
            # (NFT_PAYLOAD_L4CSUM_PSEUDOHDR).
            field, host_bits = f"{header} {_field(side)}", Address(family, prefix.size - 1)
            return f'counter name "{name}" {field} set {field} & {host_bits} | {prefix.network}'


def _match_text(match: model.Match, rule: model.Rule) -> str:  # noqa: PLR0911 - one return per kind of match reads best
    header = protocol(rule.family)
    match match:
        case model.InSet(side, name, negated, by_link):
            field = f"{'iifname . ' * by_link}{header} {_field(side)}"
            return f"{field} {'!= ' * negated}@{name}"
        case model.InPrefix(side, prefix, negated):
            return f"{header} {_field(side)} {'!= ' * negated}{prefix}"
        case model.OnLink(side, name, negated):
            link = "iifname" if side is model.Side.SOURCE else "oifname"
            return "iif != 0" if match == model.FORWARDED else f'{link} {"!= " * negated}"{name}"'
        case model.ReversePath(negated):
            # The way back is looked up for the incoming link alone (`. iif`); without one, the
            # answer is 0.
            return f"fib saddr . iif oif {'' if negated else '!= '}0"
        case (
            model.Fragment()
            | model.IcmpType()
            | model.IcmpOfNobody()
            | model.IcmpOfOthers()
            | model.UdpTo()
        ):
            return _transport_text(match, rule.family)
        case model.OriginalDirection(reply_port_not=0):
            return "ct direction original"
        case model.OriginalDirection(port):
            # The packet's port, where answers come from; nft has no `ct reply proto-src` of any
            # protocol.
            return f"ct direction original @th,16,16 != {port}"
        case model.OriginallyTo(prefix, redirected):
            return f"ct original {header} daddr {prefix}{' ct status dnat' * redirected}"
        case model.OneIn(number):
            return f"numgen inc mod {number} 0"
    assert_never(match)


def _transport_text(
    match: model.Fragment | model.IcmpType | model.IcmpOfNobody | model.IcmpOfOthers | model.UdpTo,
    family: Family,
) -> str:
    kind, protocol_name = ("icmp", "icmp") if family is Family.V4 else ("icmpv6", "ipv6-icmp")
    connection = f"meta l4proto {protocol_name} ct state"
    match match:
        case model.Fragment():
            return _fragment_text(match, family)
        case model.IcmpType(number):
            return f"{kind} type {number}"
        case model.IcmpOfNobody(but_replies):
            besides = f" {kind} type != {model.ECHO_REPLY[family]}" * but_replies
            return f"{connection} invalid{besides}"
        case model.IcmpOfOthers(name):
            ways = ("original", "reply")
            ends = " ".join(f"ct {way} {protocol(family)} saddr != @{name}" for way in ways)
            return f"{connection} related {ends}"
        case model.UdpTo(port):
            return f"udp dport {port}"


def _fragment_text(match: model.Fragment, family: Family) -> str:
    if family is Family.V4:
        # More fragments follow, or this is not the first.
        expression = f"ip frag-off & 0x3fff {'==' if match.negated else '!='} 0"
    else:
        expression = f"exthdr frag {'missing' if match.negated else 'exists'}"
    if not match.beyond:
        return expression
    rate = f"{match.beyond}/second burst {match.beyond * model.FRAGMENT_BURST} packets"
    return f"{expression} update @{match.name} {{ iifname limit rate over {rate} }}"


def _field(side: model.Side) -> str:
    return "saddr" if side is model.Side.SOURCE else "daddr"
