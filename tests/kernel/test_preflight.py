"""`netmgr preflight` on a real network: a node, a peer and an internet behind a fabric that a test
breaks.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from netmgr.agent.core import instance
from netmgr.agent.core.instance import Holder
from netmgr.documents import node_list
from netmgr.documents.node_list import ListedNode
from netmgr.errors import ConfigError, SetupError
from netmgr.kernel import netns
from netmgr.model import LINK_GROUP, PROBE_LINK
from netmgr.prefixes import Address, Family
from netmgr.preflight import dns
from netmgr.preflight.results import CheckOutcome
from tests.fakes.kustomize import added
from tests.fakes.nameserver import answer
from tests.kernel.fabric import NODE, PEER, RANGES, STATE, Fabric, changed, filtering, serving
from tests.lab import wiring
from tests.lab.exchange import open_socket
from tests.lab.topology import INTERNET, Node
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.root


def test_a_sound_network_passes_in_both_families_and_nothing_stays(fabric: Fabric) -> None:
    before = [fabric.at(NODE.host, *each) for each in STATE]
    hub = list(map(str, PEER.addresses))
    found = fabric.probed(preflight={"hub": hub})
    assert [each.outcome for each in found.results] == [CheckOutcome.PASSED] * len(found.results)
    assert [each.check for each in found.results].count("routes") == 4
    assert {each.check for each in found.results} == {"reach", "routes", "mtu", "loss"}
    assert [fabric.at(NODE.host, *each) for each in STATE] == before


@pytest.mark.parametrize("family", list(Family), ids=["v4", "v6"])
def test_a_node_of_one_family_passes_beside_a_hub_of_both(fabric: Fabric, family: Family) -> None:
    other = Family.V6 if family is Family.V4 else Family.V4
    hub = {"peers": [str(PEER.address(family))], "hub": list(map(str, PEER.addresses))}
    keys = {
        "node": {"name": NODE.host, "addresses": [str(NODE.address(family))]},
        "ranges": [RANGES[family]],
        "preflight": hub,
    }
    lost = f"ip -{other.value} route replace blackhole {PEER.address(other)}"
    with changed(fabric, NODE.host, lost, lost.replace("replace", "del")):
        assert fabric.failed(**keys) == {}
        assert "reach" in fabric.failed(preflight=hub)


@pytest.mark.parametrize("family", list(Family), ids=["v4", "v6"])
def test_a_range_that_the_fabric_does_not_deliver_here_is_named(
    fabric: Fabric, family: Family
) -> None:
    with undelivered(fabric, family):
        found = fabric.probed()
    (failure,) = found.failures
    assert (failure.check, failure.subject) == ("routes", f"{RANGES[family]} by peers")
    assert f"have the network deliver {RANGES[family]} to this node" in failure.remedy
    assert fabric.failed() == {}


def test_a_range_that_is_another_nodes_is_not_this_ones(fabric: Fabric) -> None:
    ip, v4 = "ip route replace 10.128.16.0/28 via", Family.V4
    with changed(fabric, "fabric", f"{ip} {PEER.address(v4)}", f"{ip} {NODE.address(v4)}"):
        assert set(fabric.failed()) == {"routes"}


def test_a_fabric_that_drops_the_ranges_as_sources_is_noticed(fabric: Fabric) -> None:
    with filtering(fabric, "fabric", "forward", "ip saddr 10.128.16.0/28 drop"):
        assert set(fabric.failed()) == {"routes"}


LARGER = ("icmp type destination-unreachable drop", "icmpv6 type packet-too-big drop")


def test_the_largest_packet_of_a_path_is_found_where_no_icmp_tells_it(fabric: Fabric) -> None:
    with filtering(fabric, "fabric", "output", *LARGER), narrow_peer(fabric):
        failures = fabric.probed().failures
    assert [each.check for each in failures] == ["mtu", "mtu"]
    for each in failures:
        assert each.message == "packets of up to 1400 bytes are answered, larger ones are lost"
        assert "or set mtu: 1400 in node.yaml" in each.remedy


@contextmanager
def narrow_peer(fabric: Fabric) -> Iterator[None]:
    """The peer's link takes packets of up to 1400 bytes."""
    narrow, wide = (f"ip link set {PEER.host} mtu {mtu}" for mtu in (1400, 1500))
    with changed(fabric, "fabric", narrow, wide):
        yield


@contextmanager
def undelivered(fabric: Fabric, family: Family = Family.V4) -> Iterator[None]:
    """The fabric knows no way to the node's range."""
    ip, block = f"ip -{family.value} route", RANGES[family]
    back = f"{ip} add {block} via {NODE.address(family)}"
    with changed(fabric, "fabric", f"{ip} del {block}", back):
        yield


def narrowed(fabric: Fabric, host: str, toward: Node) -> Any:
    """Have the peer, or the fabric, send nothing larger than 1400 bytes to a node."""
    change, back = [], []
    for family in Family:
        # The peer's gateway is the first address of its network.
        gateway = Address(family, PEER.address(family).value - 1)
        way = f"via {gateway}" if host == PEER.host else f"dev {toward.host}"
        route = f"ip -{family.value} route {{}} {toward.address(family)}"
        change.append(f"{route.format('add')} {way} mtu lock 1400")
        back.append(route.format("del"))
    return changed(fabric, host, "; ".join(change), "; ".join(back))


def test_a_smaller_mtu_on_the_way_back_is_noticed_by_its_fragments(fabric: Fabric) -> None:
    with narrowed(fabric, PEER.host, NODE):
        failures = fabric.probed().failures
    assert [each.check for each in failures] == ["mtu", "mtu"]
    assert "come back in fragments of 1396" in failures[0].message
    assert "come back in fragments of 1400" in failures[1].message


def test_a_smaller_mtu_on_the_way_there_is_not_hidden_by_the_kernel_that_learns_it(
    fabric: Fabric,
) -> None:
    with narrowed(fabric, "fabric", PEER):
        for _ in range(2):
            failures = fabric.probed().failures
            assert [each.check for each in failures] == ["mtu", "mtu"]
            assert all("up to 1400 bytes are answered" in each.message for each in failures)


def test_the_mtu_of_pods_is_what_has_to_pass(fabric: Fabric) -> None:
    with narrow_peer(fabric):
        assert set(fabric.failed()) == {"mtu"}
        assert fabric.failed(mtu=1400) == {}
    # More than this node's own link takes.
    failures = fabric.probed(mtu=1600).failures
    assert [each.check for each in failures] == ["mtu", "mtu"]
    assert all("up to 1500 bytes are answered" in each.message for each in failures)


def test_a_lossy_way_fails_and_a_lost_packet_now_and_then_does_not(fabric: Fabric) -> None:
    lossy = "ip saddr {} numgen inc mod {} 0 drop".format
    with filtering(fabric, "fabric", "forward", lossy(PEER.address(Family.V4), 5)):
        said = fabric.failed()["loss"]
        assert 15 < float(said.partition("%")[0]) < 25
        assert "at most 2.0% may be" in said
        assert fabric.failed(preflight={"most_loss": 0.3}) == {}
    with filtering(fabric, "fabric", "forward", lossy(PEER.address(Family.V4), 90)):
        assert fabric.failed() == {}


SILENT = ("icmp type echo-request drop", "icmpv6 type echo-request drop")


def test_where_no_echo_is_answered_routes_are_found_by_tcp_and_the_rest_is_unmeasured(
    fabric: Fabric,
) -> None:
    with filtering(fabric, PEER.host, "input", *SILENT):
        found = fabric.probed()
        assert found.failures == []
        wanted = {*product(("reach", "routes"), [CheckOutcome.PASSED])}
        wanted |= {*product(("mtu", "loss"), [CheckOutcome.UNMEASURED])}
        assert {(result.check, result.outcome) for result in found.results} == wanted
        assert set(fabric.failed(preflight={"unmeasured": "fail"})) == {"mtu", "loss"}
        with undelivered(fabric):
            assert set(fabric.failed()) == {"routes"}


def test_a_peer_that_is_down_is_nobodys_fault_as_long_as_another_answers(fabric: Fabric) -> None:
    away = ["10.64.2.77", "fd00:64:0:2::77"]
    assert fabric.failed(preflight={"peers": [*away, *map(str, PEER.addresses)]}) == {}
    assert set(fabric.failed(preflight={"peers": away})) == {"reach"}


def test_hub_and_peers_both_have_to_know_the_ranges(fabric: Fabric) -> None:
    internet = str(INTERNET[Family.V4])
    failures = fabric.probed(preflight={"hub": [internet]}).failures
    assert [each.subject for each in failures] == ["10.128.16.0/28 by hub"]


def test_a_range_that_no_named_machine_could_answer_is_unmeasured(fabric: Fabric) -> None:
    found = fabric.probed(preflight={"peers": [str(PEER.address(Family.V4))]})
    unmeasured = [each for each in found.results if each.outcome is CheckOutcome.UNMEASURED]
    assert [(each.check, each.subject) for each in unmeasured] == [("routes", RANGES[Family.V6])]
    assert "names no IPv6 address" in unmeasured[0].message


def test_nodes_of_a_flat_network_need_no_way_back_to_the_ranges_yet(
    fabric: Fabric, tmp_path: Path
) -> None:
    listed = tmp_path / "nodes.json"
    keys = {"nodes_file": str(listed), "preflight": {"peers": []}}
    # The first node of all finds no list, and the first in the list nobody but itself.
    assert fabric.probed(**keys).failures == []
    listed.write_text(node_list.write([_listed(NODE)]))
    assert fabric.probed(**keys).failures == []
    listed.write_text(node_list.write([_listed(NODE), _listed(PEER)]))
    with undelivered(fabric):
        found = fabric.probed(**keys)
        assert found.failures == []
        passed = {result.check for result in found.results if result.outcome is CheckOutcome.PASSED}
        assert passed == {"reach", "mtu", "loss"}
        with narrow_peer(fabric):
            assert set(fabric.failed(**keys)) == {"mtu"}


def _listed(node: Node) -> ListedNode:
    return ListedNode(node.host, node.addresses, node.ranges)


@pytest.fixture
def server(fabric: Fabric) -> Iterator[str]:
    """A TCP port in the internet that accepts."""
    internet = fabric.directory / "internet"
    with open_socket(internet, Family.V4, socket.SOCK_STREAM) as listener:
        listener.bind((str(INTERNET[Family.V4]), 0))
        listener.listen(5)
        yield f"{INTERNET[Family.V4]}:{listener.getsockname()[1]}"


TRANSLATING = """table ip test {
chain c { type nat hook postrouting priority 100; oifname internet masquerade; }
}"""


def test_egress_fails_where_nobody_translates_what_the_node_does_not(
    fabric: Fabric, server: str
) -> None:
    alone: dict[str, Any] = {"peers": [], "egress": [server]}
    assert fabric.failed(preflight=alone) == {}
    keys: dict[str, Any] = {"masquerade": False, "preflight": alone}
    said = fabric.failed(**keys)
    assert said == {"egress": "no connection from 10.128.16.15: no answer"}
    with changed(fabric, "fabric", f"nft '{TRANSLATING}'", "nft delete table ip test"):
        assert fabric.failed(**keys) == {}
    closed = f"{INTERNET[Family.V4]}:1"
    said = fabric.failed(preflight=alone | {"egress": [closed]})
    assert said == {"egress": "no connection from this node's own address: connection refused"}
    assert fabric.failed(preflight=alone | {"egress": [closed, server]}) == {}


def test_a_nameserver_has_to_answer(
    fabric: Fabric, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dns, "RESOLV_CONF", tmp_path / "resolv.conf")
    keys: dict[str, Any] = {"preflight": {"peers": [], "dns_name": "registry.example.com"}}
    assert "names no nameserver" in fabric.failed(**keys)["dns"]
    (tmp_path / "resolv.conf").write_text(f"nameserver {INTERNET[Family.V6]}\n")
    assert fabric.failed(**keys) == {"dns": f"{INTERNET[Family.V6]} does not answer"}
    with open_socket(fabric.directory / "internet", Family.V6, socket.SOCK_DGRAM) as opened:
        opened.bind(("::", 53))
        # The nameserver is this process, which may be held up.
        keys["preflight"]["answer_seconds"] = 30
        with serving(opened, lambda question, who: opened.sendto(answer(question), who)):
            assert fabric.failed(**keys) == {}
        with serving(opened, lambda question, who: opened.sendto(answer(question, 3, 0), who)):
            assert "says that there is no such name" in fabric.failed(**keys)["dns"]


POD_LINK = "nm0123456789ab"


def test_a_node_that_runs_pods_is_not_probed_whatever_is_wrong(fabric: Fabric) -> None:
    add = f"ip link add {POD_LINK} group {LINK_GROUP} type veth peer name far"
    with changed(fabric, NODE.host, add, f"ip link del {POD_LINK}"):
        away = {"peers": ["10.64.2.77"], "unmeasured": "fail"}
        found = fabric.probed(preflight=away, reader_group="no-such-group")
        assert (found.skipped, found.failures) == ("this node runs 1 pods", [])
        assert fabric.probed(preflight={"peers": []}).skipped


def test_an_observer_is_not_probed(fabric: Fabric) -> None:
    assert "another plugin" in fabric.probed(cni=False, ranges=[]).skipped


def test_a_node_whose_agent_runs_is_not_probed(fabric: Fabric) -> None:
    with wiring.inside(fabric.directory / NODE.host), instance.namespace(Holder.AGENT):
        assert "another agent runs in this network namespace" in fabric.probed().skipped


def test_a_node_does_not_pass_because_another_command_holds_it(fabric: Fabric) -> None:
    with (
        wiring.inside(fabric.directory / NODE.host),
        instance.namespace(Holder.DOCTOR),
        pytest.raises(instance.Held, match="netmgr doctor"),
    ):
        fabric.probed()


def test_nothing_to_probe_and_a_document_that_is_not_the_machines_are_errors(
    fabric: Fabric,
) -> None:
    with pytest.raises(ConfigError, match="preflight: names nothing to probe"):
        fabric.probed(preflight={"peers": []})
    with pytest.raises(ConfigError, match=r"no link of this machine has 10\.9\.9\.9"):
        fabric.probed(node={"name": NODE.host, "addresses": ["10.9.9.9"]})


def command(fabric: Fabric, *options: str, before: tuple[str, ...] = ()) -> list[str]:
    entered = ["nsenter", f"--net={fabric.directory / NODE.host}", *before]
    netmgr = [sys.executable, "-m", "netmgr", "preflight", "-c", str(fabric.document)]
    return [*entered, *netmgr, *options]


def ran(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE)


def test_the_addresses_are_gone_when_it_ends_and_not_some_time_later(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    unnamed = netns.unnamed

    def also_kept() -> int:
        made = unnamed()
        kept.append(os.dup(made))
        return made

    monkeypatch.setattr(netns, "unnamed", also_kept)
    try:
        assert fabric.failed() == {}
        assert not has_link(fabric)
    finally:
        for each in kept:
            os.close(each)


def has_link(fabric: Fabric) -> bool:
    return PROBE_LINK in fabric.at(NODE.host, "ip", "-o", "link")


def test_a_preflight_that_is_killed_leaves_nothing(fabric: Fabric) -> None:
    before = [fabric.at(NODE.host, *each) for each in STATE]
    fabric.write(preflight={"peers": ["10.64.2.77"], "answer_seconds": 30})
    with subprocess.Popen(command(fabric)) as process:
        try:
            eventually(lambda: has_link(fabric))
            # A second one at the same time does not disturb the first, and does not pass either.
            with pytest.raises(instance.Held, match="netmgr preflight"):
                fabric.probed()
            assert has_link(fabric)
        finally:
            process.send_signal(signal.SIGKILL)
    eventually(lambda: [fabric.at(NODE.host, *each) for each in STATE] == before)
    assert fabric.failed() == {}


def test_the_command_says_what_it_found_in_a_short_text_too(fabric: Fabric, tmp_path: Path) -> None:
    fabric.write()
    message = tmp_path / "termination-log"
    with undelivered(fabric):
        done = ran(command(fabric, "-o", "json", "--message", str(message)))
    assert (done.returncode, done.stderr) == (1, "")
    said = json.loads(done.stdout)
    assert (said["passed"], said["skipped"]) == (False, "")
    (failed,) = [each for each in said["results"] if each["outcome"] == "failed"]
    assert (failed["check"], failed["subject"]) == ("routes", "10.128.16.0/28 by peers")
    text = f"routes of 10.128.16.0/28 by peers: {failed['message']}; {failed['remedy']}\n"
    assert message.read_text() == text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "complaint"),
    [
        ("", ""),
        ("net_raw", "echoes cannot be sent: be root (CAP_NET_RAW is needed)"),
        ("net_admin", "CAP_NET_ADMIN is needed"),
        ("sys_admin", "unshare: Operation not permitted"),
    ],
)
def test_the_manifests_capabilities_are_enough_and_with_one_fewer_nothing_stays(
    fabric: Fabric, missing: str, complaint: str
) -> None:
    fabric.write()
    given = added("cni", "netmgr", "preflight", "preflight")
    assert len(given) == 3
    bounding = ",".join(["-all", *(f"+{each}" for each in given if each != missing)])
    confined = ("setpriv", "--no-new-privs", f"--bounding-set={bounding}", "--")
    done = ran(command(fabric, before=confined))
    assert done.returncode == (SetupError.exit_code if missing else 0), done.stderr
    assert complaint in done.stderr
    assert not has_link(fabric)
