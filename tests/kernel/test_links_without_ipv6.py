"""Links on which the kernel has no IPv6: it is switched off, on the host or in a sandbox, or they
are below its least MTU.
"""

from __future__ import annotations

import pytest

from netmgr.documents.node import Backend
from tests.kernel.conforming import Caller, one_node
from tests.kernel.namespaces import inside
from tests.lab.topology import cluster
from tests.waiting import eventually

pytestmark = [pytest.mark.root, pytest.mark.slow]

TOO_SMALL = 1200
"""Below 1280 bytes (RFC 8200, section 5) a link has nothing of IPv6, settings included."""


def is_attached(cni: Caller) -> bool:
    with cni.sandbox() as pod:
        answer = cni.call("ADD", pod)
        assert answer.code == 0, answer.body
        (link,) = (each["name"] for each in answer.body["interfaces"] if "sandbox" not in each)
        assert "NOARP" in inside(cni.node.namespace, "ip", "-o", "link", "show", link)
        assert cni.call("CHECK", pod, keys={"prevResult": answer.body}).code == 0
        return f"mtu {TOO_SMALL} " in inside(pod.netns, "ip", "-o", "link", "show", "eth0")


def test_a_node_of_ipv4_alone_attaches_pods(backend: Backend) -> None:
    topology = cluster(nodes=1, pods=0)
    with one_node(
        topology, backend=backend, ranges=["10.128.0.0/24"], reconcile_seconds=0.3
    ) as cni:
        inside(cni.node.namespace, "ip", "link", "set", cni.node.node.uplink, "mtu", str(TOO_SMALL))
        eventually(lambda: is_attached(cni))


def test_a_sandbox_without_ipv6_gets_it(backend: Backend) -> None:
    """As `ptp` does it, since Docker makes sandboxes so."""
    with one_node(cluster(nodes=1, pods=0), backend=backend) as cni, cni.sandbox() as pod:
        for name in ("all", "default", "lo"):
            inside(pod.netns, "sysctl", "-qw", f"net.ipv6.conf.{name}.disable_ipv6=1")
        answer = cni.call("ADD", pod)
        assert answer.code == 0, answer.body
        addresses = [each["address"].partition("/")[0] for each in answer.body["ips"]]
        assert len(addresses) == 2
        for held in (*addresses, "::1"):
            assert held in inside(pod.netns, "ip", "address")
        assert cni.call("CHECK", pod, keys={"prevResult": answer.body}).code == 0


def test_a_pod_whose_link_cannot_have_ipv6_is_reported_and_nobody_else_suffers(
    backend: Backend,
) -> None:
    topology = cluster(nodes=1, pods=0)
    with one_node(topology, backend=backend, reconcile_seconds=0.2) as cni, cni.sandbox() as pod:
        answer = cni.call("ADD", pod)
        (link,) = (each["name"] for each in answer.body["interfaces"] if "sandbox" not in each)
        inside(cni.node.namespace, "ip", "link", "set", link, "mtu", str(TOO_SMALL))
        inside(cni.node.namespace, "ip", "-4", "route", "flush", "dev", link)

        eventually(lambda: "PodWiringBroken" in cni.node.problems())
        (fault,) = cni.node.snapshot()["wiring_faults"]
        assert pod.container in fault
        # It may have been told before the flush.
        eventually(lambda: inside(cni.node.namespace, "ip", "-4", "route", "show", "dev", link))
        assert cni.call("STATUS", version="1.1.0").code == 0
        with cni.sandbox() as another:
            assert cni.call("ADD", another).code == 0
        inside(cni.node.namespace, "ip", "link", "set", link, "mtu", "1500")
        eventually(lambda: not cni.node.snapshot()["wiring_faults"])
        inside(cni.node.namespace, "sysctl", "-qw", f"net.ipv6.conf.{link}.disable_ipv6=1")
        keys = {"prevResult": answer.body}
        eventually(lambda: cni.call("CHECK", pod, keys=keys).code == 0)
        assert cni.call("STATUS", version="1.1.0").code == 0
