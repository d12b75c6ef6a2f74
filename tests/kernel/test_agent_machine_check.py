"""A document that is wrong about its machine stops the agent before it changes anything."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from netmgr import programs
from netmgr.agent.health import machine_check
from netmgr.documents import loader
from netmgr.documents.node import NodeDocument
from netmgr.errors import ConfigError
from netmgr.model import PROBE_LINK
from netmgr.observer.host_network import uncountable
from tests.builders import NODE_KEYS
from tests.kernel.common import kernel_state, own_network
from tests.kernel.namespaces import inside
from tests.kernel.usable import wait_until_usable
from tests.lab import wiring
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.root, pytest.mark.slow]

SYSCTLS = ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding")
CGROUPS = Path("/sys/fs/cgroup")


@pytest.fixture(scope="module")
def machine() -> Iterator[Path]:
    """A namespace with one link, which holds 10.64.0.10 and 2001:db8::10, and forwards nothing."""
    with own_network("machine") as path:
        for command in (
            "link add up0 type veth peer far0",
            "link set up0 addrgenmode none up",
            "link set far0 addrgenmode none up",
            "address add 10.64.0.10/24 dev up0",
            "address add 2001:db8::10/64 dev up0 nodad",
        ):
            inside(path, "ip", *command.split())
        inside(path, "sysctl", "-w", *(f"{name}=0" for name in SYSCTLS))
        # The kernel does the rest from work queues.
        eventually(lambda: inside(path, "ip", "-o", "link", "show", "up").count("state UP") == 2)
        wait_until_usable_in(path)
        yield path


def wait_until_usable_in(machine: Path) -> None:
    with wiring.inside(machine):
        wait_until_usable()


@pytest.fixture
def refusal(machine: Path, tmp_path: Path) -> Callable[..., str]:
    """What is said about a document of these keys, which is wrong about its machine."""

    def checked(**keys: Any) -> str:
        document = written(tmp_path, **keys)
        with wiring.inside(machine), pytest.raises(ConfigError) as refused:
            machine_check.check(document, loader.load(document, NodeDocument))
        return refused.value.message

    return checked


def written(directory: Path, **keys: Any) -> Path:
    """A sound document but for these keys."""
    sound = {
        **NODE_KEYS,
        "node": {"name": "node-1", "uplink": "up0"},
        "ranges": ["10.128.0.0/28"],
        "state_dir": str(directory / "state"),
        "run_dir": str(directory / "run"),
    }
    document = directory / "node.yaml"
    document.write_text(yaml.safe_dump(sound | keys, sort_keys=False))
    return document


def test_an_agent_that_is_refused_names_every_fault_at_once_and_changes_nothing(
    machine: Path, tmp_path: Path
) -> None:
    wrong = named(uplink="eth9") | {"ranges": ["10.64.0.10"], "reader_group": "nobodies"}
    document = written(tmp_path, **wrong)

    def everything() -> tuple[list[str], list[tuple[Path, int]]]:
        files = sorted((path, path.lstat().st_mtime_ns) for path in tmp_path.rglob("*"))
        return kernel_state(machine), files

    before = everything()
    agent = [sys.executable, "-m", "netmgr", "agent", "-c", str(document)]
    done = programs.run(["nsenter", f"--net={machine}", *agent], timeout=PATIENCE)
    said = done.stderr.decode()
    assert everything() == before
    assert (done.returncode, "Traceback" in said) == (2, False), said
    for key in ("node.uplink", "ranges[0]", "reader_group"):
        assert key in said


def test_a_link_that_the_rules_would_take_for_a_pods_is_refused_by_its_name(
    machine: Path, refusal: Callable[..., str]
) -> None:
    inside(machine, "ip", "link", "add", "nm-bond", "type", "veth", "peer", "far1")
    said = refusal()
    inside(machine, "ip", "link", "del", "nm-bond")
    assert "node: this node has an interface nm-bond; names that begin with nm are pods'" in said


def test_what_a_preflight_holds_for_the_moment_is_no_fault_of_the_document(
    machine: Path, refusal: Callable[..., str], tmp_path: Path
) -> None:
    document = written(tmp_path)
    for link in (PROBE_LINK, "another0"):
        inside(machine, "ip", "link", "add", link, "type", "veth", "peer", "far2")
        inside(machine, "ip", "address", "add", "10.128.0.15/32", "dev", link)
        if link == PROBE_LINK:
            with wiring.inside(machine):
                machine_check.check(document, loader.load(document, NodeDocument))
        else:
            assert "own address 10.128.0.15 (another0)" in refusal()
        inside(machine, "ip", "link", "del", link)


def named(name: str = "node-1", **identity: object) -> dict[str, Any]:
    return {"node": {"name": name, **identity}}


def nat_host(vip_range: str = "10.100.0.0/24", **keys: object) -> dict[str, Any]:
    services = [{"vip_range": vip_range, "service_cidr": "10.96.0.0/24"}]
    return {"role": "nat-host", "ranges": [], "nat": {"services": services, **keys}}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (named(uplink="eth9"), ":5: node.uplink: this node has no interface 'eth9'"),
        (
            named(addresses=["10.64.0.10", "10.64.0.99"]),
            ":7: node.addresses[1]: no link of this machine has 10.64.0.99; if this is another",
        ),
        ({"reader_group": "nobodies"}, ":10: reader_group: this node has no group 'nobodies'"),
        (
            {"ranges": ["10.64.0.0/24"]},
            ":7: ranges[0]: 10.64.0.0/24 holds the node's own address 10.64.0.10 (up0)",
        ),
        (
            {"ranges": ["10.128.0.0/28", "2001:db8::/112"]},
            ":8: ranges[1]: 2001:db8::/112 holds the node's own address 2001:db8::10 (up0)",
        ),
        (
            nat_host(addresses=["10.64.0.11"]),
            "nat.addresses[0]: no link of this machine has 10.64.0.11",
        ),
        (
            named("nat-1", addresses=["10.64.0.12"]) | nat_host(),
            ":6: node.addresses[0]: no link of this machine has 10.64.0.12",
        ),
        (
            nat_host(vip_range="10.64.0.0/24"),
            "nat.services[0].vip_range: 10.64.0.0/24 holds the node's own address 10.64.0.10 (up0)",
        ),
        ({"state_dir": "/" + "s" * 300}, ":8: state_dir: "),
    ],
)
def test_a_document_that_is_wrong_about_its_machine_is_refused(
    refusal: Callable[..., str], keys: dict[str, Any], message: str
) -> None:
    assert message in refusal(**keys)


def test_a_directory_that_is_a_file_is_refused(refusal: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    said = refusal(state_dir=str(tmp_path / "a-file" / "state"), run_dir=str(tmp_path / "a-file"))
    assert f":8: state_dir: {tmp_path}/a-file is no directory" in said
    assert f":9: run_dir: {tmp_path}/a-file is no directory" in said


@pytest.mark.parametrize("name", ["default", "up0"])
def test_ranges_of_ipv6_are_refused_where_it_is_off(
    machine: Path, refusal: Callable[..., str], name: str
) -> None:
    """Every ADD would fail otherwise, while the agent says that it is ready."""
    setting = f"net.ipv6.conf.{name}.disable_ipv6"
    inside(machine, "sysctl", "-w", f"{setting}=1")
    try:
        said = refusal(ranges=["10.128.0.0/28", "2001:db8:1::/112"])
        assert ":8: ranges[1]: 2001:db8:1::/112 is IPv6, and IPv6 is off on this machine" in said
        assert f"sysctl -w {setting}=0" in said
    finally:
        inside(machine, "sysctl", "-w", f"{setting}=0")
        inside(machine, "ip", "address", "replace", "2001:db8::10/64", "dev", "up0", "nodad")
        wait_until_usable_in(machine)


@pytest.fixture
def hierarchies() -> Iterator[dict[str, Path]]:
    """A directory of this test's own in cgroup v2, and one of the same name in a hierarchy of v1,
    with a pod of kubelet's.
    """
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    found = {fields[2]: Path(fields[1]) / f"netmgr-test-{os.getpid()}" for fields in mounts}
    if not {"cgroup", "cgroup2"} <= set(found):
        pytest.skip("this machine has no cgroup v1 beside v2")
    pod = found["cgroup"] / "kubepods" / "pod0f3a1c52-9d3e-4c55-8a70-6f0f3c2b1a99"
    pod.mkdir(parents=True)
    found["cgroup2"].mkdir()
    yield {"v1": found["cgroup"], "v2": found["cgroup2"]}
    for made in (pod, pod.parent, found["cgroup"], found["cgroup2"]):
        made.rmdir()


def counting(directory: Path) -> dict[str, Any]:
    return {"accounting": {"host_pods": True, "cgroup_dir": str(directory)}}


def test_host_network_pods_in_cgroup_v1_are_refused_instead_of_never_found(
    refusal: Callable[..., str], hierarchies: dict[str, Path]
) -> None:
    v1, v2 = hierarchies["v1"], hierarchies["v2"]
    begin = ":12: accounting.cgroup_dir: host-network pods cannot be counted: "
    said = refusal(**counting(v1))
    assert f"{begin}{v1} is not cgroup v2, and nftables counts by no other; name the" in said
    assert "or remove accounting.host_pods" in said
    said = refusal(**counting(v2))
    assert f"{begin}kubelet keeps its pods in cgroup v1 ({v1}), not in {v2}; name the" in said


def test_a_directory_beyond_the_cgroups_is_refused(
    refusal: Callable[..., str], tmp_path: Path
) -> None:
    said = refusal(**counting(tmp_path))
    assert f"cannot be counted: {tmp_path} is no directory at or below {CGROUPS}" in said


def test_a_kubelet_that_has_not_started_yet_is_no_fault(hierarchies: dict[str, Path]) -> None:
    pod = hierarchies["v1"] / "kubepods"
    pod.rename(pod.with_name("others"))
    try:
        assert uncountable(hierarchies["v2"]) == ""
    finally:
        pod.with_name("others").rename(pod)
    (hierarchies["v2"] / "kubepods.slice").mkdir()
    assert uncountable(hierarchies["v2"]) == ""
    (hierarchies["v2"] / "kubepods.slice").rmdir()
    assert "cgroup v1" in uncountable(hierarchies["v2"])
