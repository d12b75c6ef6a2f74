"""`netmgr cni install` without options, as in README: the runtime finds the plugin, pods get their
host ports.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from netmgr.prefixes import Family
from tests.lab.topology import INTERNET, Node
from tests.lab.world import World
from tests.runtimes.engines import CONTAINERD_CONFIG, ContainerdCri, containerd_config, major
from tests.runtimes.internet import ECHO_PORT, Internet, probing
from tests.runtimes.machine import Machine
from tests.runtimes.node import NETMGR, NetmgrNode, settled
from tests.waiting import eventually

pytestmark = [pytest.mark.root, pytest.mark.runtimes]

DEBIANS_PLUGINS = "/usr/lib/cni"
"""Where Debian's containerd looks, and its containernetworking-plugins are: not upstream's
/opt/cni/bin.
"""

HOST_PORT, POD_PORT = 18080, 8080
LIMITS = {"ingress": "8M", "egress": "16M"}


@pytest.fixture
def bare(machine: Machine, node: Node) -> NetmgrNode:
    """A node whose containerd is configured, and nothing installed."""
    machine.write(CONTAINERD_CONFIG, containerd_config(DEBIANS_PLUGINS))
    return NetmgrNode(machine, node, backend="nftables")


def test_the_configuration_that_debian_ships_is_followed(machine: Machine):
    printed = machine.run(*NETMGR, "cni", "install")
    found = f"containerd looks in {DEBIANS_PLUGINS} and /etc/cni/net.d (containerd config dump)"
    assert found in printed
    assert machine.path(f"{DEBIANS_PLUGINS}/netmgr").exists()
    assert f"removed {DEBIANS_PLUGINS}/netmgr" in machine.run(*NETMGR, "cni", "uninstall")


def test_the_chain_is_offered_a_version_only_if_the_runtimes_own_portmap_takes_requests_of_it(
    machine: Machine,
):
    """libcni asks the whole chain in the newest version that is offered."""
    machine.run(*NETMGR, "cni", "install", "--bin-dir", DEBIANS_PLUGINS)
    offered = json.loads(machine.path("/etc/cni/net.d/10-netmgr.conflist").read_text())
    names = {"COMMAND": "ADD", "CONTAINERID": "a", "IFNAME": "eth0", "NETNS": "/run/netns/a"}
    environment = [f"CNI_{name}={value}" for name, value in names.items()]

    def takes(version: str) -> bool:
        result = {"cniVersion": version, "interfaces": [], "ips": []}
        asked = {"cniVersion": version, "name": "a", "type": "portmap", "prevResult": result}
        command = ("env", *environment, f"CNI_PATH={DEBIANS_PLUGINS}", f"{DEBIANS_PLUGINS}/portmap")
        answer = json.loads(machine.run(*command, stdin=json.dumps(asked).encode(), check=False))
        return "incompatible CNI versions" not in str(answer)

    assert [plugin["type"] for plugin in offered["plugins"]] == ["netmgr", "portmap"]
    assert offered["cniVersions"] == [each for each in ("1.0.0", "1.1.0") if takes(each)]


def test_the_plugin_goes_where_containerd_looks(machine: Machine):
    """The release of containerd that runs here reads its own configuration,
    drop-in file included."""
    version = 2 if major("containerd") < 2 else 3
    imports = f'version = {version}\nimports = ["/etc/containerd/conf.d/*.toml"]\n'
    machine.write(CONTAINERD_CONFIG, imports)
    machine.write("/etc/containerd/conf.d/cni.toml", containerd_config("/etc/plugins"))
    machine.run(*NETMGR, "cni", "install")
    assert machine.path("/etc/plugins/netmgr").exists()


def test_a_pod_of_the_runtime_gets_its_network_and_its_host_port_which_is_counted(
    bare: NetmgrNode, world: World, node: Node, internet: Internet, probe: bytes
):
    machine = bare.machine
    assert f"containerd looks in {DEBIANS_PLUGINS}" in bare.start()
    conflist = json.loads(machine.path("/etc/cni/net.d/10-netmgr.conflist").read_text())
    assert [plugin["type"] for plugin in conflist["plugins"]] == ["netmgr", "portmap"]
    engine = ContainerdCri(machine, probe)
    pod = engine.run("server", {HOST_PORT: POD_PORT})
    serve = ("--exec-id", "serve", engine.ids["server"], "sh", "-c")
    script = f"while true; do echo hello from the pod | nc -l -p {POD_PORT}; done"
    machine.start("server", "ctr", "--namespace", "k8s.io", "task", "exec", *serve, script)

    def asked() -> str:
        target = (str(node.address(Family.V4)), str(HOST_PORT))
        return _from(world.namespace(world.internet), "busybox", "nc", "-w", "2", *target)

    eventually(
        lambda: asked() == "hello from the pod\n", lambda: machine.run("iptables-save", "-t", "nat")
    )
    assert settled(lambda: bare.counted(*pod), internet.meter) == internet.meter()
    assert internet.meter()["internet-in"][1] > 0
    engine.remove("server")
    assert asked() == ""


def test_limited_pods_are_counted_by_what_passes_their_limits(
    bare: NetmgrNode, internet: Internet, probe: bytes
):
    machine = bare.machine
    bare.start("--bandwidth")
    engine = ContainerdCri(machine, probe)
    limits = {f"kubernetes.io/{way}-bandwidth": rate for way, rate in LIMITS.items()}
    pod = engine.run("limited", annotations=limits)
    (ifb,) = [each["ifname"] for each in _links(machine) if each["ifname"].startswith("bwp")]
    (link,) = [each["ifname"] for each in _links(machine) if each["ifname"].startswith("nm")]
    assert (_rate(machine, link), _rate(machine, ifb)) == ("8Mbit", "16Mbit")

    for family in Family:
        engine.speak("limited", *probing(INTERNET[family], many=50))
    assert settled(lambda: bare.counted(*pod), internet.meter) == internet.meter()

    # containerd allows bursts of 512 MB. With one smaller than a packet, the packet is dropped.
    strict = ("tbf", "rate", "1mbit", "burst", "600", "limit", "4kb")
    machine.run("tc", "qdisc", "change", "dev", ifb, "root", *strict)
    target = (str(INTERNET[Family.V4]), str(ECHO_PORT))
    engine.speak("limited", "probe", *target, "20", "100")
    engine.speak("limited", "sh", "-c", f"! probe {' '.join(target)} 1 1000 2")
    assert "dropped 1," in machine.run("tc", "-statistics", "qdisc", "show", "dev", ifb)
    assert settled(lambda: bare.counted(*pod), internet.meter) == internet.meter()

    engine.remove("limited")
    assert [each for each in _links(machine) if each["ifname"].startswith(("bwp", "nm"))] == []


def _links(machine: Machine) -> list[dict[str, Any]]:
    return json.loads(machine.run("ip", "-json", "link", "show"))


def _rate(machine: Machine, link: str) -> str:
    """What the token bucket of a link lets pass, as tc writes it."""
    listed = machine.run("tc", "qdisc", "show", "dev", link)
    found = re.search(r"tbf .* rate (\S+) ", listed)
    assert found, listed
    return found[1]


def _from(namespace: Path, *command: str) -> str:
    done = subprocess.run(
        ["nsenter", f"--net={namespace}", *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout
