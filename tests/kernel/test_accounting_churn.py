"""A thousand pods that live under a second: counted to the byte with CNI, and nearly so by an
observer.
"""

from __future__ import annotations

import base64
import json
import os
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from netmgr.dataplane import desired
from netmgr.documents.node import Backend
from netmgr.kernel import links, neighbours, netns, routes
from netmgr.kernel.links import VethEnd
from netmgr.kernel.netlink import Netlink, index_of
from netmgr.model import Attachment, AttachmentKey, PodRef
from netmgr.prefixes import Address, Family
from tests.kernel.churning import Churn
from tests.kernel.common import gap_counts
from tests.kernel.namespaces import inside
from tests.kernel.observed import observed_node
from tests.kernel.spending import OUT
from tests.lab import named_netns, wiring
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import Host, Pod, cluster
from tests.lab.world import SETTINGS, World

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.alone]

PODS = int(os.environ.get("NETMGR_CHURN_PODS", "1000"))
OBSERVER_LOSS = 0.01
STARTING_SECONDS = 0.25
"""Assumed for what Kubernetes does between the end of ADD and a pod's first byte: two containers
made and started.
"""
READING_SECONDS = 0.6
"""A little more than `min_reading_seconds`."""
RTPROT_BOOT = 3


def counted(node: LabNode) -> dict[str, int]:
    rows = node.snapshot()["pods"]
    ours = ("research", OUT)
    return {row["pod"]: row["bytes"] for row in rows if (row["namespace"], row["traffic"]) == ours}


@pytest.mark.parametrize("backend", [Backend.NFTABLES, Backend.LINKS], ids=str)
def test_a_thousand_short_lived_pods_lose_no_byte(
    capsys: pytest.CaptureFixture[str], backend: Backend
) -> None:
    room = replace(cluster(nodes=1, pods=1), pods=())
    settings = {"ranges": ["10.200.0.0/21"]}  # no address comes twice, however quickly they come
    name = f"churn-{os.getpid()}-{backend}"
    with World(room, backend=backend, name=name, settings=settings, exporters=False) as world:
        node = world.node("node-1")
        churn = Churn(world, node.namespace, node.add, node.runtime.delete, at_once=8)
        reader = churn.run(PODS)
        with capsys.disabled():
            print(f"\n{churn.verdict('cni', counted(node), reader)}")  # noqa: T201  the figures are what it is for
        assert counted(node) == churn.sent
        assert gap_counts(node) == {}
        assert {one["bytes"] for one in node.snapshot()["unattributed"]} == {0}
        assert sorted(churn.lives)[len(churn.lives) * 99 // 100] < 1


class OtherPlugin:
    """Wires pods as ptp does, in a tenth of its time, and leaves the result where libcni would."""

    def __init__(self, node: LabNode) -> None:
        self.node = node
        self.results = node.directory / "cache" / "results"
        self.results.mkdir(parents=True)
        with wiring.inside(node.namespace):
            self.channel = Netlink()

    def add(self, name: str) -> Sandbox:
        number = int(name.rpartition("-")[2])
        address = Address(Family.V4, Address.parse("10.88.0.1").value + number)
        sandbox = Sandbox(
            Pod(name, self.node.name),
            uuid.uuid4().hex,
            str(uuid.uuid4()),
            self.node.pods_dir / name,
            (address,),
        )
        wiring.make_host(Host(name), sandbox.netns)
        self._wire(sandbox)
        self._remember(sandbox)
        return sandbox

    @staticmethod
    def _attachment(sandbox: Sandbox) -> Attachment:
        key = AttachmentKey(sandbox.container_id, "eth0")
        link = f"veth{sandbox.container_id[:8]}"
        return Attachment(
            key, PodRef("research", sandbox.pod.name), sandbox.addresses, link, str(sandbox.netns)
        )

    def _wire(self, sandbox: Sandbox) -> None:
        made = self._attachment(sandbox)
        pod = VethEnd("eth0", desired.pod_mac(made.key), 1500)
        descriptor = os.open(sandbox.netns, os.O_RDONLY)
        try:
            with wiring.inside(self.node.namespace):
                host = VethEnd(made.host_link, desired.HOST_MAC, 1500)
                self.channel.transact([links.create_veth(host, pod, descriptor)])
                index = index_of(made.host_link)
                self.channel.transact([links.raise_index(index)])
                with netns.entered(descriptor):
                    channel, pod_index = Netlink(), index_of("eth0")
            with channel:
                channel.transact(desired.pod_side(made, pod_index))
        finally:
            os.close(descriptor)
        (address,) = sandbox.addresses
        self.channel.transact(
            [
                neighbours.add_neighbour(address, pod.mac, index),
                routes.add_route(address.prefix, index, protocol=RTPROT_BOOT),
                links.settle_link(index),
            ]
        )

    def _file(self, sandbox: Sandbox) -> os.PathLike[str]:
        return self.results / f"others-{sandbox.container_id}-eth0"

    def _remember(self, sandbox: Sandbox) -> None:
        link = self._attachment(sandbox).host_link
        result = {
            "cniVersion": "1.0.0",
            "interfaces": [{"name": link}, {"name": "eth0", "sandbox": str(sandbox.netns)}],
            "ips": [{"address": f"{address}/24", "interface": 1} for address in sandbox.addresses],
        }
        entry = {
            "kind": "cniCacheV1",
            "containerId": sandbox.container_id,
            "config": base64.b64encode(b"{}").decode(),
            "ifName": "eth0",
            "networkName": "others",
            "netns": str(sandbox.netns),
            "cniArgs": sandbox.arguments,
            "result": result,
        }
        self._file(sandbox).write_text(json.dumps(entry))

    def delete(self, sandbox: Sandbox) -> None:
        # The namespace takes the pair along, many at a time; deleting it by itself would cost the
        # kernel 20 ms.
        inside(
            self.node.namespace, "ip", "link", "set", self._attachment(sandbox).host_link, "down"
        )
        self._file(sandbox).unlink()
        named_netns.delete(sandbox.netns)


def translate(node: LabNode) -> None:
    """Forward and masquerade, as ptp does with `ipMasq`; the latter also makes the kernel track
    connections.
    """
    with wiring.inside(node.namespace):
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    rules = (
        "table ip others { chain post { type nat hook postrouting priority 100; "
        "ip saddr 10.88.0.0/16 oifname eth0 masquerade; }; }"
    )
    inside(node.namespace, "nft", rules)


def test_an_observer_of_a_thousand_short_lived_pods_loses_little_and_says_how_much(
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, accounting = f"churn-observed-{os.getpid()}", {**SETTINGS["accounting"]}
    with observed_node("ptp", Backend.NFTABLES, name, accounting=accounting) as observed:
        node = observed.node
        plugin = OtherPlugin(node)
        translate(node)
        observed.start_agent()
        churn = Churn(
            *(observed.world, node.namespace, plugin.add, plugin.delete),
            at_once=16,
            starting_seconds=STARTING_SECONDS,
        )
        reader = churn.run(PODS)
        node.snapshot()
        time.sleep(READING_SECONDS)
        seen, snapshot = counted(node), node.snapshot()
    lost = sum(churn.sent.values()) - sum(seen.values())
    with capsys.disabled():
        print(f"\n{churn.verdict('observer', seen, reader)}")  # noqa: T201  the figures are what it is for
    (told,) = [one["bytes"] for one in snapshot["unattributed"] if one["traffic"] == OUT]
    assert told == lost, "what was missed is not what is exported"
    assert lost <= OBSERVER_LOSS * sum(churn.sent.values())
    assert all(size <= churn.sent[name] for name, size in seen.items())
    assert sorted(churn.lives)[len(churn.lives) * 99 // 100] < 1
