"""From a cluster_ip API server to the kernel: the files follow the Services, and a NAT host's map
follows the files.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from netmgr.documents.sites import ServiceRange
from netmgr.kernel import netns
from netmgr.prefixes import Address, Prefix
from netmgr.services.engine import Services
from netmgr.services.nftables import NftablesServices
from tests.kubernetes.control_plane import SERVICE_RANGE, ControlPlane
from tests.kubernetes.controllers import Crowd, Starter
from tests.kubernetes.services import HOME, SLICES_OF, create, endpoint_slice, follow, true

pytestmark = [pytest.mark.kubernetes, pytest.mark.root]

VIP_RANGE = Prefix.parse("172.16.0.0/12")
RANGE = ServiceRange(vip_range=VIP_RANGE, service_cidr=Prefix.parse(SERVICE_RANGE))
SHIFT = VIP_RANGE.value - RANGE.service_cidr.value
Map = dict[str, list[str]]


@dataclass(frozen=True)
class Host:
    """A network namespace, and what translates in it."""

    descriptor: int

    def inside(self) -> AbstractContextManager[None]:
        return netns.entered(self.descriptor)

    def in_kernel(self) -> Map:
        """What the kernel translates, read anew."""
        with self.inside():
            opened = NftablesServices([VIP_RANGE])
            try:
                return {
                    str(vip): sorted(map(str, front.endpoints))
                    for vip, front in opened.held().items()
                }
            finally:
                opened.close()

    def follows(self, engine: Services, plane: ControlPlane, seconds: float = 30) -> None:
        """Refresh as the agent does, until the kernel has it all."""
        begun = time.monotonic()
        expected = wanted(plane)
        while self.in_kernel() != expected:
            assert time.monotonic() - begun < seconds, engine.faults()
            if select.select([engine], [], [], 0.5)[0]:
                with self.inside():
                    engine.refresh()


@pytest.fixture
def host() -> Iterator[Host]:
    path = Path("/run/netns") / f"test-{os.getpid()}-map"
    netns.create(path)
    descriptor = os.open(path, os.O_RDONLY)
    yield Host(descriptor)
    os.close(descriptor)
    netns.delete(path)


@pytest.fixture
def engine(host: Host, tmp_path: Path) -> Iterator[Services]:
    with host.inside():
        made = Services.open([RANGE], tmp_path / "cluster")
        made.start()
    yield made
    with host.inside():
        made.remove()
        made.close()


def wanted(plane: ControlPlane) -> Map:
    """What it should translate, as the API server has it."""
    found = {}
    for name, (text, endpoints) in true(plane).items():
        cluster_ip = Address.parse(text)
        vip = Address(cluster_ip.family, cluster_ip.value + SHIFT)
        port = 443 if name == "default_kubernetes" else 80
        found[f"{vip}:{port}/tcp"] = [f"{endpoint}:8080" for endpoint in endpoints]
    return found


def test_services_of_the_api_server_are_what_the_kernel_translates(
    installed: ControlPlane, services: Starter, host: Host, engine: Services, tmp_path: Path
) -> None:
    many = 1000
    with installed.counted() as asked:
        follow(services, tmp_path / "cluster")
        create(installed, ["first"])
        host.follows(engine, installed)
        create(installed, (f"s{number}" for number in range(many)))
        host.follows(engine, installed)
        changed = (endpoint_slice(f"s{number}", f"10.2.0.{number}") for number in range(50))
        Crowd(installed).ask(
            "PUT", ((f"{SLICES_OF}/{each['metadata']['name']}", each) for each in changed)
        )
        host.follows(engine, installed)
        Crowd(installed).ask(
            "DELETE", ((f"{HOME}/services/s{number}", None) for number in range(many // 2))
        )
        host.follows(engine, installed)
    # Each comparison lists both kinds once; the follower did so once at its start.
    assert asked["LIST", "services"] == asked["LIST", "endpointslices"] == 1 + 4
    with host.inside():
        assert engine.sync() == [], "nothing was left to put right"
