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
from netmgr.config import Backend
from netmgr.dataplane.nft_socket import NftSocket
from netmgr.lab import wiring
from netmgr.prefixes import Family
from tests.fakes.services_world import RANGES, SEEN, SPOKE, ServicesWorld, service, slice_of

pytestmark = pytest.mark.root

_numbers = count(1)
_SAVING = ("iptables-legacy", "ip6tables-legacy")
_OPENER = """
    import sys, time
    from pathlib import Path
    from netmgr.prefixes import Prefix
    from netmgr.services.engine import Services
    from netmgr.sites import ServiceRange
    backend, documents = sys.argv[1:3]
    ranges = [ServiceRange(seen=one, real=other) for one, other in zip(sys.argv[3:5], sys.argv[5:7])]
    services = Services.open(backend, ranges, Path(documents), [Prefix.parse(one) for one in sys.argv[7:]])
    services.start()
    print("open", flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def services_world(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServicesWorld]:
    name = f"again-{os.getpid()}-{next(_numbers)}"
    with ServicesWorld(backend, tmp_path_factory.mktemp("documents"), name) as world:
        for family, number in ((Family.V4, 1), (Family.V6, 2)):
            world.write(service(number, family), slice_of(number, family, [1, 2, 3]))
            world.write(service(number + 2, family, sticky=True), slice_of(number + 2, family, [1, 2, 3]))
        yield world


def kernel_rules(world: ServicesWorld) -> str | int:
    """What the kernel holds: for nftables the number of transactions so far, which no write goes past."""
    with wiring.inside(world.host("nat")):
        if world.backend is Backend.NFTABLES:
            with NftSocket() as nftables:
                return nftables.generation()
        listed = "".join(programs.run([f"{name}-save"]).stdout.decode() for name in _SAVING)
    return "\n".join(line.partition("[")[0] for line in listed.splitlines() if line[:1] != "#")


def killed_opener(world: ServicesWorld) -> None:
    """Open the Services in a process of its own, and kill it."""
    ranges = [str(one.seen) for one in RANGES] + [str(one.real) for one in RANGES]
    arguments = [str(world.backend), str(world.documents), *ranges, *map(str, SPOKE)]
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
    seen = SEEN[family].format(1 if family is Family.V4 else 2)
    services_world.close()
    before = kernel_rules(services_world)
    with services_world.connection(seen, family) as (near, far):
        killed_opener(services_world)
        far.sendall(b"still here")
        assert near.recv(20) == b"still here"
        assert {services_world.tcp(seen, family) for _ in range(24)} == {1, 2, 3}
        services_world.open()
        near.sendall(b"and here")
        assert far.recv(20) == b"and here"
    assert kernel_rules(services_world) == before


def test_what_changed_while_nobody_was_there_is_caught_up_with(services_world: ServicesWorld):
    services_world.close()
    (services_world.documents / "EndpointSlice-s1-x.json").unlink()
    (services_world.documents / "Service-s3.json").unlink()
    services_world.open()
    seen = SEEN[Family.V4]
    for number in (1, 3):
        with pytest.raises(ConnectionRefusedError):
            services_world.tcp(seen.format(number), Family.V4)
    assert services_world.tcp(SEEN[Family.V6].format(2), Family.V6) in (1, 2, 3)


def test_nothing_is_taken_away_at_a_start_while_a_document_cannot_be_read(services_world: ServicesWorld):
    family, seen = Family.V6, SEEN[Family.V6].format(2)
    path = services_world.documents / "Service-s2.json"
    sound = path.read_text()
    services_world.close()
    path.write_text(sound[:40])
    services_world.open()
    assert services_world.tcp(seen, family) in (1, 2, 3)
    assert services_world.sync() == []
    assert services_world.tcp(seen, family) in (1, 2, 3)
    (fault,) = services_world.services.faults()
    assert fault.startswith(f"{path}:")
    path.unlink()
    services_world.refresh()
    assert services_world.services.faults() == []
    with pytest.raises(ConnectionRefusedError):
        services_world.tcp(seen, family)
