"""What other programs have on a node: firewalld and docker, another CNI plugin, an administrator.

Each thing is what such a program makes, or looks like it. The agent leaves all of it alone
(invariant 1), and none of it may cost a byte.
"""

from __future__ import annotations

import re
import socket

from netmgr import programs
from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.chaos.kernel import Kernel
from tests.kernel.conforming import Caller, Pod, ptp
from tests.kernel.spending import run
from tests.lab import named_netns, wiring
from tests.lab.exchange import open_socket
from tests.lab.topology import INTERNET

FIREWALLD = """
table inet firewalld {
    set trusted { type ipv4_addr; elements = { 192.0.2.1 } }
    chain filter_FORWARD {
        type filter hook forward priority filter + 10;
        ct state established,related accept
        ip saddr @trusted counter accept
    }
    chain nat_POSTROUTING { type nat hook postrouting priority srcnat + 10; }
}
table ip netmgr-not-quite {
    set pod_out4 { type ipv4_addr; counter; elements = { 10.128.16.0 } }
    chain NETMGR-FORWARD { type filter hook forward priority mangle - 5; ip daddr 192.0.2.7 drop; }
}
"""
TABLES = ("inet firewalld", "ip netmgr-not-quite")
DOCKER = (
    "-t filter -N DOCKER-USER",
    "-t filter -A DOCKER-USER -j RETURN",
    "-t filter -A FORWARD -j DOCKER-USER",
    "-t nat -N DOCKER",
    "-t nat -A DOCKER -i docker0 -j RETURN",
    "-t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
    "-t nat -A POSTROUTING -s 192.0.2.0/24 -o eth0 -j MASQUERADE",
    "-t mangle -A FORWARD -m comment --comment NETMGR -d 192.0.2.8 -j ACCEPT",
)
LINKS = (
    "link add docker0 type bridge",
    "address add 172.17.0.1/16 dev docker0",
    "link set docker0 up",
    "link add br-other type bridge",
)
PORT = 9


class Foreign:
    """Of one node."""

    def __init__(self, caller: Caller, kernel: Kernel) -> None:
        self._caller = caller
        self._node = caller.node
        self._kernel = kernel
        self._pod = Pod("foreign", self._node.pods_dir / "foreign")
        variant = "legacy" if kernel.backend is Backend.IPTABLES_LEGACY else "nft"
        self._iptables = f"iptables-{variant}"
        gateway = next(
            line.split()[2] for line in kernel.run("ip", "route").splitlines() if "default" in line
        )
        self._routes = [
            f"route add 198.51.100.0/24 via {gateway} proto static",
            f"route add 198.51.100.7/32 via {gateway} proto 112",
        ]
        self._make_links()
        self.lead()
        self.make_rules()
        self._known = self._seen()

    def _make_links(self) -> None:
        for command in LINKS:
            self._kernel.run("ip", *command.split())
        self._kernel.run("ipset", "create", "others", "hash:ip")
        named_netns.create(self._pod.netns)
        # Debian's own plugin, as it wires a pod beside ours.
        result = ptp(self._caller, "ADD", self._pod, self._node.directory / "ptp")
        self._link = result["interfaces"][0]["name"]

    def lead(self) -> None:
        """Make the routes that go with the uplink."""
        for command in self._routes:
            run(self._node, "ip", *command.split())

    def make_rules(self) -> None:
        """As these programs do when they start; each replaces its own."""
        self.reload_firewall()
        for rule in DOCKER:
            run(self._node, self._iptables, *rule.replace("-A", "-D", 1).split())
        for rule in DOCKER:
            run(self._node, self._iptables, *rule.split())

    def reload_firewall(self) -> None:
        """As firewalld does: all of its own is deleted and made again, in one transaction."""
        anew = "".join(f"add table {one}\ndelete table {one}\n" for one in TABLES)
        text = f"{anew}{FIREWALLD}".encode()
        with wiring.inside(self._node.namespace):
            done = programs.run(["nft", "-f", "-"], stdin=text)
        assert done.returncode == 0, done.stderr

    def set_policy(self, policy: str) -> None:
        """As docker does when it starts: it drops whatever it did not allow."""
        self._kernel.run(self._iptables, "-P", "FORWARD", policy)

    def talk(self) -> None:
        """The other plugin's pod sends a packet to the internet."""
        internet = self._caller.world.internet
        with (
            open_socket(self._pod.netns, Family.V4, socket.SOCK_DGRAM) as near,
            open_socket(internet, Family.V4, socket.SOCK_DGRAM) as far,
        ):
            far.bind((str(INTERNET[Family.V4]), PORT))
            near.sendto(bytes(100), far.getsockname())
            assert len(far.recv(200)) == 100

    def wrong(self) -> str:
        """What of it is not as it was."""
        found = self._seen()
        if found == self._known:
            return ""
        missing = [one for one in self._known if one not in found]
        return f"other programs' things: {missing} are missing, {[*{*found} - {*self._known}]} new"

    def _seen(self) -> list[str]:
        run_inside, names = self._kernel.run, ("docker0", "br-other", self._link)
        tables = [run_inside("nft", "-s", "list", "table", *one.split()) for one in TABLES]
        saved = run_inside(f"{self._iptables}-save").splitlines()
        rules = [
            line
            for line in saved
            if line.startswith("-A") and "NETMGR-" not in line and "iptables-exporter" not in line
        ]
        chains = [line.split()[0] for line in saved if line.startswith(":DOCKER")]
        routes = run_inside("ip", "route").splitlines()
        links = run_inside("ip", "-o", "link").splitlines()
        return [
            *tables,
            *rules,
            *chains,
            run_inside("ipset", "list", "others"),
            *(line.strip() for line in routes if "proto 110" not in line),
            # A qdisc that comes, as netmgr's clsact does, has a link's first queue length shown.
            *(
                re.sub(r" (qlen \d+)?\\", "", line)
                for line in links
                if any(f": {name}" in line for name in names)
            ),
        ]
