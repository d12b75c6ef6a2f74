"""A packet's way past the rules that the fake kernel holds.

Connections are told by their two addresses alone. As in the kernel, translation is decided
by a connection's first packet; its others follow, and replies have it undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from netmgr.model import Counter, Sender
from netmgr.prefixes import Address, Family, Prefix
from netmgr.rules.isolation import pair_counter
from netmgr.rules.model import (
    ECHO_REPLY,
    FRAGMENT_BURST,
    Action,
    Classify,
    Count,
    Drop,
    DropBetween,
    Fragment,
    Hook,
    IcmpOfNobody,
    IcmpOfOthers,
    IcmpType,
    InPrefix,
    InSet,
    Masquerade,
    Match,
    Netmap,
    OneIn,
    OnLink,
    OriginalDirection,
    OriginallyTo,
    Return,
    ReversePath,
    Rewrite,
    Rule,
    Side,
    SourceNat,
    Spoke,
    Tally,
    UdpTo,
)
from tests.fakes.ruleset import Hits, State

SENT_ON = (Hook.BEFORE_SRCNAT, Hook.POSTROUTING, Hook.DEPARTURE)
FORWARDED = (Hook.PREROUTING, Hook.DSTNAT, Hook.FORWARD, *SENT_ON)
RECEIVED = (Hook.PREROUTING, Hook.DSTNAT, Hook.INPUT)
SENT = (Hook.OUTPUT, *SENT_ON)
LOOPED = (*SENT, *RECEIVED)

# Since Linux 5.7 postrouting knows the link that a forwarded packet came in by.
ARRIVING = (Hook.PREROUTING, Hook.DSTNAT, Hook.INPUT, Hook.FORWARD, Hook.BEFORE_SRCNAT)
LEAVING = (Hook.OUTPUT, Hook.FORWARD, *SENT_ON)
NO_ADDRESS = Address(Family.V4, 0)


@dataclass(frozen=True)
class Packet:
    """What the rules can see of a packet.

    `way_back` is the link its source would be routed out of, `own` the address of the link it
    leaves by. `icmp` is its type, `udp` its ports, if it is of either protocol; `port` is whom it
    asks. One that `is_of_nobody` belongs to no connection, one that `is_of_others` to one of no
    pod. One with `fragments` is the last of so
    many that its link sent at once. `elsewhere` translates destinations as kube-proxy on the same
    host does.
    """

    src: Address
    dst: Address
    hooks: tuple[Hook, ...] = FORWARDED
    iif: str = ""
    oif: str = ""
    way_back: str = ""
    length: int = 100
    own: Address | None = None
    icmp: int | None = None
    is_of_nobody: bool = False
    is_of_others: bool = False
    fragments: int = 0
    udp: tuple[int, int] | None = None
    port: int = 80
    elsewhere: Callable[[Address], Address] = lambda address: address


@dataclass(frozen=True)
class Outcome:
    """What became of a packet. `src` and `dst` are the addresses it had in the end."""

    counted: frozenset[Counter] = frozenset()
    dropped_by: str = ""
    masqueraded: bool = False
    src: Address = field(default=NO_ADDRESS, compare=False)
    dst: Address = field(default=NO_ADDRESS, compare=False)


@dataclass
class Connection:
    """Addresses, from and to, of the first packet and of what is expected in answer."""

    original: tuple[Address, Address]
    reply: tuple[Address, Address]
    masqueraded: bool = False


class Passage:
    """One packet on its way."""

    def __init__(self, state: State, connections: list[Connection], packet: Packet) -> None:
        self._state = state
        self._connections = connections
        self._packet = packet
        self._counted: set[Counter] = set()
        self._connection: Connection | None = None
        self._is_new = self._is_reply = False

    def outcome(self) -> Outcome:
        for hook in self._packet.hooks:
            if hook is not Hook.PREROUTING:
                self._track()
            dropped_by = (
                self._translate(hook)
                if hook in (Hook.DSTNAT, Hook.POSTROUTING)
                else self._run(hook)
            )
            if dropped_by:
                return self._ended(dropped_by)
        if self._connection and self._is_new:
            self._connections.append(self._connection)
        return self._ended("")

    def _ended(self, dropped_by: str) -> Outcome:
        masqueraded = bool(self._connection and self._connection.masqueraded)
        return Outcome(
            frozenset(self._counted), dropped_by, masqueraded, self._packet.src, self._packet.dst
        )

    def _track(self) -> None:
        if self._connection is not None:
            return
        addresses = self._packet.src, self._packet.dst
        for known in reversed(self._connections):
            if addresses in (known.original, known.reply):
                self._connection, self._is_reply = known, addresses == known.reply
                return
        self._connection, self._is_new = Connection(addresses, addresses[::-1]), True

    def _translate(self, hook: Hook) -> str:
        connection, packet = self._connection, self._packet
        assert connection is not None
        if self._is_new:
            self._run(hook)
            if hook is Hook.DSTNAT and self._packet.dst == packet.dst:
                self._packet = replace(packet, dst=packet.elsewhere(packet.dst))
            connection.reply = self._packet.dst, self._packet.src
        elif hook is Hook.DSTNAT:
            self._packet = replace(
                packet, dst=connection.original[0] if self._is_reply else connection.reply[0]
            )
        else:
            self._packet = replace(
                packet, src=connection.original[1] if self._is_reply else connection.reply[1]
            )
        return ""

    def _run(self, hook: Hook) -> str:
        """Past the rules of one hook; the counter of the rule that dropped the packet."""
        for rule in self._state.chains.get(hook, ()):
            if rule.family is not self._packet.src.family or not self._matches(rule, hook):
                continue
            if dropped_by := self._hit(rule.action):
                return dropped_by
            match rule.action:
                case Return() | Count(ends=True):
                    break
                case Count(counter):
                    self._counted.add(counter)
                case Rewrite(side, prefix):
                    self._put(side, _moved(_address(self._packet, side), prefix))
                case Classify():
                    self._classify(rule.action)
                case Netmap() | SourceNat() | Masquerade():
                    self._decide(rule.action)
                    break
        return ""

    def _hit(self, action: Action) -> str:
        """Raise the named counter of the action; its name if the packet is dropped."""
        name = ""
        if isinstance(action, DropBetween):
            ends = [spoke_of(action.spokes, _address(self._packet, side)) for side in Side]
            if ends[0] and ends[1] and ends[0] != ends[1]:
                name = pair_counter(ends[0].name, ends[1].name, action.family)
                self._state.counters.setdefault(name, Hits())
        elif isinstance(action, Count | Drop | Tally | Rewrite):
            name = action.name
        if name:
            self._state.counters[name].hit(self._packet.length)
        return name if isinstance(action, Drop | DropBetween) else ""

    def _decide(self, action: Netmap | SourceNat | Masquerade) -> None:
        match action:
            case Netmap(service_cidr):
                self._put(Side.DESTINATION, _moved(self._packet.dst, service_cidr))
            case SourceNat(address):
                self._put(Side.SOURCE, address or self._packet.src)
            case Masquerade():
                assert self._connection is not None
                self._connection.masqueraded = True
                self._put(Side.SOURCE, self._packet.own or self._packet.src)

    def _classify(self, action: Classify) -> None:
        peer, pod = _address(self._packet, action.peer), _address(self._packet, action.pod)
        holding = [
            one.counts
            for one in action.branches
            if any(prefix.holds(peer) for prefix in one.prefixes)
        ]
        for counts in holding or [action.rest]:
            self._look_up(counts, pod)

    def _put(self, side: Side, address: Address) -> None:
        packet = self._packet
        source, destination = (
            (address, packet.dst) if side is Side.SOURCE else (packet.src, address)
        )
        self._packet = replace(packet, src=source, dst=destination)

    def _matches(self, rule: Rule, hook: Hook) -> bool:
        return all(self._match(match, rule, hook) for match in rule.matches)

    def _match(self, match: Match, rule: Rule, hook: Hook) -> bool:  # noqa: PLR0911 - one return per kind of match reads best
        packet = self._packet
        match match:
            case InSet():
                return self._in_set(match)
            case InPrefix(side, prefix, negated):
                return prefix.holds(_address(packet, side)) != negated
            case OnLink():
                return self._on_link(match, hook)
            case ReversePath(negated):
                return (packet.way_back == packet.iif) != negated
            case Fragment() | IcmpType() | IcmpOfNobody() | IcmpOfOthers() | UdpTo():
                return self._is_sent_by(match)
            case OriginalDirection(reply_port_not):
                return not self._is_reply and packet.port != reply_port_not
            case OriginallyTo():
                return self._is_originally_to(match)
            case OneIn(number):
                turn = self._state.turns.get(rule.id, 0)
                self._state.turns[rule.id] = (turn + 1) % number
                return turn == 0

    def _is_sent_by(self, match: Fragment | IcmpType | IcmpOfNobody | IcmpOfOthers | UdpTo) -> bool:
        packet = self._packet
        match match:
            case Fragment(negated, beyond):
                return (packet.fragments > beyond * FRAGMENT_BURST) != negated
            case IcmpType(number):
                return packet.icmp == number
            case IcmpOfNobody(but_replies):
                is_meant = packet.icmp is not None and packet.is_of_nobody
                return is_meant and not (but_replies and packet.icmp in ECHO_REPLY.values())
            case IcmpOfOthers():
                return packet.icmp is not None and packet.is_of_others
            case UdpTo(port):
                return packet.udp is not None and packet.udp[1] == port

    def _on_link(self, match: OnLink, hook: Hook) -> bool:
        packet, name = self._packet, match.name
        is_own = hook is Hook.BEFORE_SRCNAT and Hook.OUTPUT in packet.hooks
        incoming = packet.iif if hook in ARRIVING and not is_own else ""
        outgoing = packet.oif if hook in LEAVING else ""
        link = incoming if match.side is Side.SOURCE else outgoing
        found = link.startswith(name[:-1]) if name.endswith("*") else link == name
        return found != match.negated

    def _is_originally_to(self, match: OriginallyTo) -> bool:
        if (known := self._connection) is None or not match.prefix.holds(known.original[1]):
            return False
        return not (match.redirected and known.reply[0] == known.original[1])

    def _in_set(self, match: InSet) -> bool:
        address = _address(self._packet, match.side)
        if match.by_link:
            found = Sender(self._packet.iif, address) in self._state.sets[match.name].elements
        else:
            found = self._look_up(match.name, address)
        return found != match.negated

    def _look_up(self, name: str, address: Address) -> bool:
        held = self._state.sets[name]
        if held.spec.counts is None:
            return any(prefix.holds(address) for prefix in held.elements)
        if hits := held.elements.get(address):
            hits.hit(self._packet.length)
            self._counted.add(held.spec.counter(address))
        return hits is not None


def spoke_of(spokes: Iterable[Spoke], address: Address) -> Spoke | None:
    holding = (spoke for spoke in spokes if any(prefix.holds(address) for prefix in spoke.prefixes))
    return next(holding, None)


def _address(packet: Packet, side: Side) -> Address:
    return packet.src if side is Side.SOURCE else packet.dst


def _moved(address: Address, prefix: Prefix) -> Address:
    """The address of the same place in the prefix."""
    return Address(prefix.family, prefix.value | address.value & (prefix.size - 1))
