"""Examines a machine for what would keep an agent from working on it, or spoil its work.

Every check only reads, or works in a network namespace of its own. Together they are
`netmgr doctor`, before an installation and after it. An agent logs at its start what the
`STANDING` ones find: they cost milliseconds, and nobody has to ask for them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from cni import installed
from cni.runtimes import DEFAULT_CONF_DIR
from netmgr import descriptors, sqlite_file
from netmgr.agent.core import instance
from netmgr.agent.core.instance import Holder
from netmgr.agent.core.uplinks import uplinks
from netmgr.agent.health import firewall, link_managers, machine_check
from netmgr.api import client
from netmgr.api.gaps import described
from netmgr.api.snapshot import Fault
from netmgr.dataplane import desired, settings
from netmgr.documents import loader
from netmgr.documents.backend import Backend
from netmgr.documents.diagnostics import Severity
from netmgr.documents.node import NodeDocument
from netmgr.errors import KernelError, NetmgrError, StateError
from netmgr.findings import Finding
from netmgr.ipam import store as leases
from netmgr.kernel import conntrack, links, netns, traffic_control, traffic_filters
from netmgr.kernel.capabilities import Capability
from netmgr.kernel.links import VethEnd
from netmgr.kernel.netlink import Netlink
from netmgr.kernel.xtables.variant import Variant
from netmgr.ledger import store as ledger
from netmgr.model import LINK_PREFIX
from netmgr.prefixes import Address, Family
from netmgr.rules.choose import FACTS, ONE_TABLE, open_kind, would_use
from netmgr.rules.engine import Rules
from netmgr.rules.iptables_chains import obstacles
from netmgr.rules.policy import Policy

FULL = 0.8
"""Share of a table or a disk from which there is little room left."""

# Bytes that state needs on its disk: both files, their logs, and copies while they are mended.
LEAST_ROOM = 64 << 20

QUERY_SECONDS = 5.0

_NEIGHBOURS = {Family.V4: ("ipv4", "arp_cache"), Family.V6: ("ipv6", "ndisc_cache")}
_SYS_MODULES = Path("/sys/module")
_PROBE_QUEUE = "probe-ifb"
# The least that IPv6 takes: with less, a link has no IPv6 addresses.
_LEAST_MTU = 1280
_STATISTICS = Path("/proc/net/stat")
_REPAIRED = "an agent repairs it; if it comes back, see which program sets it (sysctl.d)"

log = logging.getLogger(__name__)


Check = Callable[[NodeDocument], Iterator[Finding]]


def examine(path: Path) -> dict[str, list[Finding]]:
    """What each check finds on this machine, by the check's name, for the document at `path`."""
    document, findings = _document(path)
    missing = list(_privileges(document))
    by_check = {"document": findings, "privileges": missing}
    # Without them every further check would find the same again, in other words.
    for name, check in {} if missing else CHECKS.items():
        try:
            by_check[name] = list(check(document))
        except (NetmgrError, OSError) as error:
            by_check[name] = [Finding(Severity.ERROR, f"cannot be examined: {error}")]
    return {name: [replace(finding, check=name) for finding in by_check[name]] for name in by_check}


def _document(path: Path) -> tuple[NodeDocument, list[Finding]]:
    """The document that the machine is examined for, and what is wrong with it."""
    document = assumed()
    if not path.exists():
        missing = Finding(
            Severity.WARNING,
            f"{path} is not there, so the machine is examined for a node with default settings",
            "make it, or name another with --config or NETMGR_CONFIG",
        )
        return document, [missing]
    try:
        document = loader.load(path, NodeDocument)
        machine_check.check(path, document)
    except NetmgrError as error:
        return document, [Finding(Severity.ERROR, line) for line in error.message.splitlines()]
    return document, []


def report(document: NodeDocument) -> None:
    """Log what the `STANDING` checks find; whatever that is, the agent goes on."""
    for name in STANDING:
        try:
            for finding in CHECKS[name](document):
                log.warning(
                    "machine check=%s found=%s remedy=%s", name, finding.message, finding.remedy
                )
        except (NetmgrError, OSError) as error:
            log.warning("machine-not-examined check=%s error=%s", name, error)


def _families(document: NodeDocument) -> tuple[Family, ...]:
    """The families that pods get addresses of; both while their ranges are not known."""
    return document.families or tuple(Family)


def _privileges(document: NodeDocument) -> Iterator[Finding]:
    needed = {Capability.NET_ADMIN, Capability.SYS_ADMIN}
    if document.backend in FACTS:
        # The modules of the legacy tables may be loaded already.
        needed |= {*FACTS[document.backend].capabilities} - {Capability.SYS_MODULE}
    status = Path("/proc/thread-self/status").read_text(encoding="ascii")
    effective = int(status.partition("CapEff:")[2].split()[0], 16)
    missing = [f"CAP_{bit.name}" for bit in sorted(needed) if not effective >> bit & 1]
    if missing:
        lacking = " and ".join(missing)
        yield Finding(Severity.ERROR, f"{lacking} missing: nothing else was examined", "be root")


def _kernel(document: NodeDocument) -> Iterator[Finding]:
    """Have the kernel take a pair of links, and all rules of this document, with one pod's."""
    backend = would_use(document.backend, document.state_dir, document.accounting.at)
    with _scratch_namespace() as descriptor:
        near, far = (VethEnd(f"probe{n}", bytes([2, 0, 0, 0, 0, n]), _LEAST_MTU) for n in (0, 1))
        with Netlink() as channel:
            channel.transact([links.create_veth(near, far, descriptor)])
        with closing(Rules(open_kind(backend), Policy.of(document))) as rules:
            pods = [Address(family, 1) for family in _families(document)]
            rules.know(pods, "default", f"{LINK_PREFIX}probe")
            try:
                rules.apply(rules.plan(pods))
            except NetmgrError as error:
                yield Finding(
                    Severity.ERROR,
                    f"the kernel does not take the rules that {backend} needs: {error}",
                    f"{_missing_modules(backend)}install all modules of this kernel (Debian: "
                    "linux-image-*, Ubuntu: linux-modules-extra-*), or choose another `backend`",
                )
        if document.limits_pods:
            yield from _queues()


def _missing_modules(backend: Backend) -> str:
    """The command that loads what is not there."""
    # A module that is built in may not be listed: loading it does no harm.
    lacking = [module for module in FACTS[backend].modules if not (_SYS_MODULES / module).exists()]
    return f"modprobe -a {' '.join(lacking)}; if that fails, " if lacking else ""


def _queues() -> Iterator[Finding]:
    """Have the kernel make what packets of limited pods wait in."""
    with Netlink() as channel:
        try:
            channel.transact([links.create_ifb(_PROBE_QUEUE)])
            queue = channel.query(links.show_link(_PROBE_QUEUE), links.link_of)
            channel.transact([traffic_control.make_root(queue.number)])
        except KernelError as error:
            yield Finding(
                Severity.ERROR,
                f"the kernel has no IFB links or no HTB, which `limits` need: {error}",
                "modprobe -a ifb sch_htb; without them no pod is limited",
            )


@contextmanager
def _scratch_namespace() -> Iterator[int]:
    """Run the block in a network namespace that is gone afterwards, with all that it holds."""
    with descriptors.closing(netns.unnamed()) as descriptor, netns.entered(descriptor):
        yield descriptor


def _settings(document: NodeDocument) -> Iterator[Finding]:
    with Netlink() as channel:
        identified = ((desired.identity_of(link), link) for link in links.read_links(channel))
        pods = [(identity, link) for identity, link in identified if identity]
    for switch in settings.switched_off(_families(document), document.node.uplink):
        name = settings.name_of(switch)
        if not os.access(switch, os.W_OK):
            yield Finding(
                Severity.ERROR,
                f"packets are not forwarded, and {switch} is read-only",
                f"sysctl -w {name}=1 on the machine, or mount its "
                "/proc/sys/net writable at /host/proc/sys/net",
            )
        # Before there are pods, it is the first start that switches forwarding on.
        elif pods:
            yield Finding(Severity.ERROR, f"pods' packets need {name}=1, and it is not", _REPAIRED)
    for identity, link in pods:
        if lacking := settings.lacking(link, _families(document)):
            yield Finding(
                Severity.ERROR,
                f"{link.name}, the link of pod {identity.pod}, lacks {', '.join(lacking)}",
                _REPAIRED,
            )


def _mtu(document: NodeDocument) -> Iterator[Finding]:
    with Netlink() as channel:
        mtus = {link.name: link.mtu for link in links.read_links(channel)}
    for name in sorted(uplinks(document) & mtus.keys()):
        if document.mtu and document.mtu > mtus[name]:
            yield Finding(
                Severity.WARNING,
                f"pods' packets have up to {document.mtu} bytes, those of {name} "
                f"{mtus[name]}: larger ones are lost where ICMP is",
                "leave `mtu` out of the document, and pods follow the uplink",
            )


def _room(document: NodeDocument) -> Iterator[Finding]:
    tracked = conntrack.occupancy()
    if tracked and tracked.connections > FULL * tracked.most:
        yield Finding(
            Severity.WARNING,
            f"{tracked.connections} of {tracked.most} tracked connections are in use; beyond, "
            "nobody can connect",
            f"sysctl -w net.netfilter.nf_conntrack_max={2 * tracked.most}",
        )
    for family in _families(document):
        directory, table = _NEIGHBOURS[family]
        # Both exist in the machine's own namespace alone, for all namespaces.
        limit = settings.sysctls() / directory / "neigh/default/gc_thresh3"
        if not limit.exists() or not (_STATISTICS / table).exists():
            continue
        most = int(limit.read_text(encoding="ascii"))
        # One line for each processor, all with the number of entries first.
        first = (_STATISTICS / table).read_text(encoding="ascii").splitlines()[1]
        entries = int(first.split()[0], 16)
        if entries > FULL * most:
            yield Finding(
                Severity.WARNING,
                f"{entries} of {most} entries of the IPv{family.value} neighbour table are in use; "
                "beyond, no further machine or pod is reached",
                f"sysctl -w net.{directory}.neigh.default.gc_thresh3={4 * most}",
            )


def _firewall(document: NodeDocument) -> Iterator[Finding]:
    """Chains that drop what they forward, as by docker's policy."""
    if not document.wires_pods:
        return
    for obstacle in firewall.obstacles():
        yield Finding(Severity.WARNING, obstacle.message, obstacle.remedy)


def _order(document: NodeDocument) -> Iterator[Finding]:
    """Rules of others before ours, which the agent moves to the front while it runs."""
    backend = would_use(document.backend, document.state_dir, document.accounting.at)
    if backend is Backend.LINKS:
        yield from _earlier_filters()
    if backend in ONE_TABLE:
        return
    variant = Variant(backend)
    for family in _families(document):
        for table, rule in obstacles(variant.tables(family), family):
            program = f"{variant.program(family)} -t {table}"
            yield Finding(
                Severity.WARNING,
                f"a rule comes before netmgr's, so that packets are not counted or examined: "
                f"{program} -A {rule}",
                f"have its owner append it, or move it behind: {program} -A {rule} && "
                f"{program} -D {rule}",
            )


def _earlier_filters() -> Iterator[Finding]:
    with Netlink() as channel:
        for place in traffic_filters.places(channel):
            filters = traffic_filters.read_filters(channel, place)
            if any(is_ours for is_ours, _ in filters) and not filters[0][0]:
                yield Finding(
                    Severity.WARNING,
                    f"a filter comes before netmgr's, which counts only what it lets pass: {place}",
                    "have its owner give it a priority (`pref`) above 1",
                )


def _plugin(document: NodeDocument) -> Iterator[Finding]:
    """Whether runtimes find the plugin, or whose network they take before one is installed."""
    state_dir = document.state_dir
    if not document.wires_pods:
        return
    if installed.record_path(state_dir).exists():
        try:
            installed.check(state_dir)
        except StateError as error:
            yield Finding(Severity.ERROR, error.message)
        return
    if first := next(iter(installed.networks(DEFAULT_CONF_DIR)), None):
        yield Finding(
            Severity.WARNING,
            f"the plugin is not installed, and runtimes take the network of {first}",
            "move the file away before `netmgr cni install`; drain the node first if it runs pods",
        )


def _state(document: NodeDocument) -> Iterator[Finding]:
    state_dir = document.state_dir
    for name, version in (
        ("ipam.sqlite", leases.SCHEMA_VERSION),
        ("ledger.sqlite", ledger.SCHEMA_VERSION),
    ):
        path = state_dir / name
        if path.exists():
            try:
                with closing(sqlite_file.open_to_read(path)) as connection:
                    sqlite_file.refuse_other_schema(connection, path, version)
            except StateError as error:
                yield Finding(Severity.ERROR, error.message)
    present = next(place for place in (state_dir, *state_dir.parents) if place.exists())
    disk = os.statvfs(present)
    if (free := disk.f_bavail * disk.f_frsize) < LEAST_ROOM:
        yield Finding(
            Severity.ERROR,
            f"{present} has {free >> 20} MiB left; without room for state no pod gets an address",
            f"make room for {LEAST_ROOM >> 20} MiB",
        )


def _agent(document: NodeDocument) -> Iterator[Finding]:
    """What the agent that runs here reports, and whether it is this document's."""
    socket = document.run_dir / "ledger.sock"
    if not socket.exists():
        try:
            with instance.namespace(Holder.DOCTOR):
                return
        except instance.Held as error:
            yield Finding(
                Severity.ERROR,
                f"{error.message.partition(';')[0]}, and {socket} is not there",
                "give --config the document that it runs with; stop it only if it should not run",
            )
            return
    try:
        snapshot = client.read_snapshot(socket, timeout=QUERY_SECONDS)
    except NetmgrError as error:
        remedy = "start the agent, and see its log (`systemctl status netmgr-agent`)"
        yield Finding(Severity.ERROR, error.message, remedy)
        return
    for problem in snapshot.get("problems", ()):
        is_ready = problem["reason"] not in (Fault.NOT_READY, Fault.PLUGIN)
        yield Finding(Severity.WARNING if is_ready else Severity.ERROR, problem["message"])
    for gap in described(snapshot["gaps"]):
        yield Finding(Severity.NOTE, gap, "docs/accounting.md explains each reason")


CHECKS: dict[str, Check] = {
    "kernel": _kernel,
    "settings": _settings,
    "mtu": _mtu,
    "room": _room,
    "firewall": _firewall,
    "order": _order,
    "networkd": link_managers.networkd,
    "network-manager": link_managers.network_manager,
    "udev": link_managers.udev,
    "plugin": _plugin,
    "state": _state,
    "agent": _agent,
}

STANDING = ("mtu", "room", "firewall", "networkd", "network-manager", "udev")
"""What an agent looks at itself; the rest it does or refuses by its own means."""


def assumed() -> NodeDocument:
    """What a machine without a document is examined for: a node with both families."""
    document = {
        "apiVersion": "netmgr.io/v1alpha1",
        "kind": "Node",
        "node": {"name": "node"},
        "ranges": ["10.244.0.0/24", "fd00:10:244::/120"],
    }
    return NodeDocument.model_validate(document)
