"""Real packets between sites and to Services: what is dropped, whose address the far end sees, and
the way back.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from itertools import product

import pytest

from netmgr.kernel import netns
from netmgr.prefixes import Family
from netmgr.rules.engine import Rules
from netmgr.rules.policy import Policy
from tests.contracts.conftest import settled
from tests.contracts.routed import FAMILIES
from tests.contracts.star import (
    CLUSTER_IP,
    FURTHER,
    HEADERS,
    HOSTS,
    MACHINE,
    PORT,
    RANGES,
    SECONDS_TO_BE_LOST,
    VIP,
    Star,
    dropped,
    star,
)
from tests.fakes.sites import SERVICES, SITES, document
from tests.kernel.usable import wait_until_usable

pytestmark = pytest.mark.root

A, B = "spoke-a", "spoke-b"
BACKEND_PORT = 4444
CALLS = f"meta l4proto {{ tcp, udp }} th dport {PORT}"

KUBE_PROXY = f"""
table inet kube-proxy {{
    chain prerouting {{
        type nat hook prerouting priority dstnat; policy accept;
        ip daddr {CLUSTER_IP[Family.V4]} {CALLS} dnat ip to {HOSTS["own"][Family.V4]}:{BACKEND_PORT}
        ip6 daddr {CLUSTER_IP[Family.V6]} {CALLS} \
          dnat ip6 to [{HOSTS["own"][Family.V6]}]:{BACKEND_PORT}
    }}
    chain postrouting {{
        type nat hook postrouting priority srcnat; policy accept;
    }}
}}
"""


@pytest.fixture
def with_pod(real_kernel, namespaces, program) -> Iterator[Star]:
    """As `world`, but `own` is a pod of the machine."""
    del real_kernel
    with star(namespaces, program, pods=("own",)) as made:
        yield made


@pytest.fixture
def opened(world, real_kernel, program):
    """A NAT host; what translates the Service's address is on it where it can be, else on the next
    machine.
    """

    def make(*, next_machine: bool | None = None, **nat: object) -> Rules:
        elsewhere = (
            not real_kernel.backend.abilities.rewrites if next_machine is None else next_machine
        )
        if elsewhere:
            with netns.entered(world.hosts["own"]):
                program("nft -f -", KUBE_PROXY)
        else:
            program("nft -f -", KUBE_PROXY)
        for prefix in RANGES:
            via = f"via {HOSTS['own'][Family.V4]}" if ":" not in prefix else "via fe80::2"
            onlink = " onlink" if ":" not in prefix else ""
            program(f"ip route add {prefix} {via} dev own{onlink}")
        return rules_of(real_kernel, "nat-host", nat=nat)

    return make


def rules_of(real_kernel, role: str, **keys: object) -> Rules:
    return settled(real_kernel.backend, Policy.of(document(role, **keys)))


def answer(server, client, data: bytes = b"answer"):
    """The server answers who it has heard of; where the client takes the answer to come from."""
    server[0].sendto(data, server[1])
    got, source = client.recvfrom(100)
    assert got == data
    return source[:2]


def backend_of(world: Star, family: Family):
    """A socket of the Service's endpoint."""
    return world.socket("own", family, "", BACKEND_PORT)


def ends(world: Star, family: Family, *names: str):
    """Sockets at these hosts."""
    return (world.at(name, family) for name in names)


@FAMILIES
def test_a_node_drops_what_passes_between_its_spoke_and_another_in_either_direction(
    with_pod, real_kernel, family
):
    world, rules = with_pod, rules_of(real_kernel, "node")
    own, foreign, researcher = ends(world, family, "own", "foreign", "researcher")
    assert world.is_lost(own, foreign, HOSTS["foreign"][family], 50)
    assert world.is_lost(foreign, own, HOSTS["own"][family], 70)
    assert world.is_lost(foreign, own, HOSTS["own"][family], 71)
    counted = {(A, B): (1, 50 + HEADERS[family]), (B, A): (2, 141 + 2 * HEADERS[family])}
    assert dropped(rules) == counted
    for way in ((researcher, own), (own, researcher), (foreign, researcher)):
        assert world.shows_itself(*way)
    assert dropped(rules) == counted


def hears_and_speaks_to_no_other_spoke(world, real_kernel, family, **keys) -> None:
    """A machine of the spoke A, whose document has these keys."""
    own, foreign, researcher = ends(world, family, "machine", "foreign", "researcher")
    assert world.source(foreign, own, MACHINE[family]) is not None
    rules = rules_of(real_kernel, "node", **keys)
    assert world.is_lost(foreign, own, MACHINE[family], 30)
    with pytest.raises(PermissionError):
        own.sendto(b"x" * 40, (HOSTS["foreign"][family], PORT))
    assert dropped(rules) == {(B, A): (1, 30 + HEADERS[family]), (A, B): (1, 40 + HEADERS[family])}
    for way in ((researcher, own), (own, own), (own, researcher)):
        assert world.shows_itself(*way)


@FAMILIES
def test_a_machine_of_a_spoke_neither_hears_nor_speaks_to_another_spoke(world, real_kernel, family):
    hears_and_speaks_to_no_other_spoke(world, real_kernel, family)


@FAMILIES
def test_a_machine_drops_another_spoke_in_a_family_that_its_own_site_has_not(
    world, real_kernel, family
):
    prefix, block = {
        Family.V4: ("fd00:1::/48", "fd00:1::/112"),
        Family.V6: ("10.1.0.0/16", "10.1.0.0/24"),
    }[family]
    sites = [{"name": A, "prefixes": [prefix]}, *(site for site in SITES if site["name"] != A)]
    hears_and_speaks_to_no_other_spoke(world, real_kernel, family, sites=sites, ranges=[block])


@FAMILIES
def test_a_hub_router_keeps_spokes_apart_and_joins_each_with_the_hub(world, real_kernel, family):
    rules = rules_of(real_kernel, "hub-router", node={"name": "router"})
    own, neighbour, foreign, researcher, internet = ends(
        world, family, "own", "neighbour", "foreign", "researcher", "internet"
    )
    assert world.is_lost(own, foreign, HOSTS["foreign"][family], 50)
    assert world.is_lost(foreign, own, HOSTS["own"][family], 70)
    assert dropped(rules) == {(A, B): (1, 50 + HEADERS[family]), (B, A): (1, 70 + HEADERS[family])}
    for way in (*product((own, foreign), [researcher]), *product([researcher], (own, foreign))):
        assert world.shows_itself(*way)
    assert world.shows_itself(neighbour, own)
    sources = {
        world.source(host, internet, HOSTS["internet"][family])[0]
        for host in (own, foreign, researcher)
    }
    # The internet sees the router alone.
    assert sources.isdisjoint(host[family] for host in HOSTS.values())


FORGERIES = {
    "the other spoke's own": "foreign",
    "the hub's": "researcher",
    "the router's": "machine",
    "the internet's": "internet",
}


@FAMILIES
@pytest.mark.parametrize("claimed", FORGERIES)
def test_a_hub_router_passes_nothing_to_a_spoke_that_claims_to_come_from_elsewhere(
    world, real_kernel, program, family, claimed
):
    rules = rules_of(real_kernel, "hub-router")
    whose = FORGERIES[claimed]
    source = MACHINE[family] if whose == "machine" else HOSTS[whose][family]
    with netns.entered(world.hosts["own"]):
        program(
            f"ip addr add {source}/{family.width} dev lo{' nodad' if family is Family.V6 else ''}"
        )
    forged, foreign, honest = (
        world.socket("own", family, source),
        world.at("foreign", family),
        world.at("own", family),
    )
    if whose != "foreign":
        assert world.is_lost(forged, foreign, HOSTS["foreign"][family], 50)
    # To the hub, whom everybody reaches, and to the spoke's own neighbour, by way of the router.
    for name in ("researcher", "neighbour"):
        if name != whose:
            assert world.is_lost(forged, world.at(name, family), HOSTS[name][family], 60)
    (refused,) = [one for one in rules.drops().refused if one["reason"] == "forged"]
    # Its own address the kernel refuses from anybody in IPv4, before any rule of a hook.
    assert refused["packets"] >= (0 if whose == "machine" and family is Family.V4 else 1)
    neighbour = world.socket("neighbour", family, HOSTS["neighbour"][family], PORT + 1)
    honest.sendto(b"hello", (HOSTS["neighbour"][family], PORT + 1))
    assert neighbour.recvfrom(100)[1][0] == HOSTS["own"][family]


@FAMILIES
def test_a_hub_router_passes_nothing_to_a_spoke_from_a_private_address_that_no_site_has(
    world, real_kernel, program, family
):
    """Not even where the router would answer it, as a cloud's router with one link does."""
    rules = rules_of(real_kernel, "hub-router")
    source = {Family.V4: "192.168.7.7", Family.V6: "fd99::7"}[family]
    with netns.entered(world.hosts["researcher"]):
        program(f"ip addr add {source}/{family.width} dev lo")
        wait_until_usable()
    way = {Family.V4: "dev", Family.V6: "via fe80::2 dev"}[family]
    program(f"ip route add {source} {way} researcher")
    unplanned, foreign = world.socket("researcher", family, source), world.at("foreign", family)
    assert world.is_lost(unplanned, foreign, HOSTS["foreign"][family])
    (refused,) = [one for one in rules.drops().refused if one["reason"] == "unplanned"]
    assert refused["packets"] == 1
    for planned in ("researcher", "internet"):
        assert world.shows_itself(world.at(planned, family), foreign)


@FAMILIES
def test_a_service_is_reached_by_the_address_the_hub_sees_and_answers_from_it(
    world, opened, family
):
    rules = opened()
    researcher, server = world.at("researcher", family), backend_of(world, family)
    seen = world.source(researcher, server, VIP[family], 60)
    assert seen[0] == MACHINE[family], "the endpoint sees the host"
    assert answer((server, seen), researcher, b"a" * 40) == (VIP[family], PORT)
    exchange = SERVICES[0 if family is Family.V4 else 1]
    both = 2 * HEADERS[family] + 100
    ends = {"vip_range": exchange["vip_range"], "service_cidr": exchange["service_cidr"]}
    assert ends | {"bytes": both, "packets": 2} in rules.translated()
    assert dropped(rules) == {}


@FAMILIES
def test_a_service_is_reached_in_fragments(world, opened, family):
    opened()
    researcher, server = world.at("researcher", family), backend_of(world, family)
    assert world.source(researcher, server, VIP[family], 8000)[0] == MACHINE[family]


@FAMILIES
def test_a_preserved_source_is_the_clients_own(world, opened, family):
    opened(source="preserve")
    researcher, server = world.at("researcher", family), backend_of(world, family)
    seen = world.source(researcher, server, VIP[family])
    assert seen == (HOSTS["researcher"][family], PORT)
    assert answer((server, seen), researcher) == (VIP[family], PORT)


@FAMILIES
@pytest.mark.parametrize("source", ["snat", "preserve"])
def test_a_stream_passes_both_ways_when_the_next_machine_translates_the_service(
    world, opened, family, source
):
    opened(next_machine=True, source=source)
    server = world.socket("own", family, "", BACKEND_PORT, socket.SOCK_STREAM)
    server.listen()
    client = world.socket("researcher", family, "", 0, socket.SOCK_STREAM)
    client.connect((VIP[family], PORT))
    accepted, peer = server.accept()
    with accepted:
        assert peer[0] == (MACHINE if source == "snat" else HOSTS["researcher"])[family]
        client.sendall(b"q" * 100_000)
        client.shutdown(socket.SHUT_WR)
        received = 0
        while data := accepted.recv(65536):
            received += len(data)
        accepted.sendall(b"r" * received)
    answered = 0
    while data := client.recv(65536):
        answered += len(data)
    assert (received, answered) == (100_000, 100_000)


@FAMILIES
def test_every_address_of_the_host_takes_its_share_of_the_connections(world, opened, family):
    addresses = [MACHINE[family], *FURTHER[family]]
    opened(addresses=[address for each in Family for address in (MACHINE[each], *FURTHER[each])])
    server = backend_of(world, family)
    sources: Counter[str] = Counter()
    for _ in range(12):
        client = world.socket("researcher", family, HOSTS["researcher"][family])
        seen = world.source(client, server, VIP[family])
        assert answer((server, seen), client) == (VIP[family], PORT)
        sources[seen[0]] += 1
    assert sources == Counter(dict.fromkeys(addresses, 4))


@FAMILIES
def test_another_spoke_does_not_reach_the_services(world, opened, family):
    rules = opened()
    foreign, server = world.at("foreign", family), backend_of(world, family)
    assert world.is_lost(foreign, server, VIP[family], 20)
    assert dropped(rules) == {(B, A): (1, 20 + HEADERS[family])}


@FAMILIES
def test_within_the_spoke_a_service_is_reached_as_if_there_were_no_nat_host(world, opened, family):
    rules = opened(next_machine=False)
    neighbour, server = world.at("neighbour", family), backend_of(world, family)
    seen = world.source(neighbour, server, CLUSTER_IP[family])
    assert seen == (HOSTS["neighbour"][family], PORT)
    assert answer((server, seen), neighbour) == (CLUSTER_IP[family], PORT)
    assert {one["packets"] for one in rules.translated()} == {0}


@FAMILIES
def test_a_port_nobody_listens_on_is_told_to_the_client_where_connections_are_tracked_whole(
    world, opened, real_kernel, family
):
    """An ICMP error quotes the packet; a rewriting outside of connection tracking cannot mend the
    quotation.
    """
    opened()
    client = world.at("researcher", family)
    client.connect((VIP[family], PORT))
    client.send(b"is anybody there?")
    told = ConnectionRefusedError
    if real_kernel.backend.abilities.rewrites:
        client.settimeout(SECONDS_TO_BE_LOST)
        told = TimeoutError
    with pytest.raises(told):
        client.recv(100)


@FAMILIES
def test_drops_between_sites_outlive_repairs(world, real_kernel, program, family):
    rules = rules_of(real_kernel, "node")
    own, foreign = world.at("own", family), world.at("foreign", family)
    assert world.is_lost(foreign, own, HOSTS["own"][family], 70)
    assert dropped(rules) == {(B, A): (1, 70 + HEADERS[family])}
    if real_kernel.backend.name == "nftables":
        program("nft flush chain inet netmgr forward")
    else:
        tool = real_kernel.backend.name.replace(
            "iptables", "iptables" if family is Family.V4 else "ip6tables"
        )
        program(f"{tool} -t mangle -D NETMGR-FORWARD 1")
    rules.apply(rules.plan([]))
    assert dropped(rules) == {(B, A): (1, 70 + HEADERS[family])}
