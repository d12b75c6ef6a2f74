"""A pod's interface gets another hardware address: by `tuning`, or by who administers the pod."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from netmgr.prefixes import Address
from tests.kernel.conforming import Caller, Pod, debians
from tests.kernel.namespaces import inside
from tests.lab.errors import LabError
from tests.lab.exchange import End, datagrams
from tests.lab.topology import INTERNET
from tests.waiting import eventually

pytestmark = pytest.mark.root

MAC = "02:00:00:00:0a:01"


@pytest.fixture
def pod(cni: Caller) -> Iterator[Pod]:
    with cni.sandbox() as made:
        yield made


def tuned(cni: Caller, pod: Pod, result: dict[str, Any], **keys: object) -> dict[str, Any]:
    """What comes of the chain's second plugin, Debian's `tuning`."""
    return debians("tuning", cni, "ADD", pod, prevResult=result, **keys)


def change_mac(pod: Pod, mac: str = MAC, ifname: str = "eth0") -> None:
    inside(pod.netns, "ip", "link", "set", ifname, "address", mac)


def addresses(result: dict[str, Any]) -> list[Address]:
    return [Address.parse(entry["address"].partition("/")[0]) for entry in result["ips"]]


def talks(cni: Caller, pod: Pod, result: dict[str, Any]) -> bool:
    """Whether the pod sends to the internet and hears from the node, in both families."""
    with suppress(LabError):
        for address in addresses(result):
            own, node = (
                End(pod.netns, address),
                End(cni.node.namespace, cni.node.node.address(address.family)),
            )
            datagrams(own, End(cni.world.internet, INTERNET[address.family]), [100], [100])
            datagrams(node, own, [100], [100])
        return True
    return False


def assert_followed(cni: Caller, pod: Pod, result: dict[str, Any], ifname: str = "eth0") -> None:
    eventually(lambda: is_followed(cni, pod, result, ifname))
    assert talks(cni, pod, result)


def is_followed(cni: Caller, pod: Pod, result: dict[str, Any], ifname: str = "eth0") -> bool:
    """Whether both ends know each other. A datagram that is sent before would be waited for in vain
    for seconds.
    """
    mac = json.loads(inside(pod.netns, "ip", "-j", "link", "show", ifname))[0]["address"]
    listed = json.loads(inside(cni.node.namespace, "ip", "-j", "neigh", "show", "nud", "permanent"))
    known = {entry["dst"]: entry["lladdr"] for entry in listed}
    gateways = inside(pod.netns, "ip", "neigh", "show", "dev", ifname, "nud", "permanent")
    return (
        all(known.get(str(address)) == mac for address in addresses(result))
        and len(gateways.splitlines()) == 2
    )


def test_a_chain_with_tuning_gives_a_pod_that_works_without_anybody_asking(
    cni: Caller, pod: Pod, tmp_path: Path
) -> None:
    result = tuned(cni, pod, cni.add(pod), mac=MAC, dataDir=str(tmp_path))
    assert result["interfaces"][1]["mac"] == MAC
    assert_followed(cni, pod, result)
    assert cni.check(pod, result).exit_code == 0
    for number in range(10):
        change_mac(pod, f"02:00:00:00:0b:{number:02x}")
    assert_followed(cni, pod, result)


def test_a_link_that_is_down_for_long_while_its_mac_changes_is_followed(
    cni: Caller, pod: Pod
) -> None:
    result = cni.add(pod)
    inside(pod.netns, "ip", "link", "set", "eth0", "down")
    change_mac(pod)
    # So long that the agent has looked meanwhile.
    time.sleep(1)
    inside(pod.netns, "ip", "link", "set", "eth0", "up")
    eventually(lambda: is_followed(cni, pod, result))


def test_what_a_sandbox_removes_of_its_gateways_comes_back(cni: Caller, pod: Pod) -> None:
    result = cni.add(pod)
    inside(pod.netns, "ip", "neigh", "del", "169.254.1.1", "dev", "eth0")
    inside(pod.netns, "ip", "-6", "neigh", "del", "fe80::1", "dev", "eth0")
    assert_followed(cni, pod, result)


def test_what_else_a_sandbox_has_of_neighbours_is_not_the_agents_burden(
    cni: Caller, pod: Pod, tmp_path: Path
) -> None:
    result = cni.add(pod)
    of_its_own = tmp_path / "neighbours"
    of_its_own.write_text(
        "".join(
            f"neigh add 10.9.{number >> 8}.{number & 255} lladdr {MAC} dev eth0 nud permanent\n"
            for number in range(1 << 16)
        )
    )
    inside(pod.netns, "ip", "-batch", str(of_its_own))
    process = Path(f"/proc/{cni.node.agent_pid()}")

    def peak() -> int:
        """Kilobytes, the most since it was reset (VmHWM, proc_pid_status(5))."""
        return int((process / "status").read_text().split("VmHWM:")[1].split()[0])

    (process / "clear_refs").write_text("5")
    before = peak()
    assert cni.check(pod, result).exit_code == 0
    # A listing of all would be ten times that.
    assert peak() - before < 2048


@pytest.mark.parametrize("is_undone", [False, True], ids=["once", "and changed back"])
def test_a_change_while_no_agent_ran_is_found_at_its_start(
    cni: Caller, pod: Pod, *, is_undone: bool
) -> None:
    """Changed back, the host's end shows nothing of it, and the sandbox has lost its gateways."""
    result = cni.add(pod)
    cni.node.kill_agent()
    change_mac(pod)
    if is_undone:
        change_mac(pod, result["interfaces"][1]["mac"])
    cni.node.start_until_ready()
    assert_followed(cni, pod, result)


def test_a_pod_that_changes_its_mac_all_the_time_has_a_line_a_minute(cni: Caller, pod: Pod) -> None:
    result = cni.add(pod)
    log = cni.node.directory / "agent.log"
    before, began = len(log.read_text()), time.monotonic()
    for number in range(10):
        change_mac(pod, f"02:00:00:00:0c:{number:02x}")
        eventually(lambda: is_followed(cni, pod, result))

    def renewals() -> int:
        lines = log.read_text()[before:].splitlines()
        return sum("pod-neighbours-renewed" in line for line in lines)

    # Logged once they are followed.
    eventually(lambda: renewals() > 0)
    # A minute may end between two changes.
    assert renewals() <= 2 + (time.monotonic() - began) // 60


def test_a_chain_that_switches_ipv6_off_leaves_ipv4(cni: Caller, pod: Pod, tmp_path: Path) -> None:
    first = cni.add(pod)
    off = {"net.ipv6.conf.all.disable_ipv6": "1"}
    result = tuned(cni, pod, first, mac=MAC, sysctl=off, dataDir=str(tmp_path))
    only = result | {"ips": [each for each in first["ips"] if ":" not in each["address"]]}
    eventually(lambda: talks(cni, pod, only))
    assert cni.check(pod, result).code == 104
    # An agent that looked while IPv6 was switched off may have failed: the next one does not.
    cni.node.kill_agent()
    log = cni.node.directory / "agent.log"
    before = len(log.read_text())
    change_mac(pod, "02:00:00:00:0d:00")
    cni.node.start_until_ready()
    eventually(lambda: talks(cni, pod, only))
    # Whatever the first look failed at is logged before there is another.
    change_mac(pod, "02:00:00:00:0d:01")
    eventually(lambda: talks(cni, pod, only))
    assert "attempt-failed" not in log.read_text()[before:]
    assert cni.call("STATUS", version="1.1.0").code == 0


def test_an_add_that_comes_again_finds_the_pod_as_it_is(
    cni: Caller, pod: Pod, tmp_path: Path
) -> None:
    first = cni.add(pod)
    result = tuned(cni, pod, first, mac=MAC, dataDir=str(tmp_path))
    again = cni.add(pod)
    assert addresses(again) == addresses(first)
    assert again["interfaces"][1]["mac"] == MAC
    assert talks(cni, pod, result)


@pytest.mark.parametrize(
    ("keys", "arguments"),
    [
        ({"runtimeConfig": {"mac": MAC}}, ""),
        ({"args": {"cni": {"mac": MAC}}}, ""),
        ({}, f";MAC={MAC}"),
    ],
    ids=["capability", "args.cni", "CNI_ARGS"],
)
def test_a_pod_has_the_mac_that_its_runtime_asks_for(
    cni: Caller, pod: Pod, keys: dict[str, Any], arguments: str
) -> None:
    asked = {"CNI_ARGS": pod.variables["CNI_ARGS"] + arguments}
    result = cni.add(pod, keys, **asked)
    assert result["interfaces"][1]["mac"] == MAC
    assert f"link/ether {MAC}" in inside(pod.netns, "ip", "link", "show", "eth0")
    assert talks(cni, pod, result)
    assert cni.add(pod, keys, **asked) == result
    assert cni.check(pod, result).exit_code == 0


def test_an_add_that_comes_again_and_asks_for_another_mac_gets_it(cni: Caller, pod: Pod) -> None:
    cni.add(pod)
    result = cni.add(pod, {"runtimeConfig": {"mac": MAC}})
    assert result["interfaces"][1]["mac"] == MAC
    assert talks(cni, pod, result)


def test_a_further_interface_is_followed_as_well(cni: Caller, pod: Pod) -> None:
    first, second = cni.add(pod), cni.add(pod, CNI_IFNAME="net1")
    change_mac(pod, ifname="net1")
    assert_followed(cni, pod, second, "net1")
    assert talks(cni, pod, first)
    assert cni.call("DEL", pod, CNI_IFNAME="net1").exit_code == 0


def test_a_pod_that_changes_without_an_end_costs_nobody_else(cni: Caller, pod: Pod) -> None:
    cni.add(pod)
    loop = (
        "while :; do ip link set eth0 address 02:00:00:00:0c:01; ip link set eth0 address "
        "02:00:00:00:0c:02; done"
    )
    with cni.sandbox() as other:
        noise = subprocess.Popen(["nsenter", f"--net={pod.netns}", "sh", "-c", loop])
        try:
            result = cni.add(other)
            change_mac(other)
            assert_followed(cni, other, result)
        finally:
            noise.kill()
            noise.wait()


def test_a_change_that_the_kernel_had_no_room_to_report_is_found(
    cni: Caller, pod: Pod, tmp_path: Path
) -> None:
    cni.add(pod)
    entry = "169.254.1.1 dev eth0"
    lost = f"neigh replace {entry} lladdr 02:00:00:00:0d:01 nud permanent\nneigh del {entry}\n"
    commands = tmp_path / "commands"
    commands.write_text(1000 * lost)
    agent = cni.node.agent_pid()
    assert agent is not None
    with cni.sandbox() as other:
        result = cni.add(other)
        os.kill(agent, signal.SIGSTOP)
        try:
            inside(pod.netns, "ip", "-batch", str(commands))
            change_mac(other)
        finally:
            os.kill(agent, signal.SIGCONT)
        assert_followed(cni, other, result)
