"""A NAT host as the manifests run it: a sidecar that follows the API server, and an agent that
never heard of one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kernel.joined import PORT, Joined, cluster_ip, joined, nat_host, own, vip
from tests.kubernetes.control_plane import ControlPlane, Object
from tests.kubernetes.controllers import Starter
from tests.kubernetes.services import HOME, SLICES_OF, endpoint_slice, follow, service
from tests.waiting import eventually

pytestmark = [pytest.mark.kubernetes, pytest.mark.root]

UDP = {"name": "http", "port": PORT, "protocol": "UDP"}


@pytest.fixture
def world(services: Starter) -> Iterator[Joined]:
    with joined(Backend.NFTABLES, f"test-{os.getpid()}-nat") as made:
        made.agent.directory.mkdir(parents=True)
        follow(services, made.documents)
        made.start(nat_host(translation="endpoints", documents=str(made.documents)))
        yield made
        services.stop()
        made.stop()


def endpoint(address: str) -> Object:
    return endpoint_slice("api", address) | {"ports": [UDP]}


def reached(world: Joined) -> str:
    """Whom the endpoint sees when a researcher sends to the Service as the hub sees it; nobody when
    nothing comes.
    """
    return world.send("researcher", "a", Family.V4, to=vip(Family.V4))


def test_a_service_of_the_api_server_is_reached_from_the_hub_as_long_as_it_has_an_endpoint(
    installed: ControlPlane, world: Joined
) -> None:
    assert reached(world) == ""
    installed.ask(
        "POST",
        f"{HOME}/services",
        service("api", ports=[UDP], clusterIP=str(cluster_ip(Family.V4))),
    )
    installed.ask("POST", SLICES_OF, endpoint(str(own("a", Family.V4))))
    eventually(lambda: reached(world))
    installed.ask("PUT", f"{SLICES_OF}/api-1", endpoint("10.1.0.77"))
    eventually(lambda: not reached(world))
    installed.ask("PUT", f"{SLICES_OF}/api-1", endpoint(str(own("a", Family.V4))))
    eventually(lambda: reached(world))
    installed.ask("DELETE", f"{HOME}/services/api")
    eventually(lambda: not reached(world))
