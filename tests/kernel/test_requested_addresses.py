"""What a runtime asks for is honoured, or refused with its reason; and a sandbox that is none is
refused early.
"""

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Address
from tests.kernel.conforming import one_node
from tests.lab.topology import cluster
from tests.unit import cni_shapes
from tests.waiting import eventually

pytestmark = pytest.mark.root

COOLDOWN = {"pool": {"cooldown_seconds": 1, "conntrack_wait_seconds": 0}}


@pytest.fixture(scope="module")
def cni():
    # Nothing here depends on what holds the rules.
    with one_node(cluster(nodes=1, pods=0), backend=Backend.NFTABLES, **COOLDOWN) as caller:
        yield caller


def nth(cni, family, number):
    """An address in the middle of a range, which no earlier ADD was given."""
    block = next(block for block in cni.node.node.ranges if block.family == family)
    return str(Address(block.family, block.value + number))


def addresses(answer):
    assert answer.exit_code == 0, answer.body
    cni_shapes.success(answer.body, answer.body["cniVersion"])
    return [entry["address"].partition("/")[0] for entry in answer.body["ips"]]


def arguments(pod, more):
    return f"{pod.variables['CNI_ARGS']};{more}"


def refused(cni, answer, *words):
    cni_shapes.error(answer.body)
    assert all(word in answer.body["msg"] for word in words), answer.body
    assert cni.occupancy().get("ipv4", 0) == cni.occupancy().get("ipv6", 0)
    return answer.code


def test_an_address_may_be_asked_for_in_three_ways(cni):
    v4, v6 = nth(cni, 4, 9), nth(cni, 6, 9)
    for keys, changes in (
        ({"runtimeConfig": {"ips": [f"{v4}/24", v6]}}, {}),
        ({"args": {"cni": {"ips": [v4, v6]}}}, {}),
        ({}, {"CNI_ARGS": f"IgnoreUnknown=1;IP={v4},{v6}"}),
        ({}, {"CNI_ARGS": f"IP={v4},{v6}"}),
    ):
        with cni.sandbox() as pod:
            eventually(lambda: cni.call("STATUS", version="1.1.0").exit_code == 0)
            answer = add_when_free(cni, pod, keys, changes)
            assert addresses(answer) == [v4, v6]
            assert cni.call("CHECK", pod, keys={"prevResult": answer.body}).exit_code == 0
            assert addresses(cni.call("ADD", pod, keys=keys, **changes)) == [v4, v6]


def add_when_free(cni, pod, keys, changes):
    """ADD, again while the address is in cooldown: that is what the message says then."""
    answers = []

    def settled():
        answers.append(cni.call("ADD", pod, keys=keys, **changes))
        return answers[-1].exit_code == 0

    eventually(settled)
    assert all("is in cooldown" in each.body["msg"] for each in answers[:-1])
    return answers[-1]


def test_the_family_that_is_not_asked_for_comes_from_the_pool(cni):
    v4 = nth(cni, 4, 11)
    with cni.sandbox() as pod:
        given = addresses(cni.call("ADD", pod, CNI_ARGS=arguments(pod, f"IP={v4}")))
        assert given[0] == v4
        assert len(given) == 2


def test_an_address_that_is_held_is_refused_with_its_holder_and_nothing_is_left(cni):
    with cni.sandbox() as first, cni.sandbox() as second:
        v4 = addresses(cni.call("ADD", first))[0]
        before = cni.occupancy()
        answer = cni.call("ADD", second, CNI_ARGS=arguments(second, f"IP={v4}"))
        assert refused(cni, answer, v4, first.container) == 101
        assert cni.occupancy() == before


def test_an_address_of_another_range_is_refused(cni):
    with cni.sandbox() as pod:
        for address in ("203.0.113.9", "2001:db8::9"):
            answer = cni.call("ADD", pod, keys={"runtimeConfig": {"ips": [address]}})
            assert refused(cni, answer, address, "in none of this node's ranges") == 101


def test_an_address_in_cooldown_is_refused_and_given_when_that_is_over(cni):
    with cni.sandbox() as pod:
        v4 = addresses(cni.call("ADD", pod))[0]
        asking = {"CNI_ARGS": arguments(pod, f"IP={v4}")}
        answers = []

        def in_cooldown():
            assert cni.call("DEL", pod).exit_code == 0
            answers.append(cni.call("ADD", pod, **asking))
            return answers[-1].exit_code

        # On a busy machine the second in between may be over; then ADD gave it again.
        eventually(in_cooldown)
        assert refused(cni, answers[-1], v4, "in cooldown") == 101
        assert addresses(add_when_free(cni, pod, {}, asking))[0] == v4


def test_another_wish_of_the_same_container_is_carried_out(cni):
    with cni.sandbox() as pod:
        addresses(cni.call("ADD", pod))
        v4 = nth(cni, 4, 12)
        assert addresses(cni.call("ADD", pod, CNI_ARGS=arguments(pod, f"IP={v4}")))[0] == v4
        assert cni.occupancy() == {"ipv4": 1, "ipv6": 1}


def test_malformed_wishes_are_refused_before_anything_is_given(cni):
    with cni.sandbox() as pod:
        for keys in (
            {"runtimeConfig": {"ips": ["10.1"]}},
            {"runtimeConfig": {"dns": 7}},
            {"args": {"cni": 7}},
        ):
            assert refused(cni, cni.call("ADD", pod, keys=keys)) == 7
        assert refused(cni, cni.call("ADD", pod, CNI_ARGS="IP=10.1"), "CNI_ARGS: IP") == 4
        assert cni.occupancy() == {"ipv4": 0, "ipv6": 0}


def test_what_chained_plugins_are_asked_for_is_no_error_and_is_logged(cni):
    with cni.sandbox() as pod:
        runtime = {
            "portMappings": [{"hostPort": 80, "containerPort": 80}],
            "bandwidth": {"ingressRate": 1},
        }
        addresses(cni.call("ADD", pod, keys={"runtimeConfig": runtime | {"aliases": ["web"]}}))
        log = (cni.node.directory / "agent.log").read_text()
        assert f"container={pod.container} keys=\"'portMappings','bandwidth','aliases'\"" in log


def test_the_runtimes_resolver_is_merged_into_the_configurations(cni):
    configured = {"nameservers": ["10.0.0.1"], "domain": "cluster.example", "options": ["ndots:5"]}
    runtime = {"dns": {"servers": ["10.0.0.2"], "searches": ["a.example"]}}
    with cni.sandbox() as pod:
        answer = cni.call("ADD", pod, keys={"dns": configured, "runtimeConfig": runtime})
        addresses(answer)
    assert answer.body["dns"] == {
        "nameservers": ["10.0.0.2"],
        "domain": "cluster.example",
        "options": ["ndots:5"],
        "search": ["a.example"],
    }


def test_code_3_holds_what_it_promises_where_the_container_was_attached_before(cni, tmp_path):
    with cni.sandbox() as pod:
        addresses(cni.call("ADD", pod))
        assert cni.call("ADD", pod, CNI_NETNS=str(tmp_path / "absent")).code == 3
        assert cni.occupancy() == {"ipv4": 0, "ipv6": 0}


def test_what_is_no_network_namespace_is_refused_as_such(cni, tmp_path):
    """Nothing at all is an unknown container."""
    with cni.sandbox() as pod:
        before = cni.node.snapshot()["pool"]
        for code, paths in (
            (3, (tmp_path / "absent", "/dev/null/absent")),
            (4, ("/dev/null", tmp_path, "/proc/self/ns/mnt")),
        ):
            for path in paths:
                answer = cni.call("ADD", pod, CNI_NETNS=str(path))
                assert refused(cni, answer, "CNI_NETNS", str(path)) == code
        assert cni.node.snapshot()["pool"] == before
