"""The CNI specification, held against the installed plugin and a real agent:
what each verb does."""

from dataclasses import replace

import pytest
from pyroute2 import IPRoute

from tests.kernel.conforming import CHECKING, VERSIONS, valid
from tests.lab import named_netns, wiring
from tests.unit import cni_shapes
from tests.waiting import eventually

pytestmark = pytest.mark.root


@pytest.fixture
def pod(cni):
    with cni.sandbox() as made:
        yield made


def added(cni, pod, version="1.0.0", **keys):
    result = cni.add(pod, keys, version=version)
    cni_shapes.success(result, version)
    return result


def addresses(result):
    return [entry["address"] for entry in result["ips"]]


def links(namespace):
    """Name to (hardware address, MTU, addresses,
    default gateways) of every link but the loopback."""
    seen = {}
    with wiring.inside(namespace), IPRoute() as route:
        carried, routes = list(route.get_addr()), list(route.get_routes())
        for link in route.get_links():
            own = [
                f"{entry.get('address')}/{entry['prefixlen']}"
                for entry in carried
                if entry["index"] == link["index"]
            ]
            gateways = [
                entry.get("gateway")
                for entry in routes
                if not entry["dst_len"] and entry.get("oif") == link["index"]
            ]
            seen[link.get("ifname")] = (
                link.get("address"),
                link.get("mtu"),
                own,
                [gateway for gateway in gateways if gateway],
            )
    seen.pop("lo", None)
    return seen


@pytest.mark.parametrize("version", VERSIONS)
def test_the_result_is_what_the_kernel_has(cni, pod, version):
    result = added(cni, pod, version)
    host, inside = result["interfaces"]
    assert (inside["name"], inside["sandbox"]) == ("eth0", str(pod.netns))
    mac, mtu, carried, gateways = links(pod.netns)["eth0"]
    assert mac == inside["mac"]
    assert set(addresses(result)) <= set(carried)
    assert {entry["gateway"] for entry in result["ips"]} == set(gateways)
    assert links(cni.node.namespace)[host["name"]][0] == host["mac"]
    if version == "1.1.0":
        assert host["mtu"] == inside["mtu"] == mtu
    assert "sandbox" not in host
    if version in CHECKING:
        answer = cni.check(pod, result, version)
        assert (answer.exit_code, answer.body) == (0, None)


def test_both_ends_of_a_pair_have_one_queue(cni, pod):
    """Without being asked the kernel makes one for each processor, uses one, and waits for that."""
    host, inside = added(cni, pod)["interfaces"]
    for namespace, end in ((cni.node.namespace, host), (pod.netns, inside)):
        with wiring.inside(namespace), IPRoute() as route:
            (link,) = route.link("get", ifname=end["name"])
            assert (link.get("num_tx_queues"), link.get("num_rx_queues")) == (1, 1)


def test_add_again_answers_the_same_and_takes_no_second_address(cni, pod):
    first = added(cni, pod)
    before = cni.occupancy()
    assert added(cni, pod) == first
    assert cni.occupancy() == before
    assert [link for link in links(pod.netns) if link != "eth0"] == []


def test_add_after_another_plugin_passes_its_result_on(cni, pod):
    upstream = {"interfaces": [{"name": "lo", "sandbox": str(pod.netns)}], "ips": [], "routes": []}
    result = added(cni, pod, prevResult=upstream)
    assert [link["name"] for link in result["interfaces"]][::2] == ["lo", "eth0"]
    assert {entry["interface"] for entry in result["ips"]} == {2}


def test_an_interface_that_is_there_already_is_an_error_and_stays(cni, pod):
    with wiring.inside(pod.netns), IPRoute() as route:
        route.link("add", ifname="eth0", kind="veth", peer="other")
    before = cni.occupancy()
    answer = cni.call("ADD", pod)
    assert answer.exit_code == 1
    cni_shapes.error(answer.body)
    assert "eth0" in answer.body["msg"] + answer.body["details"]
    assert {"eth0", "other"} <= set(links(pod.netns))
    assert cni.occupancy() == before


def test_a_sandbox_that_is_none_is_an_error_and_leaves_nothing(cni, pod, tmp_path):
    before = cni.occupancy()
    for path in (tmp_path / "missing", tmp_path, "/dev/null"):
        answer = cni.call("ADD", pod, CNI_NETNS=str(path))
        cni_shapes.error(answer.body)
        assert str(path) in answer.body["msg"] + answer.body["details"]
    assert cni.occupancy() == before
    assert not any(name.startswith("nm") for name in links(cni.node.namespace))


def test_the_nodes_own_namespace_is_refused_as_a_sandbox(cni, pod):
    answer = cni.call("ADD", pod, CNI_NETNS=str(cni.node.namespace))
    assert answer.code == 4
    assert "CNI_NETNS" in answer.body["msg"]
    assert "eth0" in links(cni.node.namespace)


def test_del_takes_back_everything_as_often_as_it_comes_and_add_is_welcome_after_it(cni, pod):
    before = cni.occupancy()
    host = added(cni, pod)["interfaces"][0]["name"]
    for _ in range(3):
        answer = cni.call("DEL", pod)
        assert (answer.exit_code, answer.body) == (0, None)
        assert cni.occupancy() == before
        assert host not in links(cni.node.namespace)
        assert "eth0" not in links(pod.netns)
    added(cni, pod)


@pytest.mark.parametrize("namespace", ["", None, "/run/netns/gone"])
def test_del_needs_no_sandbox(cni, pod, namespace):
    before = cni.occupancy()
    added(cni, pod)
    named_netns.delete(pod.netns)
    assert cni.call("DEL", pod, CNI_NETNS=namespace).exit_code == 0
    assert cni.occupancy() == before


@pytest.mark.parametrize("is_repeated", [False, True], ids=["first", "repeated"])
def test_an_add_overtaken_by_its_del_leaves_nothing(cni, pod, is_repeated):
    before = cni.occupancy()
    if is_repeated:
        added(cni, pod)
    with cni.begun("ADD", pod) as finish_add:
        assert cni.call("DEL", pod).exit_code == 0
        answer = finish_add()
    assert answer.exit_code == 1
    cni_shapes.error(answer.body)
    assert cni.occupancy() == before
    assert "eth0" not in links(pod.netns)


def test_gc_removes_exactly_what_is_not_listed(cni):
    with cni.sandbox() as kept, cni.sandbox() as lost, cni.sandbox() as other:
        pods = (kept, lost, other)
        results = [added(cni, sandbox) for sandbox in pods]

        def checked_after_gc(listed):
            answer = cni.call("GC", version="1.1.0", keys=listed)
            assert (answer.exit_code, answer.body) == (0, None)
            return [
                cni.check(sandbox, result).code
                for sandbox, result in zip(pods, results, strict=True)
            ]

        assert checked_after_gc(valid(kept, other)) == [0, 104, 0]
        assert cni.occupancy() == {"ipv4": 2, "ipv6": 2}
        # Interfaces of one container are told apart.
        assert checked_after_gc(valid(kept, replace(other, ifname="net1"))) == [0, 104, 104]
        assert checked_after_gc(valid()) == [104, 104, 104]
        assert cni.occupancy() == {"ipv4": 0, "ipv6": 0}


def test_gc_without_a_list_collects_only_what_lost_its_sandbox(cni, pod):
    """As cnitool asks, whose libcni sends no list at all when it is called without one."""
    result = added(cni, pod)
    with cni.sandbox() as gone:
        added(cni, gone)
        named_netns.delete(gone.netns)
        eventually(
            lambda: cni.call("GC", version="1.1.0").exit_code == 0 and cni.occupancy()["ipv4"] == 1
        )
    assert cni.check(pod, result).exit_code == 0
