"""What several of these tests do: pods talk to the internet, an agent or a command is asked."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest

from netmgr import programs
from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests import legacy_lock
from tests.kernel.namespaces import inside
from tests.lab import named_netns
from tests.lab.exchange import End, datagrams
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET
from tests.lab.world import World
from tests.waiting import PATIENCE, ask_until, eventually

NewPod = Callable[..., Sandbox]
Ends = Mapping[Family, tuple[End, End]]

ROLES: dict[str, dict[str, object]] = {
    "observer": {"cni": False},
    "hub-router": {"role": "hub-router"},
    "nat-host": {
        "role": "nat-host",
        "nat": {
            "source": "preserve",
            "services": [{"vip_range": "10.99.0.0/24", "service_cidr": "10.98.0.0/24"}],
        },
    },
}
"""Keys of node.yaml, without ranges, for agents that run no pods."""
ONLY_NFTABLES = pytest.mark.parametrize("backend", [Backend.NFTABLES], indirect=True, ids=str)

KERNEL_STATE = (
    "ip -o link",
    "ip address",
    "ip route show table all",
    "ip -6 route show table all",
    "nft -s list ruleset",
    "ipset list -n",
    "sysctl net.ipv4.ip_forward net.ipv6.conf.all.forwarding",
)


def kernel_state(namespace: Path) -> list[str]:
    """Of everything that an agent changes."""
    return [inside(namespace, *command.split()) for command in KERNEL_STATE]


def flushing(backend: Backend) -> list[list[str]]:
    """The commands that take away every rule, or what counts at the uplink."""
    if backend is not Backend.IPTABLES_LEGACY:
        at_links = [["tc", "qdisc", "del", "dev", "eth0", "clsact"]]
        return [["nft", "flush", "ruleset"], *(at_links if backend is Backend.LINKS else [])]
    tables = [
        [f"ip{family}tables-legacy", "-t", table]
        for family in ("", "6")
        for table in ("raw", "mangle", "nat")
    ]
    return [[*table, what] for table in tables for what in ("-F", "-X")] + [["ipset", "destroy"]]


def flushing_all(backend: Backend) -> list[list[str]]:
    """As `flushing`; at links what counts at pods as well, and with the last program its maps."""
    listed = "tc qdisc show | awk '$2 == \"clsact\" { print $5 }'"
    ends = f"for link in $({listed}); do tc qdisc del dev $link clsact; done"
    commands = flushing(backend)
    return [*commands[:1], ["sh", "-ec", ends]] if backend is Backend.LINKS else commands


@contextmanager
def own_network(name: str) -> Iterator[Path]:
    """A network namespace of this session's, with nothing but a loopback."""
    path = Path(f"/run/netns/{name}-{os.getpid()}")
    named_netns.create(path)
    try:
        yield path
    finally:
        named_netns.delete(path)


@contextmanager
def agent_kept_from_tables(folder: Path) -> Iterator[str]:
    """Have no repair begin before all is gone; the setting by which iptables-legacy goes on."""
    with Path(os.environ["XTABLES_LOCKFILE"]).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield f"XTABLES_LOCKFILE={folder / 'lock'}"


@contextmanager
def table_of_another_program(node: LabNode) -> Iterator[None]:
    """In place of ours: only the program which made it may change it, and it ends with that."""
    command = ["nsenter", f"--net={node.namespace}", "nft", "--interactive"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        # Printed once the line before is done.
        owner.stdin.write("delete table inet netmgr; add table inet netmgr { flags owner; }\n")
        owner.stdin.write("list table inet netmgr\n")
        owner.stdin.flush()
        while "flags owner" not in owner.stdout.readline():
            pass
        yield
        owner.stdin.close()
        owner.stdout.read()


@contextmanager
def tables_locked_by_another_program(node: LabNode) -> Iterator[None]:
    """And nothing of ours is in them any more."""
    with legacy_lock.held() as environment:
        entered = ["nsenter", f"--net={node.namespace}"]
        tables, programs_of_both = ("raw", "mangle", "nat"), ("iptables-legacy", "ip6tables-legacy")
        for table, command, program in product(tables, ("-F", "-X"), programs_of_both):
            done = programs.run([*entered, program, "-t", table, command], env=environment)
            assert done.returncode == 0, done.stderr
        assert programs.run([*entered, "ipset", "destroy"]).returncode == 0
        yield


UNCHANGEABLE = {
    Backend.NFTABLES: table_of_another_program,
    Backend.IPTABLES_LEGACY: tables_locked_by_another_program,
}
"""Why an agent cannot put back its rules, which are gone."""


@contextmanager
def agent_standing_still(node: LabNode) -> Iterator[None]:
    """Have it neither look, read nor repair until the block ends."""
    agent = node.agent_pid()
    assert agent
    threads = Path(f"/proc/{agent}/task")

    def stands_still() -> bool:
        with suppress(OSError):  # a thread has just ended
            return all(") T " in (thread / "stat").read_text() for thread in threads.iterdir())
        return False

    os.kill(agent, signal.SIGSTOP)
    try:
        eventually(stands_still)
        yield
    finally:
        os.kill(agent, signal.SIGCONT)


@contextmanager
def on_small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 4 MiB and 64 inodes there; a folder of it to use these up with."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m,nr_inodes=64", "netmgr-test", str(folder)]
    assert programs.run(mount).returncode == 0
    try:
        filler = folder / "filler"
        filler.mkdir()
        yield filler
    finally:
        assert programs.run(["umount", str(folder)]).returncode == 0


def use_up_blocks(folder: Path) -> None:
    """Leave no room on the folder's disk; `shutil.rmtree` gives it back."""
    with suppress(OSError), (folder / "room").open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def use_up_inodes(folder: Path) -> None:
    """Leave no new file to the folder's disk."""
    with suppress(OSError):
        for number in count():
            (folder / str(number)).touch()


def goes_on(_: LabNode) -> None:
    """Nothing happens to the agent."""


USE_UP = pytest.mark.parametrize(
    "use_up", [use_up_blocks, pytest.param(use_up_inodes, marks=pytest.mark.slow)]
)
END = pytest.mark.parametrize("end", [goes_on, LabNode.stop_agent, LabNode.kill_agent])
"""A fault is met by an agent that runs, and by one that starts."""


def talk(
    world: World, pod: Sandbox, sizes: Sequence[int] = (100,), families: Iterable[Family] = Family
) -> int:
    """Exchange datagrams of these payloads with the internet; bytes of IP each way."""
    return sum(
        datagrams(
            End(pod.netns, pod.address(family)), End(world.internet, INTERNET[family]), sizes, sizes
        ).forth.bytes
        for family in families
    )


def views(node: LabNode) -> dict[str, list[str]]:
    """The addresses of each pod that is attached."""
    return {item["pod"]: item["addresses"] for item in node.ask("pods")["attachments"]}


def repairs(node: LabNode, reason: str) -> int:
    """How often the agent put something of this kind right."""
    return repaired_of(node.snapshot(), reason)


def repaired_of(snapshot: Mapping[str, Any], reason: str) -> int:
    kinds = snapshot["drift_repaired"]
    return sum(item["count"] for item in kinds if item["reason"] == reason)


def counted(node: LabNode, pod: str) -> dict[str, int]:
    """Bytes that a pod was counted for, by traffic."""
    return {row["traffic"]: row["bytes"] for row in node.snapshot()["pods"] if row["pod"] == pod}


def totals(node: LabNode, pod: Sandbox) -> dict[str, int]:
    return counted(node, pod.pod.name)


def origins(node: LabNode) -> dict[tuple[str, str], int]:
    """Bytes by whose they are and traffic; the first reading of two settles what is shown."""
    node.snapshot()
    return {(row["origin"], row["traffic"]): row["bytes"] for row in node.snapshot()["origins"]}


def gap_counts(node: LabNode) -> dict[str, int]:
    """The gaps that there are, by reason."""
    return {gap["reason"]: gap["count"] for gap in node.snapshot()["gaps"] if gap["count"]}


def grown(before: tuple[int, float], after: tuple[int, float]) -> tuple[int, float]:
    """By how many events and seconds gaps of a kind have grown."""
    return after[0] - before[0], after[1] - before[1]


def netmgr(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command; again while a busy machine keeps the agent from answering in five seconds."""
    command = [sys.executable, "-m", "netmgr", *arguments]
    return ask_until(
        lambda done: "did not answer within" not in done.stderr,
        lambda: subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False
        ),
    )
