"""The agent does all its work with exactly the capabilities that the manifests add, and in vain
with any fewer.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from netmgr.api.client import read_snapshot
from netmgr.documents.node import Backend
from netmgr.errors import NetmgrError
from netmgr.prefixes import Family
from tests.fakes.kustomize import added
from tests.kernel.conftest import EVERY_WAY_OF_COUNTING
from tests.kernel.namespaces import inside
from tests.lab import exchange
from tests.lab.errors import LabError
from tests.lab.nodes import LabNode
from tests.lab.topology import INTERNET, cluster
from tests.lab.unprivileged import NOBODY
from tests.lab.world import World
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.root, pytest.mark.slow]

READ_ONLY_SYSCTLS = (
    'mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec "$@"'
)
AT_ONCE_SECONDS = 3.0
"""In which a changed MAC is not followed by the reconciliation, which is further off."""


def bounded(capabilities: Iterable[str]) -> list[str]:
    """A command that gives another these capabilities alone."""
    powers = ",".join(["-all", *(f"+{capability}" for capability in capabilities)])
    return ["setpriv", "--no-new-privs", f"--bounding-set={powers}"]


@contextmanager
def confined(
    node: LabNode, capabilities: Iterable[str], *mounts: str
) -> Iterator[subprocess.Popen[bytes]]:
    """The node's agent with these capabilities alone, started by the command `mounts`."""
    inside = ["nsenter", f"--net={node.namespace}", *mounts, *bounded(capabilities)]
    agent = [sys.executable, "-m", "netmgr", "agent", "--config", str(node.document)]
    with (node.directory / "agent.log").open("ab") as log:
        process = subprocess.Popen([*inside, *agent], stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE)


def log_of(node: LabNode) -> str:
    return (node.directory / "agent.log").read_text()[-2000:]


@pytest.fixture(scope="module")
def node(backend: Backend) -> Iterator[LabNode]:
    settings = {"reconcile_seconds": 3600}
    name = f"capable-{os.getpid()}"
    room = cluster(nodes=1, pods=0)
    with World(room, backend=backend, name=name, exporters=False, settings=settings) as world:
        world.nodes[0].stop_agent()  # it has switched forwarding on, which an init container does
        yield world.nodes[0]


def ready(node: LabNode, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        if not node.status():
            return True
        time.sleep(0.05)
    return False


def counted(node: LabNode) -> set[tuple[str, int]]:
    return {(row["pod"], row["bytes"]) for row in node.snapshot()["pods"]}


def serves(node: LabNode, process: subprocess.Popen[bytes]) -> bool:
    """Whether a pod comes, talks to the internet, is counted, is read of by the exporter's user,
    and goes.
    """
    if not ready(node, process):
        return False
    try:
        sandbox = node.add(f"pod-{time.monotonic_ns()}")
    except LabError:
        return False
    try:
        with exchange.open_socket(sandbox.netns, Family.V4, socket.SOCK_DGRAM) as pod:
            pod.sendto(b"x" * 100, (str(INTERNET[Family.V4]), 9000))
        eventually(lambda: (sandbox.pod.name, 128) in counted(node))
        node.runtime.check(sandbox)
        return node.ledger_socket.stat().st_gid == NOBODY
    except NetmgrError:
        return False
    finally:
        node.runtime.delete(sandbox)


@pytest.mark.parametrize("backend", EVERY_WAY_OF_COUNTING, indirect=True, ids=str)
def test_the_agent_needs_no_more_than_the_manifest_adds(node: LabNode):
    with confined(node, added("cni", "netmgr")) as process:
        assert serves(node, process), log_of(node)


@pytest.mark.parametrize("backend", [Backend.NFTABLES], indirect=True, ids=str)
def test_the_agent_starts_where_sysctls_are_read_only_once_forwarding_is_on(node: LabNode):
    read_only = ("unshare", "--mount", "sh", "-c", READ_ONLY_SYSCTLS, "sh")
    with confined(node, added("cni", "netmgr"), *read_only) as process:
        assert ready(node, process), log_of(node)


@pytest.mark.parametrize(
    ("backend", "missing"),
    [
        *product([Backend.NFTABLES], ("net_admin", "sys_admin", "net_raw", "chown")),
        *product([Backend.IPTABLES_LEGACY, Backend.IPTABLES_NFT], ["net_raw"]),
        *product([Backend.LINKS], ("net_admin", "sys_admin")),
    ],
    indirect=["backend"],
    ids=str,
)
def test_the_manifest_adds_nothing_that_the_agent_could_do_without(
    node: LabNode, backend: Backend, missing: str
):
    capabilities = added("cni", "netmgr")
    assert missing in capabilities
    assert len(capabilities) == 5
    # The raw socket is iptables'. Without it, others' legacy tables are not read.
    does_without = missing == "net_raw" and backend is Backend.NFTABLES
    with confined(node, [each for each in capabilities if each != missing]) as process:
        assert serves(node, process) is does_without


def follows_a_changed_mac(node: LabNode, seconds: float) -> bool:
    sandbox = node.add(f"pod-{time.monotonic_ns()}")
    mac = "02:00:00:00:0d:01"
    try:
        inside(sandbox.netns, "ip", "link", "set", "eth0", "address", mac)
        permanent = ("ip", "neigh", "show", "nud", "permanent")
        eventually(lambda: mac in inside(node.namespace, *permanent), seconds=seconds)
    except AssertionError:
        return False
    else:
        return True
    finally:
        node.runtime.delete(sandbox)


@pytest.mark.parametrize("backend", [Backend.NFTABLES], indirect=True, ids=str)
@pytest.mark.parametrize("missing", ["", "net_broadcast"])
def test_a_changed_mac_is_followed_at_once_with_one_capability_more(node: LabNode, missing: str):
    capabilities = added("cni", "netmgr")
    with confined(node, [each for each in capabilities if each != missing]) as process:
        assert serves(node, process), log_of(node)
        seconds = AT_ONCE_SECONDS if missing else PATIENCE / 2
        assert follows_a_changed_mac(node, seconds) is not bool(missing)


@pytest.mark.parametrize("backend", [Backend.NFTABLES], indirect=True, ids=str)
def test_the_plugin_is_installed_with_no_more_than_the_manifest_adds(node: LabNode):
    folder = node.directory / "elsewhere"
    where = [f"--{key}-dir={folder / key}" for key in ("bin", "conf", "run", "state")]
    install = [sys.executable, "-m", "netmgr", "cni", "install", "--host-root=/", *where]

    def is_installed(capabilities: list[str]) -> bool:
        command = [*bounded(capabilities), *install]
        return not subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode

    capabilities = added("cni", "netmgr", "plugin")
    assert capabilities == ["sys_chroot"]
    assert not is_installed([])
    assert not folder.exists()
    assert is_installed(capabilities)
    assert (folder / "conf" / "10-netmgr.conflist").exists()


@pytest.mark.parametrize(("options", "rules"), [("rw", "/etc/tmpfiles.d"), ("ro", "None")])
def test_boots_keep_the_plugin_announced_where_no_rule_can_be_written(options: str, rules: str):
    mount = f'mount --bind /etc /etc && mount -o remount,bind,{options} /etc && exec "$@"'
    ask = (sys.executable, "-c", "from cni import in_pod; print(in_pod.boot_rules())")
    command = ["unshare", "--mount", "sh", "-c", mount, "sh", *ask]
    assert (
        subprocess.run(command, check=True, capture_output=True, text=True).stdout == f"{rules}\n"
    )


NAT_HOST = {
    "role": "nat-host",
    "site": "a",
    "sites": [
        {"name": "hub", "prefixes": ["10.200.0.0/16"]},
        {"name": "a", "prefixes": ["10.0.0.0/9"], "services": ["100.64.0.0/24"]},
    ],
    "nat": {"services": [{"vip_range": "100.64.0.0/24", "service_cidr": "172.20.0.0/24"}]},
}


def is_ready(ledger: Path) -> bool:
    try:
        return read_snapshot(ledger, timeout=PATIENCE)["ready"]
    except NetmgrError:
        return False


@contextmanager
def beside(node: LabNode, document: dict[str, Any], capabilities: list[str]) -> Iterator[Path]:
    """An agent of another document in the node's namespace, with a state of its own; its reader's
    socket.
    """
    folder = node.directory / f"beside-{time.monotonic_ns()}"
    folder.mkdir()
    given = yaml.safe_load(node.document.read_text())
    kept = {key: given[key] for key in ("apiVersion", "kind", "node", "reader_group", "backend")}
    places = {"state_dir": str(folder / "state"), "run_dir": str(folder / "run")}
    (folder / "node.yaml").write_text(yaml.safe_dump({**kept, **places, **document}))
    beside_it = replace(node, directory=folder)
    with confined(beside_it, capabilities) as process:
        ledger = folder / "run" / "ledger.sock"
        eventually(lambda: is_ready(ledger) and process.poll() is None, lambda: log_of(beside_it))
        yield ledger


OBSERVER = {"cni": False, "cni_results_dir": "/run/no-results"}


@pytest.mark.parametrize(
    ("overlay", "daemon_set", "document"),
    [("observer", "netmgr", OBSERVER), ("nat-host", "netmgr-nat-host", NAT_HOST)],
    ids=["observer", "NAT host"],
)
def test_an_observer_and_a_nat_host_need_fewer(
    node: LabNode, overlay: str, daemon_set: str, document: dict[str, Any]
):
    capabilities = added(overlay, daemon_set)
    assert "sys_admin" not in capabilities
    with beside(node, document, capabilities) as ledger:
        assert is_ready(ledger)
