"""Keeps the devices of our flowtable, and looks for other programs' flowtables.

Packets skip the rules only where they come in by a device of the flowtable: the pods' links and the
uplinks. A flowtable of another program takes packets past our counters, too, and past everybody's
filters.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Iterable, Mapping
from dataclasses import replace

from netmgr.agent.accounting.accounting import NodeAccounting
from netmgr.agent.core.components import Agent, Component
from netmgr.agent.core.scheduler import Task
from netmgr.agent.core.uplinks import uplinks
from netmgr.api.snapshot import Fault, Problem, Snapshot
from netmgr.documents.node import NodeDocument
from netmgr.errors import Ignoring, NotReady
from netmgr.kernel import flowtables
from netmgr.kernel.flowtables import Flowtable
from netmgr.kernel.nf_tables_socket import NftSocket
from netmgr.printable import shortened
from netmgr.rules.engine import RuleBackend
from netmgr.rules.nft_text import TABLE
from netmgr.rules.policy import FLOWTABLE

_FOLLOW_SECONDS = 1.0
MOST_PODS = 1500
"""The kernel lists no flowtable whose devices take more than 32 KiB: some 1,600."""

log = logging.getLogger(__name__)


class FlowtableDevices(Component):
    """The devices of the flowtable, if the rules fill one."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._channel = agent.stack.enter_context(NftSocket())
        self._off = why_off(agent.document, agent.get(NodeAccounting).rules.backend)
        self._uplinks: frozenset[str] = frozenset()
        self._devices: frozenset[str] = frozenset()
        self._others: list[Flowtable] = []

    def reconcile(self) -> None:
        self._agent.health.attempt("flowtable", self._look)

    def tasks(self) -> Iterable[Task]:
        # A new link is not added by its ADD: until then its packets meet the rules, which costs
        # time and nothing else. A change of the rules makes the flowtable anew, without devices.
        if not self._off:
            yield Task(self._follow, _FOLLOW_SECONDS, name="flowtable")

    def health(self, _failing: Mapping[str, str]) -> None:
        # A node that only counts must not claim to be ready while packets pass its counters.
        if self._others and not self._agent.document.cni:
            raise NotReady(f"pods are not counted completely: {_past_the_rules(self._others[0])}")

    def problems(self) -> Iterable[Problem]:
        if self._others:
            message = shortened([_past_the_rules(flowtable) for flowtable in self._others])
            remedy = "have its program leave out pods' links and the uplink"
            yield {"reason": Fault.FLOWTABLE, "message": f"{message}; {remedy}"}

    def snapshot(self, snapshot: Snapshot) -> None:
        snapshot["flowtable"] = {"links": len(self._devices), "off": self._off}

    def _look(self) -> None:
        self._uplinks = uplinks(self._agent.document)
        self._follow()

    def _follow(self) -> None:
        pods = {attachment.host_link for attachment in self._agent.attachments()}
        present = flowtables.read_flowtables(self._channel)
        foreign = [flowtable for flowtable in present if flowtable.table != TABLE]
        ours = pods | self._uplinks
        self._report([flowtable for flowtable in foreign if flowtable.has_any(ours)])
        # Further pods' packets meet the rules, which costs time and nothing else.
        wanted = self._uplinks.union(sorted(pods)[:MOST_PODS])
        for flowtable in present:
            if (flowtable.table, flowtable.name) == (TABLE, FLOWTABLE.name):
                self._devices = flowtable.devices
                if flowtable.devices != wanted:
                    self._adapt(flowtable, wanted)

    def _report(self, others: list[Flowtable]) -> None:
        for flowtable in others:
            if flowtable not in self._others:
                log.warning("foreign-flowtable what=%s", _past_the_rules(flowtable))
        self._others = others

    def _adapt(self, flowtable: Flowtable, wanted: frozenset[str]) -> None:
        # Listed only now: the kernel takes milliseconds for hundreds of links.
        present = frozenset(name for _, name in socket.if_nameindex())
        missing = present & wanted - flowtable.devices
        # Since Linux 6.16 a link that goes leaves its name behind, for the next one of that name.
        gone = flowtable.devices - wanted
        changes = [
            *flowtables.add_devices(replace(flowtable, devices=missing)),
            *flowtables.remove_devices(replace(flowtable, devices=gone)),
        ]
        # A link may go meanwhile; the next look comes within a second.
        with flowtables.DEVICES, Ignoring(errno.ENOENT):
            if changes:
                self._channel.commit(changes)
                self._devices = flowtable.devices - gone | missing


def why_off(document: NodeDocument, backend: RuleBackend) -> str:
    """Why the rules fill no flowtable; empty if they do."""
    if not document.flowtable:
        return "node.yaml has flowtable: off"
    if not document.wires_pods:
        return "another plugin wires the pods"
    at_links = backend.abilities.counts_at_links
    if document.traffic_classes and not at_links:
        return "accounting.classes count internal packets, too"
    if backend.name != "nftables" and not at_links:
        return f"{backend.name} has none"
    if not backend.abilities.flowtables:
        return "this kernel has none (CONFIG_NF_FLOW_TABLE_INET, CONFIG_NFT_FLOW_OFFLOAD)"
    return ""


def _past_the_rules(flowtable: Flowtable) -> str:
    return f"flowtable {flowtable} takes packets past the rules, so that they are not counted"
