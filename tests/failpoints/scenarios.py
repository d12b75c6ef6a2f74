"""What an agent does in several durable steps: requests, repairs, changes, starts on odd states.

A scenario has to take every durable step of the source (`sites.py`) that a node's agent can take.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from netmgr.dataplane import desired
from netmgr.documents.node import Backend
from netmgr.model import LINK_GROUP, AttachmentKey
from netmgr.prefixes import Family
from tests.chaos.books import Blind
from tests.failpoints.bench import WITH_HOST_PODS, Bench, Scenario
from tests.kernel.conforming import Pod
from tests.kernel.granted import GrantFile, budget
from tests.kernel.namespaces import inside

OFTEN = {"reconcile_seconds": 0.2}
LONG_LOG = 1300
"""Transactions that make a write-ahead log longer than what its owner lets it be."""
DAY = 86400
RANGES, ANOTHER_RANGE = ("10.128.16.0/28", "fd00:128:0:1::/124"), "10.128.16.32/28"
"""What the node has, and what it gets; all of it is listed where a cloud is asked."""
WITH_CLASSES = {"accounting": {"classes": [{"name": "fabric", "prefixes": ["10.64.0.0/16"]}]}}
OTHER_LIMITS = {"limits": [{"pods": "*/*", "internet-out": "50M", "internet-in": "50M"}]}
QUOTAS = {"limits": [{"pods": "*/*", "per-day": {"internet-out": "1M"}, "when-spent": "1M"}]}
BUDGETS = Path(f"/run/netmgr-budgets-{os.getpid()}.json")
WITH_BUDGETS = {"budgets_file": str(BUDGETS), "accounting": {"history_hours": 24}}
BY_METADATA = {"range_source": "azure", "range_refresh_seconds": 1, "ranges": None}


NFTABLES, LINKS = (Backend.NFTABLES,), (Backend.LINKS,)
LEGACY = (Backend.IPTABLES_LEGACY,)
IPTABLES, VARIANT = {"backend": "iptables-legacy"}, {"backend": "iptables-nft"}
AT_LINKS = {"accounting": {"at": "links"}}

SCENARIOS: list[Scenario] = []
Act = Callable[[Bench], object]


def scenario(**keys: Any) -> Callable[[Act], Act]:
    """Have what follows be a scenario with these attributes."""

    def register(act: Act) -> Act:
        SCENARIOS.append(Scenario(act, **keys))
        return act

    return register


def with_the_next_start(name: str, document: dict[str, Any], **keys: Any) -> None:
    """A scenario in which the next start has a document with these keys."""

    def act(_: Bench) -> None:
        pass

    act.__name__ = name
    SCENARIOS.append(Scenario(act, starts=True, document=document, after=document, **keys))


# --- requests -----------------------------------------------------------------------------------


@scenario()
def add(bench: Bench) -> None:
    bench.add()


@scenario()
def delete(bench: Bench) -> None:
    bench.end(next(iter(bench.pods)))


@scenario(shares=True)
def add_again(bench: Bench) -> None:
    """The same container with another sandbox, so that the former attachment goes first."""
    name = next(iter(bench.pods))
    former = bench.forget(name)
    try:
        bench.node.runtime.execute("ADD", former)
        inside(former.netns, "ip", "link", "delete", "eth0")
        bench.node.runtime.execute("ADD", former)
    finally:
        bench.node.runtime.delete(former)


@scenario(shares=True)
def add_that_fails(bench: Bench) -> None:
    """The sandbox has a link of this name already, so everything is taken back."""
    with bench.caller.sandbox() as pod:
        inside(pod.netns, "ip", "link", "add", "eth0", "type", "bridge")
        bench.caller.call("ADD", pod)


@scenario(shares=True)
def add_where_a_link_is_left(bench: Bench) -> None:
    """A link of the attachment's name is there, which no attachment has."""
    with bench.caller.sandbox() as pod:
        key = AttachmentKey(pod.container, pod.ifname)
        link = desired.host_link_name(key)
        made = f"link add {link} type veth peer name other{os.getpid() % 1000}"
        bench.kernel.run("ip", *made.split())
        named = f"link set {link} group {LINK_GROUP} alias"
        bench.kernel.run("ip", *named.split(), f"netmgr {pod.container} eth0 train {pod.container}")
        bench.caller.call("ADD", pod)


@scenario(shares=True)
def add_to_a_sandbox_without_ipv6(bench: Bench) -> None:
    """It is switched on there."""
    with bench.caller.sandbox() as pod:
        for name in ("default", "lo"):
            inside(pod.netns, "sysctl", "-qw", f"net.ipv6.conf.{name}.disable_ipv6=1")
        bench.caller.call("ADD", pod)


@scenario(shares=True)
def further_interface(bench: Bench) -> None:
    """It has rules of its own in the sandbox, which its DEL removes."""
    with bench.caller.sandbox() as pod:
        further = Pod(pod.container, pod.netns, "net1")
        bench.caller.call("ADD", pod)
        bench.caller.call("ADD", further)
        bench.caller.call("DEL", further)


@scenario(shares=True)
def collect_garbage(bench: Bench) -> None:
    with bench.caller.sandbox() as pod:
        bench.caller.call("ADD", pod)
        listed = [Pod(one.container_id, one.netns) for one in bench.pods.values()]
        keys = {"cni.dev/valid-attachments": [one.reference for one in listed]}
        bench.caller.call("GC", version="1.1.0", keys=keys)


@scenario()
def post(bench: Bench) -> None:
    """The ledger posts readings, while pods talk."""
    for _ in range(3):
        time.sleep(0.05)
        bench.node.snapshot()


@scenario(shares=True)
def stop(bench: Bench) -> None:
    bench.node.stop_agent()


# --- repairs ------------------------------------------------------------------------------------


@scenario(document=OFTEN, shares=True, is_blind=True)
def restore_rules(bench: Bench) -> None:
    if bench.kernel.is_nftables:
        bench.kernel.run("nft", "delete", "table", "inet", "netmgr")
    else:
        bench.kernel.run("iptables-legacy", "-t", "mangle", "-F")
        bench.foreign.make_rules()
    _let_it_reconcile()


@scenario(document=OFTEN, shares=True, is_blind=True, backends=LINKS)
def restore_filters(bench: Bench) -> None:
    for link in ("eth0", next(iter(bench.kernel.routes().values()))):
        bench.kernel.run("tc", "qdisc", "delete", "dev", link, "clsact")
    _let_it_reconcile()


@scenario(document=OFTEN, shares=True, is_blind=True, backends=NFTABLES + LINKS)
def wake_table(bench: Bench) -> None:
    bench.kernel.run("nft", "add", "table", "inet", "netmgr", "{ flags dormant; }")
    _let_it_reconcile()


@scenario(document=OFTEN, shares=True)
def restore_wiring(bench: Bench) -> None:
    pod = next(iter(bench.pods.values()))
    address = str(pod.address(Family.V4))
    link = bench.kernel.routes()[address]
    bench.kernel.run("ip", "route", "delete", address)
    bench.kernel.run("ip", "address", "add", "192.0.2.77/32", "dev", link)
    bench.kernel.run("sysctl", "-qw", f"net.ipv6.conf.{link}.accept_ra=1")
    _let_it_reconcile()


@scenario(document=OFTEN, shares=True)
def restore_name(bench: Bench) -> None:
    link = next(iter(bench.kernel.routes().values()))
    for change in (f"{link} down", f"{link} name stolen0", "stolen0 up"):
        bench.kernel.run("ip", "link", "set", *change.split())
    _let_it_reconcile()


@scenario(document=OFTEN, shares=True)
def restore_forwarding(bench: Bench) -> None:
    bench.kernel.run("sysctl", "-qw", "net.ipv4.ip_forward=0")
    _let_it_reconcile()
    bench.kernel.run("sysctl", "-qw", f"net.ipv4.conf.{bench.node.node.uplink}.forwarding=0")
    bench.kernel.run("ip", "route", "flush", "protocol", "110", "type", "blackhole")
    _let_it_reconcile()


@scenario()
def follow_mac(bench: Bench) -> None:
    pod = next(iter(bench.pods.values()))
    shown = inside(pod.netns, "ip", "-o", "link", "show", "eth0")
    former, mac = shown.partition("ether ")[2].split()[0], "02:00:00:00:00:77"
    inside(pod.netns, "ip", "link", "set", "eth0", "address", mac)
    cached = bench.node.runtime._cache_file(pod.container_id)
    cached.write_text(cached.read_text().replace(former, mac))
    time.sleep(0.3)
    inside(pod.netns, "ip", "link", "set", "eth0", "address", former)
    cached.write_text(cached.read_text().replace(mac, former))
    time.sleep(0.3)


@scenario(document=OFTEN, shares=True)
def collect_vanished(bench: Bench) -> None:
    with bench.caller.sandbox() as pod:
        # Killed before it has made the link, an agent leaves none.
        if bench.caller.call("ADD", pod).exit_code == 0:
            inside(pod.netns, "ip", "link", "delete", "eth0")
        _let_it_reconcile()


@scenario(document=OFTEN, shares=True, breaks_limits=True)
def restore_limits(bench: Bench) -> None:
    for table in ("netdev netmgr", "inet netmgr_limits"):
        bench.kernel.run("nft", "delete", "table", *table.split())
    bench.kernel.run("ip", "link", "delete", "netmgr-out")
    bench.kernel.run("ip", "link", "set", "netmgr-in", "down")
    _let_it_reconcile()


@scenario(document=OFTEN, shares=True, breaks_limits=True)
def replace_limits(bench: Bench) -> None:
    """Another program has made something else of the same name."""
    bench.kernel.run("nft", "delete", "table", "inet", "netmgr_limits")
    bench.kernel.run("nft", "add", "table", "inet", "netmgr_limits")
    for name in ("established", "links", "begin", "pods"):
        bench.kernel.run("nft", "add", "set", "inet", "netmgr_limits", name, "{ type ipv4_addr; }")
    _let_it_reconcile()


# Killed before they are restored, nothing has them.
@scenario(document=OFTEN, shares=True, loses_books=True)
def restore_files(bench: Bench) -> None:
    with suppress(OSError):
        shutil.rmtree(bench.state)
    _let_it_reconcile()
    for name in ("ipam", "ledger"):
        path = bench.state / f"{name}.sqlite"
        # Nobody makes the folder again if the agent is dead.
        with suppress(FileNotFoundError):
            path.with_suffix(".other").write_bytes(b"another program's")
            path.with_suffix(".other").replace(path)
            bench.state.chmod(0o755)
    _let_it_reconcile()


@scenario(document=OFTEN, shares=True)
def rewrite_ledger(bench: Bench) -> None:
    """Another program wrote into the ledger's file, which is written whole again."""
    path = bench.state / "ledger.sqlite"
    inode, deadline = path.stat().st_ino, time.monotonic() + 8 * OFTEN["reconcile_seconds"]
    # Again and again, because a sync, which alters the file as well, takes no notice of it.
    while path.stat().st_ino == inode and time.monotonic() < deadline:
        os.utime(path, (1, 1))
        time.sleep(OFTEN["reconcile_seconds"] / 4)
    _let_it_reconcile()


@scenario(document=OFTEN, shares=True)
def shorten_logs(bench: Bench) -> None:
    """Logs that have become long start over."""
    began = time.monotonic()
    for name, row in (("ipam", "facts"), ("ledger", "fact")):
        path, probe = bench.state / f"{name}.sqlite", f"REPLACE INTO {row} VALUES ('probe', ?)"  # noqa: S608  two constants
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("PRAGMA wal_autocheckpoint = 0")
            # A sync for each row takes a minute on a busy disk.
            reader.execute("PRAGMA synchronous = OFF")
            # A reader of the log's beginning keeps it from starting over.
            with closing(sqlite3.connect(path, isolation_level=None)) as beside:
                beside.execute("BEGIN")
                beside.execute("SELECT * FROM sqlite_schema").fetchone()
                for number in range(LONG_LOG):
                    reader.execute(probe, (str(number),))
                _let_it_reconcile()
    _let_it_reconcile()
    # Another program's lock may keep the ledger from writing for a while.
    bench.faults.undurable.append(Blind(began, time.monotonic()))


def _let_it_reconcile() -> None:
    time.sleep(4 * OFTEN["reconcile_seconds"])


@scenario(document=WITH_BUDGETS, shares=True)
def follow_budgets(_: Bench) -> None:
    """The cluster's budgets come, and their rates change."""
    file = GrantFile(BUDGETS, (budget("everyone", "*"),))
    try:
        for rate in (50, 20):
            file.grant({"everyone": rate})
            time.sleep(2)
    finally:
        BUDGETS.unlink()


# --- changes ------------------------------------------------------------------------------------


# Both variants of iptables use the same sets.
with_the_next_start("change_to_iptables", IPTABLES, is_blind=True, backends=NFTABLES)
with_the_next_start("change_to_nftables", {"backend": "nftables"}, is_blind=True, backends=LEGACY)
with_the_next_start("change_variant", VARIANT, is_blind=True, backends=LEGACY)


with_the_next_start("change_to_links", AT_LINKS, is_blind=True, backends=NFTABLES)


@scenario(starts=True, shares=True, is_blind=True, backends=NFTABLES)
def leave_links(bench: Bench) -> None:
    """With the next start, which removes what counted there."""
    bench.write(AT_LINKS)
    bench.start()
    bench.node.wait_until_ready()
    bench.node.kill_agent()


@scenario(starts=True, shares=True, is_blind=True, backends=LEGACY)
def leave_variant(bench: Bench) -> None:
    """With the next start, which removes what only the other variant made."""
    bench.write(VARIANT)
    bench.start()
    bench.node.wait_until_ready()
    bench.node.kill_agent()


with_the_next_start("change_classes", WITH_CLASSES, alters_rules=True)
with_the_next_start("change_limits", OTHER_LIMITS, shares=True)
with_the_next_start("end_limits", {"limits": None}, shares=True)


@scenario(document=OFTEN, after={"ranges": [*RANGES, ANOTHER_RANGE]}, alters_rules=True)
def change_ranges(bench: Bench) -> None:
    """While it runs, by its document."""
    text = bench.node.document.read_text()
    first = f"- {RANGES[0]}\n"
    assert text.count(first) == 1
    bench.node.document.write_text(text.replace(first, f"{first}- {ANOTHER_RANGE}\n"))
    network = ANOTHER_RANGE.partition("/")[0]

    def is_followed() -> bool:
        kernel = bench.kernel
        return all(network in str(held) for held in (kernel.rules().skeleton, kernel.blackholes()))

    bench._wait(lambda: bench._is_dead() or is_followed())


@scenario(starts=True, document=BY_METADATA, after=BY_METADATA, alters_rules=True, shares=True)
def ask_for_ranges(bench: Bench) -> None:
    """The next start asks the cloud's metadata, and writes down what they say."""
    bench.tell_ranges([*RANGES, ANOTHER_RANGE])


@scenario(document={**OFTEN, **WITH_HOST_PODS}, shares=True, is_blind=True)
def count_host_pods(bench: Bench) -> None:
    """Two come, one goes, and their table is taken away."""
    with bench.host_pod("one"):
        _let_it_reconcile()
        with bench.host_pod("two"):
            _let_it_reconcile()
        _let_it_reconcile()
        # Made first, because an agent that is dead by now may not have made it.
        table = "table inet netmgr-host-pods"
        bench.kernel.run("nft", f"add {table}; delete {table}")
        _let_it_reconcile()


@scenario(starts=True, shares=True)
def end_host_pods(bench: Bench) -> None:
    """The document counts them no more from the next start on."""
    with bench.host_pod("one"):
        bench.write(WITH_HOST_PODS)
        bench.start()
        bench.node.wait_until_ready()
        bench.node.kill_agent()


@scenario(document={**OFTEN, **QUOTAS}, shares=True)
def spend_quotas(bench: Bench) -> None:
    """A day's quota is spent, and the next day has another."""
    while len(bench.node.ask("quotas")["spent"]) < len(bench.pods):
        time.sleep(0.05)
    now = time.time()
    bench.clock.set(int(DAY - now % DAY) + 60)
    _let_it_reconcile()
    bench.clock.set(0)
    _let_it_reconcile()


@scenario(document={**OFTEN, **QUOTAS}, shares=True)
def spend_another_programs(bench: Bench) -> None:
    """Another program has quotas be spent, of which the ledger knows what is left; a pod comes."""
    with bench.caller.sandbox() as pod:
        bench.caller.call("ADD", pod)
    listed = bench.kernel.run("nft", "list", "quotas", "table", "netdev", "netmgr")
    for name in re.findall(r"quota (\S+) {", listed):
        spent = f"add quota netdev netmgr {name} {{ over 0 bytes used 0 bytes }}"
        bench.kernel.run("nft", spent)
    _let_it_reconcile()


# --- starts -------------------------------------------------------------------------------------


@scenario(cleans=True, is_blind=True, loses_books=True)
def clean(bench: Bench) -> None:
    """`netmgr host clean` after the last pod."""
    for name in list(bench.pods):
        bench.delete(name)
    bench.kill()
    bench.faults.forgets = True


@scenario(starts=True, shares=True, is_blind=True, loses_books=True)
def first_start(bench: Bench) -> None:
    """On a machine that has nothing of netmgr's."""
    for name in list(bench.pods):
        bench.node.runtime.delete(bench.forget(name))
    bench.clean("netmgr")
    bench.faults.forgets = True


@scenario(starts=True, shares=True, loses_books=True)
def start_without_files(bench: Bench) -> None:
    shutil.rmtree(bench.state)
    shutil.rmtree(bench.node.run_dir)


@scenario(starts=True, shares=True)
def start(bench: Bench) -> None:
    """All is as the predecessor left it."""


@scenario(starts=True, shares=True, loses_books=True)
def start_with_damaged_files(bench: Bench) -> None:
    for name in ("ipam", "ledger"):
        path = bench.state / f"{name}.sqlite"
        path.write_bytes(b"x" * path.stat().st_size)


@scenario(starts=True, shares=True, loses_books=True)
def start_with_another_ledger(bench: Bench) -> None:
    """Another machine's."""
    _write_fact(bench.state / "ledger.sqlite", "books", f"fd{7:014x}")


@scenario(starts=True, shares=True)
def start_with_a_spool(bench: Bench) -> None:
    """DELs wait: one to carry out, one that nobody can, and one that was never written whole."""
    bench.delete(next(iter(bench.pods)))
    spool = bench.state / "spool"
    (spool / "0123456789abcdef.del").write_bytes(b"netmgr-cni 1\0CNI_COMMAND=DEL\0\0no JSON")
    unfinished = spool / ".0123456789abcdef.77"
    unfinished.write_bytes(b"net")
    os.utime(unfinished, (1, 1))


@scenario(starts=True, shares=True)
def start_with_scratch_files(bench: Bench) -> None:
    """Former writers were killed before their files had names."""
    for name in ("rules-backend", "ledger-mark"):
        (bench.state / f".{name}.abcd1234").write_text("half")


def _write_fact(path: Path, key: str, value: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("UPDATE fact SET value = ? WHERE key = ?", (value, key))
