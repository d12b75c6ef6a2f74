"""One preflight: probes what the node document names, from this machine and from its ranges.

It changes the kernel only by the addresses that it holds (`holding`), and has the agent's lock on
the network namespace meanwhile, so that no agent gives one of them to a pod.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from random import Random, SystemRandom

from netmgr.agent.core import instance
from netmgr.agent.core.instance import Holder
from netmgr.agent.core.uplinks import uplinks
from netmgr.agent.health import machine_check
from netmgr.agent.network import known_ranges
from netmgr.agent.network.router import listed_nodes
from netmgr.dataplane import desired
from netmgr.documents import loader
from netmgr.documents.diagnostics import error
from netmgr.documents.node import NodeDocument
from netmgr.documents.preflight import Endpoint
from netmgr.errors import ConfigError, RangesUnknown
from netmgr.kernel import links
from netmgr.kernel.netlink import Netlink
from netmgr.kernel.routes import ANY_TABLE, read_routes
from netmgr.prefixes import Address, Prefix
from netmgr.preflight import dns, results, targets, tcp, throughput
from netmgr.preflight.holding import held
from netmgr.preflight.probing import Prober
from netmgr.preflight.results import Answers, CheckResult, PreflightReport
from netmgr.preflight.targets import Group, GroupKind
from netmgr.ranges.sources import validate

DEFAULT_MTU = 1500

log = logging.getLogger(__name__)


def run(path: Path) -> PreflightReport:
    """Probe what the node document at `path` names.

    Raises:
        ConfigError: it is wrong, or names nothing to be probed.
        Held: another command of netmgr works on this network.
        KernelError: the kernel refused.
        SetupError: privileges are missing.
    """
    document = loader.load(path, NodeDocument)
    # A node that runs pods must not fail, whatever is wrong: their agent has to come back.
    if reason := _why_not(document):
        return PreflightReport(skipped=reason)
    if targets.is_empty(document):
        diagnostic = error("names nothing to probe", ("preflight",), remedy="give peers or a hub")
        raise ConfigError(loader.describe(diagnostic, path))
    try:
        with instance.namespace(Holder.PREFLIGHT):
            machine_check.check(path, document, has_mounts=False)
            # Nodes that start together must not draw the same machines.
            return _probe(document, SystemRandom())
    except instance.Held as other:
        # A command is no sign that the network is fit, and soon ends: the caller tries again.
        if other.holder is not Holder.AGENT:
            raise
        return PreflightReport(skipped=other.message.partition(";")[0])


def _why_not(document: NodeDocument) -> str:
    """Why a node is not probed; empty for one without pods."""
    if not document.cni:
        return "another plugin wires this node's pods"
    with Netlink() as channel:
        # The kernel's links and not the leases: an agent that starts believes them, too.
        pods = sum(map(desired.is_host_end, links.read_links(channel)))
    return f"this node runs {pods} pods" if pods else ""


def _probe(given: NodeDocument, random: Random) -> PreflightReport:
    with Netlink() as channel:
        own = links.read_holders(channel)
        routes = read_routes(channel, table=ANY_TABLE)
        mtus = {link.name: link.mtu for link in links.read_links(channel)}
    of_uplinks = [mtus[name] for name in uplinks(given) if name in mtus]
    mtu = given.mtu or min(of_uplinks, default=DEFAULT_MTU)
    document, wrong = _with_ranges(given)
    groups = targets.groups(document, _listed_nodes(document), own, random)
    # An address with a route of its own may be a pod's, although no link here has it.
    destinations = [route.destination for route in routes]
    single = {prefix.network for prefix in destinations if prefix.is_address}
    sources = targets.held_addresses(document.ranges, {*own, *single})
    with held(set(sources.values())):
        check_results = [*wrong, *_check_machines(document, groups, sources, mtu)]
        attempts = list(targets.egress_sources(document, sources.values()))
        endings = tcp.connect(attempts, document.preflight.answer_seconds)
        check_results += results.of_egress(dict(zip(attempts, endings, strict=True)))
    # From the node's own address: neither needs those of the ranges.
    check_results += _check_dns(document)
    check_results += _check_throughput(document, groups, random)
    return PreflightReport(results=tuple(check_results), unmeasured=document.preflight.unmeasured)


def _with_ranges(document: NodeDocument) -> tuple[NodeDocument, list[CheckResult]]:
    """The document with the ranges that their source has now, and what is wrong with others."""
    ranges = CheckResult("routes", "ranges")
    try:
        valid = validate(known_ranges.ask(document), document, known_ranges.taken_by_node())
    except RangesUnknown as unknown:
        return document, [ranges.unmeasured(unknown.message)]
    remedy = "see to what range_source gives; netmgr node status shows it"
    refused = [ranges.failed(str(fault), remedy) for fault in valid.refused]
    return document.model_copy(update={"ranges": valid.ranges}), refused


def _listed_nodes(document: NodeDocument) -> Iterator[Address]:
    """Addresses of the other nodes on a flat network; none before the list is there."""
    if document.nodes_file is None:
        return
    try:
        for node in listed_nodes(document.nodes_file):
            yield from node.addresses
    except ConfigError as missing:
        log.info("no-nodes reason=%s", missing.message)


def _check_machines(
    document: NodeDocument, groups: Collection[Group], sources: Mapping[Prefix, Address], mtu: int
) -> Iterator[CheckResult]:
    settings = document.preflight
    prober = Prober(settings.exporter_port, settings.answer_seconds)
    answers = prober.answers(machine for group in groups for machine in group.machines)
    yield from (results.of_reach(group, answers, settings.exporter_port) for group in groups)
    # Nothing more can be said of a group that does not answer at all.
    answering = [group for group in groups if answers.of(group)]
    yield from _check_ranges(prober, answering, sources, answers)
    families = {group.family for group in groups if group.knows_ranges}
    for block in sources:
        if block.family not in families:
            message = f"preflight names no IPv{block.family.value} address of a peer or the hub"
            yield CheckResult("routes", str(block)).unmeasured(message)
    paths = prober.path_mtus(answers.by_echo, mtu)
    losses = prober.losses(answers.by_echo)
    for group in answering:
        yield results.of_mtu(group, mtu, paths)
        yield results.of_loss(group, settings.most_loss, losses)


def _check_ranges(
    prober: Prober,
    answering: Iterable[Group],
    sources: Mapping[Prefix, Address],
    answers: Answers,
) -> Iterator[CheckResult]:
    """Whether answers to addresses of the ranges come back."""
    for group in answering:
        if not group.knows_ranges:
            continue
        own = {block: source for block, source in sources.items() if block.family is group.family}
        back = prober.returned(product(answers.of(group), own.values()), answers)
        for block, source in own.items():
            returned = {machine for machine, to in back if to == source}
            yield results.of_range(block, source, group, returned)


def _check_dns(document: NodeDocument) -> Iterator[CheckResult]:
    settings = document.preflight
    if settings.dns_name is None:
        return
    try:
        servers = dns.nameservers(dns.RESOLV_CONF.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        servers = []
    yield results.of_dns(
        settings.dns_name, dns.ask(servers, settings.dns_name, settings.answer_seconds)
    )


def _check_throughput(
    document: NodeDocument, groups: Iterable[Group], random: Random
) -> Iterator[CheckResult]:
    settings = document.preflight
    if settings.least_throughput is None:
        return
    peers = [
        Endpoint(machine, settings.exporter_port)
        for group in groups
        if group.kind is not GroupKind.HUB
        for machine in group.machines
    ]
    floor, patience = settings.least_throughput, settings.throughput_seconds
    yield results.of_throughput(floor, throughput.measure(peers, floor, patience, random))
