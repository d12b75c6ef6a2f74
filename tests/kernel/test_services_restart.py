"""A NAT host's Services outlive the process that opened them, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from netmgr import programs
from netmgr.kernel.nf_tables_socket import NftSocket
from netmgr.prefixes import Family
from tests.fakes.services_world import RANGES, SPOKE, VIP, ServicesWorld, service, slice_of
from tests.lab import wiring

pytestmark = pytest.mark.root

_numbers = count(1)
_OPENER = """
    import sys, time
    from pathlib import Path
    from netmgr.prefixes import Prefix
    from netmgr.services.engine import Services
    from netmgr.documents.sites import ServiceRange
    both = zip(sys.argv[2:4], sys.argv[4:6])
    ranges = [ServiceRange(vip_range=one, service_cidr=other) for one, other in both]
    services = Services.open(ranges, Path(sys.argv[1]), [Prefix.parse(one) for one in sys.argv[6:]])
    services.start()
    print("open", flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def services_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServicesWorld]:
    name = f"again-{os.getpid()}-{next(_numbers)}"
    with ServicesWorld(tmp_path_factory.mktemp("documents"), name) as world:
        for family, number in ((Family.V4, 1), (Family.V6, 2)):
            world.write(service(number, family), slice_of(number, family, [1, 2, 3]))
            world.write(
                service(number + 2, family, sticky=True), slice_of(number + 2, family, [1, 2, 3])
            )
        yield world


def generation(world: ServicesWorld) -> int:
    """The number of transactions so far, which no write goes past."""
    with wiring.inside(world.host("nat")), NftSocket() as nftables:
        return nftables.generation()


def killed_opener(world: ServicesWorld) -> None:
    """Open the Services in a process of its own, and kill it."""
    ranges = [str(one.vip_range) for one in RANGES] + [str(one.service_cidr) for one in RANGES]
    arguments = [str(world.documents), *ranges, *map(str, SPOKE)]
    with wiring.inside(world.host("nat")):
        opener = programs.start(
            [sys.executable, "-c", textwrap.dedent(_OPENER), *arguments],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=subprocess.PIPE,
        )
    try:
        assert opener.stdout is not None
        assert opener.stdout.readline() == b"open\n"
    finally:
        opener.send_signal(signal.SIGKILL)
        opener.wait()
        opener.stdout.close()


@pytest.mark.parametrize("family", Family, ids=["IPv4", "IPv6"])
def test_a_killed_opener_leaves_connections_and_its_successor_changes_nothing(
    services_world: ServicesWorld, family: Family
):
    vip = VIP[family].format(1 if family is Family.V4 else 2)
    services_world.close()
    before = generation(services_world)
    with services_world.connection(vip, family) as (near, far):
        killed_opener(services_world)
        far.sendall(b"still here")
        assert near.recv(20) == b"still here"
        assert {services_world.tcp(vip, family) for _ in range(24)} == {1, 2, 3}
        services_world.open()
        near.sendall(b"and here")
        assert far.recv(20) == b"and here"
    assert generation(services_world) == before


def test_what_changed_while_nobody_was_there_is_caught_up_with(services_world: ServicesWorld):
    services_world.close()
    (services_world.documents / "EndpointSlice-s1-x.json").unlink()
    (services_world.documents / "Service-s3.json").unlink()
    services_world.open()
    vip = VIP[Family.V4]
    for number in (1, 3):
        with pytest.raises(ConnectionRefusedError):
            services_world.tcp(vip.format(number), Family.V4)
    assert services_world.tcp(VIP[Family.V6].format(2), Family.V6) in (1, 2, 3)


def test_nothing_is_taken_away_at_a_start_while_a_document_cannot_be_read(
    services_world: ServicesWorld,
):
    family, vip = Family.V6, VIP[Family.V6].format(2)
    path = services_world.documents / "Service-s2.json"
    sound = path.read_text()
    services_world.close()
    path.write_text(sound[:40])
    services_world.open()
    assert services_world.tcp(vip, family) in (1, 2, 3)
    assert services_world.sync() == []
    assert services_world.tcp(vip, family) in (1, 2, 3)
    (fault,) = services_world.services.faults()
    assert fault.startswith(f"{path}:")
    path.unlink()
    services_world.refresh()
    assert services_world.services.faults() == []
    with pytest.raises(ConnectionRefusedError):
        services_world.tcp(vip, family)
