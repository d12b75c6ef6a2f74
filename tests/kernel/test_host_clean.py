"""`netmgr host clean` leaves a machine as it was before its agent, and nothing of anybody else's is
touched.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from netmgr.documents.node import Backend
from netmgr.errors import Ignoring
from netmgr.kernel import bpf, traffic_filters
from netmgr.kernel.bpf import BpfMap, BpfProgram
from netmgr.kernel.netlink import Netlink
from netmgr.rules.choose import FACTS, FILE_NAME
from tests.fakes.kustomize import build
from tests.kernel.namespaces import inside
from tests.kernel.usable import wait_until_usable
from tests.lab import wiring
from tests.lab.nodes import LabNode
from tests.lab.topology import cluster
from tests.lab.world import World
from tests.waiting import eventually

pytestmark = [pytest.mark.root, pytest.mark.slow]

UNINSTALL = Path(__file__).parents[2] / "configs" / "kubernetes" / "overlays" / "uninstall"
FOREIGN = (
    "nft add table inet other",
    "nft add set inet other names { type ipv4_addr; }",
    "iptables-legacy -t mangle -A FORWARD -m comment --comment another -j ACCEPT",
    "ipset create others hash:ip",
    "ip link add other type veth peer name beside",
    "ip link set other up",
    "ip route add 192.0.2.0/24 dev other",
)
FAMILIES = ("iptables-legacy-save", "ip6tables-legacy-save")


@pytest.fixture(params=FACTS, ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    return request.param


@pytest.fixture
def world(backend: Backend, lab_name: str) -> Iterator[World]:
    rates = {"internet-in": "100M", "internet-out": "100M"}
    connections = {"at-once": 1000, "new-per-second": 1000}
    limited = {"limits": [{"namespaces": "*", **rates, "connections": connections}]}
    made = World(
        cluster(nodes=1, pods=2), backend=backend, name=lab_name, exporters=False, settings=limited
    )
    try:
        made.build()
        wiring.wait_until_up(made.topology, made.directory / "netns")
        with wiring.inside(made.nodes[0].namespace):
            wait_until_usable()  # so that no route comes by itself meanwhile
        yield made
    finally:
        made.down()


def run(node: LabNode, command: str) -> str:
    return inside(node.namespace, *command.split())


def agent_was_there(node: LabNode) -> None:
    node.write_document()
    node.install_plugin()
    node.start_until_ready()
    node.stop_agent()


def everything(node: LabNode) -> dict[str, list[str]]:
    saved = [line for program in FAMILIES for line in run(node, program).splitlines()]
    ours = re.compile("-A|:.*NETMGR")
    return {
        "nftables": _without_empty(run(node, "nft -s list ruleset")).splitlines(),
        "iptables": [line for line in saved if ours.match(line)],
        "ipset": run(node, "ipset list -n").splitlines(),
        "links": [line.split()[1] for line in run(node, "ip -o link").splitlines()],
        "qdiscs": run(node, "tc qdisc show").splitlines(),
        "routes": run(node, "ip route show table all").splitlines(),
        "routes6": run(node, "ip -6 route show table all").splitlines(),
    }


def _without_empty(ruleset: str) -> str:
    """Without built-in chains that have no rule: iptables-nft makes them, and they stay."""
    ruleset = re.sub(r"\tchain [A-Z]+ \{\n\t\ttype .*; policy accept;\n\t\}\n\n?", "", ruleset)
    return re.sub(r"table ip6? [a-z]+ \{\n\}\n", "", ruleset)


def drift(before: dict[str, list[str]], after: dict[str, list[str]]) -> list[str]:
    return [
        f"{kind}: {line}"
        for kind in before
        for line in sorted({*before[kind]} ^ {*after[kind]})
        if not line.startswith("anycast")  # the kernel's own, of forwarding, which stays on
    ]


def clean(
    node: LabNode, *options: str, elsewhere: Path | None = None
) -> subprocess.CompletedProcess[str]:
    state, sockets = elsewhere or node.directory / "state", elsewhere or node.run_dir
    powers = ",".join(["-all", *(f"+{name.lower()}" for name in capabilities())])
    confined = ["setpriv", "--no-new-privs", f"--bounding-set={powers}"]
    where = [f"--state-dir={state}", f"--run-dir={sockets}", "--rule-owner=lab-owner"]
    command = [sys.executable, "-m", "netmgr", "host", "clean", *where, *options]
    entered = ["nsenter", f"--net={node.namespace}", *confined, *command]
    return subprocess.run(entered, check=False, capture_output=True, text=True)


def assert_cleaned(node: LabNode, before: dict[str, list[str]], *options: str) -> str:
    done = clean(node, *options)
    assert done.returncode == 0, done.stderr
    assert not drift(before, everything(node))
    return done.stdout


def capabilities() -> list[str]:
    """Those that the manifests give this command."""
    (uninstall,) = [item for item in build(UNINSTALL) if item["kind"] == "DaemonSet"]
    first = uninstall["spec"]["template"]["spec"]["initContainers"]
    (container,) = [item for item in first if item["name"] == "clean"]
    return list(container["securityContext"]["capabilities"]["add"])


def test_rules_of_a_backend_that_the_mark_does_not_name_go_too(
    world: World, backend: Backend
) -> None:
    """As an agent leaves them that is killed while it changes its backend: the mark names the
    former one.
    """
    (node,) = world.nodes
    before = everything(node)
    agent_was_there(node)
    former = Backend.NFTABLES if backend is not Backend.NFTABLES else Backend.IPTABLES_LEGACY
    (node.directory / "state" / FILE_NAME).write_text(f"{former}\n")
    assert_cleaned(node, before)


@pytest.mark.parametrize(
    "backend", [Backend.NFTABLES, Backend.IPTABLES_LEGACY], indirect=True, ids=str
)
def test_what_others_have_of_another_variant_keeps_nothing_of_ours(world: World) -> None:
    (node,) = world.nodes
    run(node, "nft add table ip mangle")
    run(node, "nft add chain ip mangle FORWARD { type filter hook forward priority -150; }")
    run(node, "nft add rule ip mangle FORWARD ct state { new, related } drop")
    before = everything(node)
    agent_was_there(node)
    said = assert_cleaned(node, before)
    assert "iptables-nft, which the agent did not use last, was not looked into: " in said


def counting_at_links(node: LabNode) -> list[Callable[[], BpfProgram | BpfMap]]:
    """What opens each program that counts there, and each of their maps."""
    with wiring.inside(node.namespace), Netlink() as channel:
        places = {*traffic_filters.places(channel)}
        filters = [traffic_filters.read_filters(channel, place) for place in places]
    numbers = {number for listed in filters for _, number in listed}
    programs = list(map(bpf.open_program, numbers))
    for program in programs:
        os.close(program.descriptor)
    maps = {number for program in programs for number in program.maps}
    openers = ((bpf.open_program, numbers), (bpf.open_map, maps))
    return [partial(opener, number) for opener, listed in openers for number in listed]


def is_there(opener: Callable[[], BpfProgram | BpfMap]) -> bool:
    with Ignoring(errno.ENOENT):
        os.close(opener().descriptor)
        return True
    return False


def test_a_machine_is_left_as_it_was(world: World, backend: Backend, tmp_path: Path):
    (node,) = world.nodes
    for command in FOREIGN:
        run(node, command)
    before = everything(node)
    node.write_document()
    document = yaml.safe_load(node.document.read_text())
    document["accounting"]["rule_owner"] = "lab-owner"
    node.document.write_text(yaml.safe_dump(document))
    node.install_plugin()
    node.start_until_ready()
    node.add("pod-1")
    # As a document with more in it would have made.
    run(node, "nft add table inet netmgr-host-pods")
    assert everything(node) != before
    at_links = counting_at_links(node)
    assert all(map(is_there, at_links))
    assert bool(at_links) is (backend is Backend.LINKS)

    running = clean(node)
    assert running.returncode == 1
    assert "another agent runs in this network namespace (process " in running.stderr
    elsewhere = clean(node, "--with-pods", elsewhere=tmp_path)
    assert elsewhere.returncode == 1, elsewhere.stdout
    assert not node.runtime.status()
    assert "pod-1" in node.ask("pods")["attachments"][0]["pod"]
    node.stop_agent()
    refused = clean(node)
    assert refused.returncode == 1
    assert "1 pods still have their network from netmgr (research/pod-1" in refused.stderr
    assert "of a pod was removed" in assert_cleaned(node, before, "--with-pods")
    eventually(lambda: not any(map(is_there, at_links)))
    assert not (node.directory / "state").exists()
    assert not node.run_dir.exists()
    assert_cleaned(node, before)
