"""An observing agent beside real engines whose pods Debian's plugins wire: their bytes under their
names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType

import pytest
import yaml

from netmgr.observer.reconcile_plan import ResultState
from netmgr.prefixes import Family
from tests.lab.topology import INTERNET, Node
from tests.runtimes.conftest import ENGINES
from tests.runtimes.engines import IMAGE, NATIVE, ContainerdCri, Ctr, Podman, podman_has_cni
from tests.runtimes.internet import DATAGRAMS, PAGE, PAYLOAD, Internet, browsing, probing
from tests.runtimes.machine import Machine
from tests.runtimes.multus import IPAM, RESULTS, Multus
from tests.runtimes.node import DOCUMENT, NetmgrNode, settled
from tests.waiting import eventually

pytestmark = [pytest.mark.root, pytest.mark.runtimes]

SHORT_LIVED = 6
PLUGINS = {
    "bridge": {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": True},
    "ptp": {"type": "ptp", "ipMasq": True},
}


class ObservedNode(NetmgrNode):
    """As an administrator has it who keeps another plugin: nothing of netmgr's is installed but the
    agent.
    """

    keys: Mapping[str, object] = MappingProxyType({})
    """Further keys of node.yaml."""

    def start(self) -> None:
        self.machine.write(DOCUMENT, yaml.safe_dump(self._document()))
        self.machine.run("mkdir", "-p", "/opt/cni/bin")
        plugins = (f"/usr/lib/cni/{name}" for name in (*PLUGINS, "host-local"))
        self.machine.run("cp", *plugins, "/opt/cni/bin/")
        self.start_agent()

    def use(self, plugin: str) -> None:
        """Have the engines give their pods this plugin's network; it has the name that podman is
        told.
        """
        network = {"cniVersion": "0.4.0", "name": "netmgr"}
        network["plugins"] = [{**PLUGINS[plugin], "ipam": IPAM}]
        self.machine.write("/etc/cni/net.d/10-others.conflist", json.dumps(network))

    def gaps(self) -> dict[str, int]:
        return {gap["reason"]: gap["count"] for gap in self.snapshot()["gaps"] if gap["count"]}

    def all_counted(self) -> dict[str, tuple[int, int]]:
        """(bytes, packets) of all pods together by direction."""
        return {
            row["traffic"]: (row["bytes"], row["packets"])
            for row in self.snapshot()["namespaces"]
            if row["namespace"] == "-"
        }

    def all_counted_or_not(self) -> dict[str, tuple[int, int]]:
        """(bytes, packets) of all pods and of what was forwarded for none, by direction."""
        found: dict[str, tuple[int, int]] = {}
        for row in self.snapshot()["origins"]:
            if row["origin"] in {"pods", "unattributed"}:
                size, packets = found.get(row["traffic"], (0, 0))
                found[row["traffic"]] = (size + row["bytes"], packets + row["packets"])
        return found

    def live(self) -> set[tuple[str, str]]:
        return {(row["namespace"], row["pod"]) for row in self.snapshot()["pods"] if row["live"]}

    def _document(self) -> dict[str, object]:
        return {**super()._document(), "ranges": [], "cni": False, **self.keys}


@pytest.fixture
def observed(machine: Machine, node: Node) -> ObservedNode:
    installed = ObservedNode(machine, node, backend="nftables")
    installed.start()
    return installed


def test_a_pod_of_another_plugin_is_counted_to_the_byte_and_kept_when_it_is_gone(
    engine_name: str, observed: ObservedNode, internet: Internet, probe: bytes
):
    observed.use("ptp" if engine_name == "cri" else "bridge")
    runtime = ENGINES[engine_name](observed.machine, probe)
    pod = runtime.run("talker")
    # On a busy machine it would speak before it is found.
    eventually(lambda: observed.counted(*pod))
    for family in Family:
        runtime.speak("talker", *probing(INTERNET[family]))
        assert PAGE.decode() in runtime.speak("talker", *browsing(INTERNET[family]))
    assert settled(lambda: observed.counted(*pod), internet.meter) == internet.meter()
    assert observed.counted(*pod)["internet-out"][0] > DATAGRAMS * 2 * PAYLOAD
    runtime.remove("talker")
    assert settled(observed.live, set) == set()
    assert observed.counted(*pod) == internet.meter()
    assert observed.gaps().keys() <= {"late"}, (
        "a busy machine may have held the agent up, but nothing was lost"
    )


@pytest.mark.slow
@pytest.mark.alone
def test_pods_that_speak_in_their_first_instant_and_end_lose_nothing_that_is_not_told(
    observed: ObservedNode, internet: Internet, probe: bytes
):
    observed.use("bridge")
    containerd = Ctr(observed.machine, probe).machine
    podman = Podman(observed.machine, probe).machine if podman_has_cni() else None
    speak = probing(INTERNET[Family.V4])
    on_network = ("--network", "netmgr", "--ulimit", "host")
    for number in range(SHORT_LIVED):
        if podman:
            own = ("--name", f"p{number}", "--rootfs", "/run/root")
            podman.run("podman", "run", "--rm", *on_network, *own, *speak)
        containerd.run("ctr", "run", "--rm", "--cni", *NATIVE, IMAGE, f"c{number}", *speak)
    sent, pods = internet.meter(), SHORT_LIVED * (2 if podman else 1)
    assert sent["internet-out"] == (pods * DATAGRAMS * (PAYLOAD + 28), pods * DATAGRAMS)
    assert settled(observed.all_counted_or_not, lambda: sent) == sent
    # The kernel holds the agent up while it removes other tests' namespaces: its lock of links is
    # taken. What a pod sends meanwhile is in no pod's totals, and a gap says so.
    gaps = observed.gaps()
    late = gaps.pop("late", 0)
    assert not gaps
    assert late <= pods / 4
    for traffic, (_, packets) in observed.all_counted().items():
        assert sent[traffic][1] - packets <= late * DATAGRAMS


@pytest.mark.slow
def test_both_interfaces_of_a_pod_are_counted_by_the_results_that_multus_keeps(
    machine: Machine, node: Node, internet: Internet, probe: bytes
):
    observed = ObservedNode(machine, node, backend="nftables")
    observed.keys = {"cni_results_dir": RESULTS}
    observed.start()
    ipam = {"type": "host-local", "subnet": "10.89.1.0/24", "gateway": "10.89.1.1"}
    plugins = {
        "first": {**PLUGINS["ptp"], "ipam": IPAM},
        "further": {**PLUGINS["bridge"], "ipam": ipam},
    }
    networks = (
        {"cniVersion": "1.0.0", "name": name, "plugins": [plugin]}
        for name, plugin in plugins.items()
    )
    multus = Multus(machine, *networks)
    runtime = ContainerdCri(machine, probe)
    pod = runtime.run("trainer")
    assert len(multus.cached()) == 2
    # On a busy machine it would speak before both are found.
    both = {"state": ResultState.COUNTED, "count": 2}
    eventually(lambda: both in observed.snapshot()["result_files"])
    target = str(INTERNET[Family.V4])
    packets: list[int] = []
    for way in ("default", "net1"):
        if way == "net1":
            entered = ("nsenter", f"--net={multus.netns(runtime.ids['trainer'])}")
            machine.run(*entered, "ip", "route", "add", target, "via", "10.89.1.1", "dev", "net1")
        runtime.speak("trainer", *probing(target))
        assert settled(lambda: observed.counted(*pod), internet.meter) == internet.meter()
        packets.append(internet.meter()["internet-out"][1])
    assert packets == [DATAGRAMS, 2 * DATAGRAMS]
    runtime.remove("trainer")
    assert settled(observed.live, set) == set()
    assert observed.counted(*pod) == internet.meter()
