"""CHECK finds whatever was taken from an attachment, and says what; STATUS and an absent agent tell
the truth.
"""

import json

import pytest

from cni.wire import decode_request
from netmgr.documents.node import Backend
from tests.kernel.conforming import debians, one_node
from tests.kernel.conftest import LEGACY
from tests.kernel.namespaces import inside
from tests.unit import cni_shapes
from tests.waiting import eventually

pytestmark = pytest.mark.root

# For counters and rules: links, addresses and routes are compared alike whatever holds these.
EITHER_BACKEND = pytest.mark.parametrize("cni", [Backend.NFTABLES, LEGACY], indirect=True, ids=str)

V4_ONLY = {
    "ranges": ["10.128.16.0/31"],
    "pool": {"cooldown_seconds": 1, "conntrack_wait_seconds": 0},
}


@pytest.fixture(scope="module", params=[Backend.NFTABLES], ids=str)
def cni(request):
    with one_node(backend=request.param) as caller:
        yield caller


class Attached:
    """An attachment in the kernel, and ways to damage it."""

    def __init__(self, cni, pod):
        self.pod = pod
        self._cni = cni
        self.result = cni.add(pod)
        self.host = self.result["interfaces"][0]["name"]
        self.v4, self.v6 = [entry["address"].partition("/")[0] for entry in self.result["ips"]]

    def in_pod(self, *command):
        inside(self.pod.netns, *command)

    def on_node(self, *command):
        inside(self._cni.node.namespace, *command)

    def uncount(self, address, family):
        """Take an address out of the set by which its outgoing traffic is counted."""
        if self._cni.world.backend is Backend.NFTABLES:
            self.on_node(
                "nft", "delete", "element", "inet", "netmgr", f"pod_out{family}", f"{{ {address} }}"
            )
        else:
            self.on_node("ipset", "del", f"netmgr-pod-out{family}", address)


DAMAGE = {
    "default route": lambda at: at.in_pod("ip", "route", "del", "default"),
    "default v6 route": lambda at: at.in_pod("ip", "-6", "route", "del", "default"),
    "gateway route": lambda at: at.in_pod("ip", "route", "flush", "169.254.1.1"),
    "address": lambda at: at.in_pod("ip", "addr", "del", f"{at.v4}/32", "dev", "eth0"),
    "v6 address": lambda at: at.in_pod("ip", "addr", "del", f"{at.v6}/128", "dev", "eth0"),
    "pod link down": lambda at: at.in_pod("ip", "link", "set", "eth0", "down"),
    "pod link renamed": lambda at: at.in_pod(
        "sh", "-c", "ip link set eth0 down && ip link set eth0 name eth1 && ip link set eth1 up"
    ),
    "link": lambda at: at.in_pod("ip", "link", "del", "eth0"),
    "host link down": lambda at: at.on_node("ip", "link", "set", at.host, "down"),
    "host route": lambda at: at.on_node("ip", "route", "del", at.v4),
    "host v6 route": lambda at: at.on_node("ip", "-6", "route", "del", at.v6),
}

DAMAGE_TO_COUNTERS = {
    "counter": lambda at: at.uncount(at.v4, 4),
    "v6 counter": lambda at: at.uncount(at.v6, 6),
}

RULES = {
    Backend.NFTABLES: [
        f"nft flush chain inet netmgr {chain}"
        for chain in ("before_srcnat", "prerouting", "postrouting")
    ],
    Backend.IPTABLES_LEGACY: [
        "iptables-legacy -t mangle -F NETMGR-BEFORE_SRCNAT",
        "ip6tables-legacy -t mangle -F NETMGR-BEFORE_SRCNAT",
        "iptables-legacy -t raw -F NETMGR-PREROUTING",
        "iptables-legacy -t nat -F NETMGR-POSTROUTING",
    ],
}
"""What takes away rules that count pods, keep others' addresses out, or masquerade."""


def check(cni, attached, **keys):
    return cni.call("CHECK", attached.pod, keys={"prevResult": attached.result} | keys)


def failed(answer):
    cni_shapes.error(answer.body)
    return answer.code == 104


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_check_finds_what_was_taken_from_a_pod_and_only_there(cni, damage):
    assert_only_there(cni, damage)


@EITHER_BACKEND
@pytest.mark.parametrize("damage", DAMAGE_TO_COUNTERS.values(), ids=DAMAGE_TO_COUNTERS)
def test_check_finds_a_counter_that_was_taken_from_a_pod_and_only_there(cni, damage):
    assert_only_there(cni, damage)


def assert_only_there(cni, damage):
    with cni.sandbox() as other, cni.sandbox() as pod:
        untouched, attached = Attached(cni, other), Attached(cni, pod)
        assert check(cni, attached).exit_code == 0
        damage(attached)
        assert failed(check(cni, attached))
        assert check(cni, untouched).exit_code == 0


@EITHER_BACKEND
@pytest.mark.slow
def test_check_misses_rules_that_every_pod_needs_until_an_agent_starts(cni):
    with cni.sandbox() as pod:
        attached = Attached(cni, pod)
        for command in RULES[cni.world.backend]:
            assert check(cni, attached).exit_code == 0

            def is_missed(command=command):
                # An agent that has just started looks once more.
                attached.on_node(*command.split())
                return check(cni, attached).code == 104

            eventually(is_missed, command)
            cni.node.restart_after_kill()
        assert check(cni, attached).exit_code == 0


def test_check_lets_a_later_plugin_move_the_default_route_to_another_interface(cni):
    with cni.sandbox() as pod:
        attached = Attached(cni, pod)
        first, *others = attached.result["routes"]
        assert first["dst"] == "0.0.0.0/0"
        DAMAGE["default route"](attached)
        assert failed(check(cni, attached))
        assert check(cni, attached, prevResult=attached.result | {"routes": others}).exit_code == 0
        DAMAGE["default v6 route"](attached)
        assert failed(check(cni, attached, prevResult=attached.result | {"routes": others}))


def test_check_reads_of_a_previous_result_what_it_has(cni):
    with cni.sandbox() as pod:
        result = cni.add(pod, version="1.1.0")
        inside(pod.netns, "ip", "link", "set", "lo", "up")

        def checked(routes, **changes):
            links = [{**link, **changes} for link in result["interfaces"]]
            links = [{key: value for key, value in link.items() if value} for link in links]
            previous = result | {"interfaces": links, "routes": routes}
            return cni.check(pod, previous, "1.1.0")

        assert checked([], mac=None, mtu=None).exit_code == 0
        _, link = result["interfaces"]
        link["mac"] = link["mac"].upper()
        assert checked(result["routes"]).exit_code == 0
        inside(pod.netns, "ip", "link", "set", "eth0", "mtu", "9000")
        answer = checked(result["routes"])
        assert failed(answer)
        assert "MTU 1500 of eth0, the sandbox has 9000" in answer.body["msg"]


def tuned(cni, pod, result):
    # Up to 1.10, the newest, it hands on the former MTU.
    debians("tuning", cni, "ADD", pod, mtu=1400, prevResult=result)


def routed_by_source(cni, pod, result):
    debians("sbr", cni, "ADD", pod, prevResult=result)


def moved_to_a_vrf(_cni, pod, _result):
    # What `vrf` leaves behind, on a kernel that has no such device, too.
    for family, gateway in (("-4", "169.254.1.1"), ("-6", "fe80::1")):
        for route in (f"{gateway} dev eth0", f"default via {gateway} dev eth0"):
            inside(pod.netns, "ip", family, "route", "add", *route.split(), "table", "10")
        inside(pod.netns, "ip", family, "route", "del", "default")
        inside(pod.netns, "ip", family, "route", "del", gateway)


@pytest.mark.parametrize("later", [tuned, routed_by_source, moved_to_a_vrf])
def test_check_lets_a_later_plugin_change_what_it_can_own(cni, later):
    with cni.sandbox() as pod:
        result = cni.add(pod, version="1.1.0")
        older = cni.add(pod)
        later(cni, pod, older)

        def checked():
            return cni.check(pod, result, "1.1.0")

        answer = checked()
        assert answer.exit_code == 0, answer.body
        host = result["interfaces"][0]["name"]
        inside(cni.node.namespace, "ip", "link", "set", host, "mtu", "1400")
        assert f"MTU 1500 of {host}, the host has 1400" in checked().body["msg"]
        inside(cni.node.namespace, "ip", "link", "set", host, "mtu", "1500")
        inside(pod.netns, "ip", "route", "flush", "table", "all", "exact", "default")
        assert failed(checked())


def test_check_finds_another_interface_in_the_place_of_the_pods_end(cni):
    with cni.sandbox() as pod:
        result = cni.add(pod)
        mac, state = result["interfaces"][1]["mac"], ["ip", "-j", "address", "show", "eth0"]
        former = json.loads(inside(pod.netns, *state))[0]["addr_info"]
        inside(pod.netns, "ip", "link", "set", "eth0", "name", "moved")
        inside(pod.netns, *f"ip link add eth0 address {mac} type bridge".split())
        inside(pod.netns, "ip", "link", "set", "eth0", "up")
        for held in former:
            taken = f"{held['local']}/{held['prefixlen']}"
            inside(pod.netns, "ip", "address", "del", taken, "dev", "moved")
            inside(pod.netns, "ip", "address", "add", taken, "dev", "eth0", "nodad")
        answer = cni.check(pod, result)
        host = result["interfaces"][0]["name"]
        assert f"interface eth0 in the sandbox is not the peer of {host}" in answer.body["msg"]


def test_check_finds_routes_of_a_later_plugin_in_whatever_table_they_are(cni):
    with cni.sandbox() as pod:
        attached = Attached(cni, pod)
        later = "ip route add 198.51.100.0/24 via 169.254.1.1 dev eth0 table 7"
        attached.in_pod(*later.split())

        def with_route(**keys):
            routes = [*attached.result["routes"], {"dst": "198.51.100.0/24"} | keys]
            return check(cni, attached, prevResult=attached.result | {"routes": routes})

        assert with_route().exit_code == 0
        assert with_route(gw="169.254.1.1", table=7).exit_code == 0
        assert failed(with_route(table=254))


def test_check_of_a_sandbox_that_is_gone_says_so_once(cni):
    with cni.sandbox() as pod:
        attached = Attached(cni, pod)
        answer = cni.check(pod, attached.result, CNI_NETNS="/run/netns/absent")
        assert failed(answer)
        assert answer.body["msg"].count("/run/netns/absent") == 1


def test_a_full_pool_fails_adds_and_not_status_which_would_evict_the_nodes_pods():
    with one_node(**V4_ONLY) as cni:  # noqa: SIM117 (pods end first)
        with cni.sandbox() as first, cni.sandbox() as second, cni.sandbox() as third:
            for pod in (first, second):
                cni.add(pod)
                assert cni.call("STATUS", version="1.1.0").exit_code == 0
            shown = cni.node.snapshot()
            assert (shown["ready"], "no IPv4 address is free" in shown["reason"]) == (False, True)
            assert cni.call("ADD", third).code == 101
            assert cni.occupancy() == {"ipv4": 2}
            assert cni.call("DEL", first).exit_code == 0
            assert cni.call("STATUS", version="1.1.0").exit_code == 0
            eventually(lambda: cni.node.snapshot()["ready"])
            cni.add(third)


def test_what_runtimes_are_told_while_the_agent_is_away_and_what_it_does_when_it_is_back(cni):
    spool = cni.node.directory / "state" / "spool"
    with cni.sandbox() as gone, cni.sandbox() as staying:
        lost, kept = Attached(cni, gone), Attached(cni, staying)
        cni.node.kill_agent()
        codes = {
            "ADD": cni.call("ADD", staying).code,
            "CHECK": check(cni, kept).code,
            **{verb: cni.call(verb, version="1.1.0").code for verb in ("GC", "STATUS")},
            "DEL": cni.call("DEL", gone).code,
            "VERSION": cni.call("VERSION").code,
        }
        assert codes == {"ADD": 11, "CHECK": 11, "GC": 11, "STATUS": 50, "DEL": 0, "VERSION": 0}
        (waiting,) = spool.iterdir()
        assert decode_request(waiting.read_bytes())[0]["CNI_CONTAINERID"] == gone.container
        cni.node.start_until_ready()
        eventually(lambda: list(spool.iterdir()) == [])
        assert cni.occupancy() == {"ipv4": 1, "ipv6": 1}
        assert check(cni, kept).exit_code == 0
        assert check(cni, lost).code == 104
