"""Has the programs that count run at links, and finds them, and their maps, after a restart.

Filters hold programs, programs hold maps: both outlive the agent.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import product
from typing import NamedTuple

from netmgr.errors import Ignoring, KernelError, LinkRefused
from netmgr.kernel import bpf, traffic_filters
from netmgr.kernel.bpf import BpfMap, BpfProgram
from netmgr.kernel.links import HERE, Link, Links, create_ifb
from netmgr.kernel.netlink import Netlink, Operation
from netmgr.kernel.routes import RTN_UNICAST, Route, read_routes
from netmgr.kernel.traffic_filters import NO_BLOCKS, Blocks, FilterPlace
from netmgr.model import LINK_PREFIX
from netmgr.prefixes import Prefix
from netmgr.rules.at_links import AtLinks
from netmgr.rules.link_programs import (
    ARRIVING,
    ENTERING,
    LEAVING,
    LEAVING_BARE,
    MOST_UPLINKS,
    ONLY_KEY,
    SENDING,
    SHAPES,
    UPLINKS,
    UPLINKS_MAP,
    Peers,
    texts,
)
from netmgr.rules.observed import LinkFault

log = logging.getLogger(__name__)

# Numbers of the blocks that the ways from pods share, and those to pods.
_BLOCKS = (0x6E6E, 0x6E6D)
_OF_PODS = {FilterPlace.block(_BLOCKS[0]): SENDING, FilterPlace.block(_BLOCKS[1]): ARRIVING}
_ETHERNET_ADDRESS_BYTES = 6
# Loopback, pods' links, IFBs, and the probe's link.
_OWN = ("lo ", LINK_PREFIX, "netmgr-")
# In which packets to limited pods wait, which come in by it then (netmgr/limits).
_IFB = "netmgr-in"
# Packets pass the link that these are a part of, and are counted there.
_WHOLES = ("bridge", "bond", "team", "openvswitch")
# What leaves by it passes the link below as well, as of the same pod, and is counted there.
# ipvlan is none: what it routes by itself (l3) passes the link below as this machine's own.
_ABOVE = "macvlan"


class _Lacking(NamedTuple):
    """What the links that are there lack, as of one look."""

    faults: list[LinkFault]
    clsacts: dict[int, Blocks]
    programs: dict[FilterPlace, str]
    uplinks: list[Link]
    ifb: int
    surplus: list[FilterPlace]


class LinkFilters:
    def __init__(self) -> None:
        self._channel = Netlink()
        self._links = Links(self._channel)
        self._programs: dict[str, BpfProgram] = {}
        # Whom these know, what they add to each packet, and whether pods have limits.
        self._known: tuple[Peers, int] = {}, 0
        self._limited = False
        # Uplinks that the programs have no room for, as they were told of last.
        self._unknown = ""

    @cached_property
    def maps(self) -> dict[str, BpfMap]:
        """Those that our filters' programs have, or else new ones."""
        numbers: set[int] = set()
        for place in {*traffic_filters.places(self._channel)}:
            numbers.update(*(program.maps for program in self._ours(place)))
        held = {present.shape: present for present in map(bpf.open_map, numbers)}
        return {shape.name: held.get(shape) or bpf.create_map(shape) for shape in SHAPES}

    def _know(self, peers: Peers, link_layer: int) -> None:
        if (peers, link_layer) != self._known:
            written, maps = texts(peers, link_layer), self.maps.values()
            loaded = {name: bpf.load(f"nm_{name}", written[name], maps) for name in written}
            _close(self._programs)
            self._programs, self._known = loaded, (peers, link_layer)

    def _ours(self, place: FilterPlace) -> Iterator[BpfProgram]:
        for is_ours, number in traffic_filters.read_filters(self._channel, place):
            with Ignoring(errno.ENOENT):
                program = bpf.open_program(number if is_ours else 0)
                os.close(program.descriptor)
                yield program

    def _tag(self, place: FilterPlace, name: str) -> bytes:
        """That of the program there, if it is this one, perhaps for other peers."""
        present, wanted = self._ours(place), self._programs[name]
        same = (own.tag for own in present if (own.name, own.maps) == (wanted.name, wanted.maps))
        return next(same, b"")

    def look(self, pods: Collection[str], at_links: AtLinks, peers: Peers) -> _Lacking:
        """What these pods' links, uplinks and maps lack."""
        self._know(peers, at_links.link_layer)
        self._limited = at_links.limited
        clsacts, present = traffic_filters.read_clsacts(self._channel), self._links.read()
        others = _others(present)
        outside = _outside(read_routes(self._channel), at_links.known, others)
        uplinks = _uplinks(others, outside, at_links)
        self._tell_unknown(uplinks[MOST_UPLINKS:])
        lacking = _Lacking([], {}, {}, uplinks, _ifb(present), [])
        known = self.maps[UPLINKS_MAP].get(ONLY_KEY) or bytes(UPLINKS.size)
        if known != self._packed(lacking):
            lacking.faults.append(LinkFault("the programs knew other uplinks", loses=False))
        idle = _idle(others, uplinks)
        self._examine_idle(lacking, idle, clsacts)
        of_pods = [link for link in present if link.name in pods]
        wanted: dict[FilterPlace, tuple[str, Link]] = {}
        for link, blocks in (*product(uplinks, [NO_BLOCKS]), *product(of_pods, [_BLOCKS])):
            if link.number not in clsacts:
                lacking.clsacts[link.number] = blocks
                lacking.faults.append(LinkFault(f"{link.name}: no clsact", blocks is _BLOCKS))
            programs = self._of_pod(link.number, clsacts.get(link.number, blocks))
            if blocks is NO_BLOCKS:
                programs = _of_uplink(link, idle)
            wanted |= {place: (program, link) for place, program in programs.items()}
        former = {*UPLINKS.unpack(known), *outside}
        for place, (program, link) in wanted.items():
            self._examine(lacking, place, program, link, may_count=link.number in former)
        return lacking

    def _examine(
        self, lacking: _Lacking, place: FilterPlace, program: str, link: Link, *, may_count: bool
    ) -> None:
        tag = self._tag(place, program)
        if tag != self._programs[program].tag:
            lacking.programs[place] = program
            # A new link that leads nowhere outside has carried nothing that counts.
            loses = not tag and (program == ARRIVING or may_count)
            text = f"{link.name}: the filter {program} was missing or altered"
            lacking.faults.append(LinkFault(text, loses))

    def _examine_idle(
        self, lacking: _Lacking, idle: Mapping[FilterPlace, str], clsacts: Collection[int]
    ) -> None:
        for place, link in idle.items():
            if place.link in clsacts and any(self._ours(place)):
                lacking.surplus.append(place)
                text = f"{link}: what left was counted twice"
                lacking.faults.append(LinkFault(text, loses=False))

    def _tell_unknown(self, unknown: Iterable[Link]) -> None:
        names = ",".join(sorted(link.name for link in unknown))
        if names and names != self._unknown:
            # Not as a fault, which nothing could put right.
            log.warning("uplinks-unknown most=%s links=%s", MOST_UPLINKS, names)
        self._unknown = names

    def _packed(self, lacking: _Lacking, refused: Collection[int] = ()) -> bytes:
        """What the programs are to know."""
        known = [link.number for link in lacking.uplinks if link.number not in refused]
        numbers = [*known, *[0] * MOST_UPLINKS][:MOST_UPLINKS]
        return UPLINKS.pack(*numbers, self._limited, lacking.ifb)

    def put(self, pods: Collection[str], at_links: AtLinks, peers: Peers) -> None:
        """Have all be as it should be."""
        if at_links.limited:
            # Before the first limited pod: what this machine sends itself through an IFB that the
            # programs do not know is counted. Where there are none, no pod is limited.
            self._channel.attempt([create_ifb(_IFB)])
        lacking = self.look(pods, at_links, peers)
        refused = self._change(lacking)
        # Only now do programs believe what those before them write down.
        self.maps[UPLINKS_MAP].put(ONLY_KEY, self._packed(lacking, refused))
        _raise(refused.values())

    def join(self, links: Iterable[int]) -> None:
        """Have pods' links count before they are up."""
        wanted = dict.fromkeys(links, _BLOCKS)
        if not wanted:
            return
        # A block comes with the first link that shares it, and goes with the last one.
        puts = self._puts(self._of_pod(0, _BLOCKS))
        refused, clsacts = self._add_clsacts(wanted, puts)
        # Programs that look into packets give each new link a clsact of their own.
        programs: dict[FilterPlace, str] = {}
        for link in wanted.keys() & clsacts.keys():
            programs |= self._of_pod(link, clsacts[link])
        _raise([*refused.values(), *self._channel.attempt(self._puts(programs)).values()])

    def _add_clsacts(
        self, wanted: Mapping[int, Blocks], further: Collection[Operation] = ()
    ) -> tuple[dict[int, KernelError], dict[int, Blocks]]:
        """The links that cannot have one; and once anything failed, those that have, and which."""
        additions = {traffic_filters.add_clsact(*link): link[0] for link in wanted.items()}
        failures = self._channel.attempt([*additions, *further])
        clsacts = traffic_filters.read_clsacts(self._channel) if failures else {}
        # One that has an `ingress` has no way out for filters, and would take them for the way in.
        refused = {
            additions[added]: failures[added]
            for added in additions.keys() & failures
            if additions[added] not in clsacts
        }
        return refused, clsacts

    def _change(self, lacking: _Lacking) -> dict[int, KernelError]:
        """What was refused, by its link."""
        refused, _ = self._add_clsacts(lacking.clsacts)
        programs = lacking.programs
        programs = {place: programs[place] for place in programs if place.link not in refused}
        deletions = list(map(traffic_filters.delete_filter, lacking.surplus))
        puts = dict(zip(self._puts(programs), programs, strict=True))
        failures = self._channel.attempt([*deletions, *puts])
        # What could not be deleted has gone, or the next look finds it again.
        return refused | {puts[put].link: failures[put] for put in puts.keys() & failures.keys()}

    def _puts(self, programs: Mapping[FilterPlace, str]) -> list[Operation]:
        return [
            traffic_filters.put_filter(place, self._programs[name].descriptor, f"netmgr {name}")
            for place, name in programs.items()
        ]

    def remove(self) -> None:
        """Remove the filters; links keep their clsacts (`traffic_filters.remove_unused`)."""
        for place in {*traffic_filters.places(self._channel)}:
            # Without opening their programs, which takes a capability that only agents have.
            if any(is_ours for is_ours, _ in traffic_filters.read_filters(self._channel, place)):
                self._channel.attempt([traffic_filters.delete_filter(place)])

    def close(self) -> None:
        """What counts goes on."""
        self._channel.close()
        _close(self._programs)
        _close(self.__dict__.get("maps", {}))

    def _of_pod(self, link: int, blocks: Blocks) -> dict[FilterPlace, str]:
        """Its programs run in the blocks, unless its clsact is somebody else's."""
        own = FilterPlace.entering(link), FilterPlace.leaving(link)
        return {
            shared if block == shared.parent else place: program
            for place, block, (shared, program) in zip(own, blocks, _OF_PODS.items(), strict=True)
            if program == ARRIVING or self._limited
        }


def _raise(failures: Iterable[KernelError]) -> None:
    for failure in failures:
        # A link may go meanwhile.
        if failure.errno != errno.ENODEV:
            raise LinkRefused(failure.operation, failure.errno, failure.details)


def _close(opened: Mapping[str, BpfMap | BpfProgram]) -> None:
    for held in opened.values():
        os.close(held.descriptor)


def _others(present: Iterable[Link]) -> list[Link]:
    """Those that may be uplinks."""
    return [link for link in present if not f"{link.name} ".startswith(_OWN)]


def _outside(
    routes: Iterable[Route], known: Collection[Prefix], others: Iterable[Link]
) -> set[int]:
    """Links with routes that lead to the internet, and those that count for them."""
    outside = {
        route.oif
        for route in routes
        if route.kind == RTN_UNICAST
        and not any(prefix.covers(route.destination) for prefix in known)
    }
    return outside.union({_below(link) for link in others if link.number in outside} - {0})


def _below(link: Link) -> int:
    """The link below it that counts what leaves by it; 0 for none."""
    return link.peer if link.kind == _ABOVE and link.peer_netns == HERE else 0


def _idle(others: Collection[Link], uplinks: Iterable[Link]) -> dict[FilterPlace, str]:
    """Where nothing is to count, as what leaves passes another link, too; the links' names."""
    wholes = {link.number for link in others if link.kind in _WHOLES}
    numbers = {link.number for link in uplinks}
    return {
        FilterPlace.leaving(link.number): link.name
        for link in others
        if link.master in wholes or _below(link) in numbers
    }


def _uplinks(others: Collection[Link], outside: Collection[int], at_links: AtLinks) -> list[Link]:
    """Links that are no pods': those that lead outside, or all."""
    # A route by several links (0) names none; classes count what is internal, too; and what comes
    # back from an IFB does not say by which link it came in.
    everything = bool(at_links.classes) or at_links.limited or 0 in outside
    wholes = {link.number for link in others if link.kind in _WHOLES}
    uplinks = [
        link
        for link in others
        if (everything or link.number in outside) and link.up and link.master not in wholes
    ]
    # The programs know the first of them.
    return sorted(uplinks, key=lambda link: link.number not in outside)


def _ifb(present: Iterable[Link]) -> int:
    return next((link.number for link in present if link.name == _IFB), 0)


def _of_uplink(link: Link, idle: Collection[FilterPlace]) -> dict[FilterPlace, str]:
    leaving = LEAVING if len(link.mac) == _ETHERNET_ADDRESS_BYTES else LEAVING_BARE
    entry, exit_ = FilterPlace.entering(link.number), FilterPlace.leaving(link.number)
    return {entry: ENTERING} if exit_ in idle else {entry: ENTERING, exit_: leaving}
