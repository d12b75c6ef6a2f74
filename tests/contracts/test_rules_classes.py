"""Traffic classes on every backend: counters, drift, coming and going, and real packets to the
byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from netmgr.kernel import netns
from netmgr.model import LINK_PREFIX, PROTECTED, Counter, Sample, Traffic
from netmgr.prefixes import Address, Family
from netmgr.rules.classifier import pod_set
from netmgr.rules.engine import Rules
from netmgr.rules.nftables import NftablesBackend
from netmgr.rules.policy import Policy
from tests.contracts.conftest import AND_AT_LINKS, REAL, put_right
from tests.contracts.routed import FAMILIES
from tests.contracts.star import HEADERS, HOSTS, MACHINE, PORT, Star, star
from tests.fakes.sites import document

STORAGE = {Family.V4: "203.0.113.200", Family.V6: "2001:db8:80::9"}
HUB = {"name": "hub", "site": "hub"}
CLASSES = [
    HUB,
    {"name": "storage", "prefixes": ["203.0.113.128/25", "2001:db8:80::/48"]},
    {"name": "beside", "prefixes": ["10.1.0.8/32", "fd00:1::8/128"]},
    {"name": "wide", "prefixes": ["10.0.0.0/9", "fd00::/16"]},
]
"""`wide` has holes in both families: the hub's prefixes and one neighbour's address; storage is not
internal.
"""

ONE = document("node", accounting={"rule_owner": "openai", "classes": [HUB]})
MANY = document("node", accounting={"rule_owner": "openai", "classes": CLASSES})
NONE = document("node")
POD_HOSTS = ("own", "neighbour")
PODS = [Address.parse(address) for host in POD_HOSTS for address in HOSTS[host].values()]
DOCUMENTS = {"one": ONE, "many": MANY, "observed": MANY.model_copy(update={"cni": False})}


def rules_of(kernel, node) -> Rules:
    rules = Rules(kernel.backend, Policy.of(node))
    for host in POD_HOSTS if kernel.backend.name == "links" else ():
        addresses = [Address.parse(address) for address in HOSTS[host].values()]
        rules.know(addresses, "research", f"{LINK_PREFIX}-{host}")
    rules.apply(rules.plan(PODS))
    return rules


@pytest.fixture(params=DOCUMENTS)
def node(request):
    return DOCUMENTS[request.param]


def test_a_second_plan_is_empty_and_every_pod_has_a_counter_for_every_class(kernel, node):
    rules = rules_of(kernel, node)
    assert rules.plan(PODS).repairs == ()
    assert not Rules(kernel.backend, Policy.of(node)).plan(PODS)
    kinds = ["internet", *node.traffic_classes, "internal"]
    wanted = {
        Counter.of_pod(pod, Traffic(f"{kind}-{way}"))
        for pod in PODS
        for kind in kinds
        for way in ("in", "out")
    }
    wanted |= {Counter.of_pod(pod, PROTECTED) for pod in PODS if node.wires_pods}
    assert {sample.counter for sample in rules.read() if sample.counter.is_pod} == wanted
    assert (
        {sample.counter for sample in rules.read_pods(PODS)} == wanted == set(rules.counters(PODS))
    )


def test_pods_come_and_go(kernel, node):
    rules = rules_of(kernel, node)
    rules.expel(PODS[:1])
    assert rules.read_pods(PODS[:1]) == []
    rules.admit(PODS[:1])
    assert {sample.counter for sample in rules.read_pods(PODS[:1])} == set(rules.counters(PODS[:1]))
    assert not rules.plan(PODS)


def test_classes_come_and_go_and_cost_the_others_no_count(kernel):
    rules = rules_of(kernel, ONE)
    pod, traffic = PODS[0], Traffic("hub-out")
    kernel.set_counts(pod_set(traffic, pod.family).name, [pod], 4, 4000)
    more = Rules(kernel.backend, Policy.of(MANY))
    created = put_right(more, PODS).created
    assert created == set(more.counters(PODS)) - set(rules.counters(PODS))
    assert Sample(Counter.of_pod(pod, traffic), 4000, 4) in more.read()
    less = rules_of(kernel, ONE)
    assert not less.plan(PODS)
    assert Sample(Counter.of_pod(pod, traffic), 4000, 4) in less.read()
    rules_of(kernel, MANY)
    none = rules_of(kernel, NONE)
    assert not none.plan(PODS)
    observed = kernel.backend.observe(none._skeleton)
    assert (observed.orphans, observed.orphan_chains) == (frozenset(), frozenset())
    none.remove()
    assert none.plan([]).repairs == ("the whole ruleset was missing",)


@pytest.mark.root
@pytest.mark.parametrize(
    "damage", ["flush chain inet netmgr {}", "add rule inet netmgr {} counter", "altered"]
)
@pytest.mark.parametrize(
    ("node", "chain"),
    [(ONE, "sort_out4"), (MANY, "sort_in6"), (MANY, "count_pod_storage_out4")],
    ids=["1", "2", "3"],
)
def test_a_chain_that_sorting_leads_to_is_put_right_when_it_was_altered(
    namespaces, program, node, chain, damage
):
    with netns.entered(namespaces("node").descriptor):
        rules = Rules(NftablesBackend(), Policy.of(node))
        try:
            rules.apply(rules.plan(PODS))
            if damage == "altered":
                listed = program(f"nft -a list chain inet netmgr {chain}")
                comment, handle = re.search("comment (.*) # handle (.*)", listed).groups()
                text = f"handle {handle} counter comment {comment}"
                damage = f"replace rule inet netmgr {{}} {text}"
            program("nft -f -", damage.format(chain) + "\n")
            way = "in v6" if "in6" in chain else "out v4"
            plan = put_right(rules, PODS)
            repair = f"chain before_srcnat: rule 'classes {way}' was altered"
            assert plan.repairs == (repair,)
            assert plan.created == frozenset()
        finally:
            rules.close()


@pytest.fixture
def world(real_kernel, namespaces, program) -> Iterator[Star]:
    """The two hosts of the own spoke are pods: their links have such names."""
    del real_kernel
    with star(namespaces, program, pods=POD_HOSTS) as made:
        with netns.entered(made.hosts["internet"]):
            for address in STORAGE.values():
                program(f"ip address add {address} dev eth0{' nodad' * (':' in address)}")
        program(f"ip route add {STORAGE[Family.V4]} dev internet")
        program(f"ip route add {STORAGE[Family.V6]} via fe80::2 dev internet")
        yield made


def counted(rules: Rules) -> dict[tuple[str, str], tuple[int, int]]:
    """Bytes and packets by address and traffic, where there are any."""
    samples = [sample for sample in rules.read() if sample.counter.is_pod and sample.packets]
    return {
        (str(one.counter.subject), str(one.counter.traffic)): (one.bytes, one.packets)
        for one in samples
    }


@pytest.mark.root
@FAMILIES
@pytest.mark.parametrize(
    ("real_kernel", "kind"),
    [
        *(
            pytest.param(*way.values, kind, marks=way.marks)
            for way in REAL
            for kind in ("many", "observed")
        ),
        ("links", "many"),
    ],
    indirect=["real_kernel"],
)
def test_every_byte_is_counted_in_one_class(world, real_kernel, family, kind):
    rules = rules_of(real_kernel, DOCUMENTS[kind])
    own, neighbour, researcher, internet, foreign = (
        world.at(name, family) for name in ("own", "neighbour", "researcher", "internet", "foreign")
    )
    storage, machine = (
        world.socket("internet", family, STORAGE[family], PORT + 1),
        world.at("machine", family),
    )
    pod, other = HOSTS["own"][family], HOSTS["neighbour"][family]

    def octets(*sizes: int) -> tuple[int, int]:
        return sum(sizes) + len(sizes) * HEADERS[family], len(sizes)

    assert world.source(own, researcher, HOSTS["researcher"][family], 100)
    assert world.source(researcher, own, pod, 200)
    assert world.source(own, neighbour, other, 300)
    seen = world.source(own, internet, HOSTS["internet"][family], 400)
    internet.sendto(b"x" * 500, seen)
    assert len(own.recv(1000)) == 500
    own.sendto(b"x" * 600, (STORAGE[family], PORT + 1))
    data, back = storage.recvfrom(1000)
    assert (back[0] == pod) == (kind == "observed"), "a class is no reason to show a pod's address"
    storage.sendto(b"x" * 700, back)
    assert len(own.recv(1000)) == 700
    assert world.is_lost(own, foreign, HOSTS["foreign"][family], 800)
    assert world.source(own, machine, MACHINE[family], 900)
    assert counted(rules) == {
        (pod, "hub-out"): octets(100),
        (pod, "hub-in"): octets(200),
        (pod, "beside-out"): octets(300),
        (other, "wide-in"): octets(300),
        (pod, "internet-out"): octets(400),
        (pod, "internet-in"): octets(500),
        (pod, "storage-out"): octets(600),
        (pod, "storage-in"): octets(700),
    }
    assert len(data) == 600


@pytest.mark.root
@FAMILIES
@pytest.mark.parametrize("real_kernel", AND_AT_LINKS, indirect=True)
def test_one_class_leaves_the_rest_to_internal(world, real_kernel, family):
    rules = rules_of(real_kernel, ONE)
    own, neighbour, researcher = (
        world.at(name, family) for name in ("own", "neighbour", "researcher")
    )
    assert world.source(own, researcher, HOSTS["researcher"][family], 100)
    assert world.source(neighbour, own, HOSTS["own"][family], 200)
    header = HEADERS[family]
    assert counted(rules) == {
        (HOSTS["own"][family], "hub-out"): (100 + header, 1),
        (HOSTS["neighbour"][family], "internal-out"): (200 + header, 1),
        (HOSTS["own"][family], "internal-in"): (200 + header, 1),
    }
