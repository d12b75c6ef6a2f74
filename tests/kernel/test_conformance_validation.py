"""Requests that break the CNI specification are refused with its codes before anything is done."""

import json
import socket

import pytest

from cni.wire import encode_request
from netmgr.documents.node import Backend
from tests.kernel.conforming import ALLOWED, CASES, VERSIONS, Answer, config, one_node, valid
from tests.lab.topology import cluster
from tests.unit import cni_shapes

pytestmark = pytest.mark.root

REQUIRED = {
    "ADD": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    "DEL": ("CNI_CONTAINERID", "CNI_IFNAME"),
    "CHECK": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    "GC": ("CNI_PATH",),
    "STATUS": (),
}
MALFORMED = {
    "CNI_CONTAINERID": ("-c1", "a/b", "a b", "\u00e4"),
    "CNI_IFNAME": (
        "0123456789abcdef",
        ".",
        "..",
        "a/b",
        "a:b",
        "a b",
        "e%d",
        "ä0",
        "eth\udcff",
        "all",
    ),
    "CNI_NETNS": ("relative/path",),
    "CNI_PATH": (),
}
BAD_STDIN = {
    6: (b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000),
    7: (
        config("1.1.0", name=...),
        config("1.1.0", name="a b"),
        config("1.1.0", name=7),
        config("1.1.0", type=...),
        config("1.1.0", name="another-network"),
    ),
    1: (config(...), config("0.2.0"), config("2.0.0")),
}


@pytest.fixture(scope="module")
def cni():
    with one_node(cluster(nodes=1, pods=0), backend=Backend.NFTABLES) as caller:
        yield caller


@pytest.fixture(autouse=True)
def standing(cni):
    """A pod that must come through every bad request unharmed."""
    with cni.sandbox() as pod:
        result = cni.call("ADD", pod).body
        yield pod
        assert cni.call("CHECK", pod, keys={"prevResult": result}).exit_code == 0
        assert cni.occupancy() == {"ipv4": 1, "ipv6": 1}


def keys_of(command):
    """What a verb wants in its configuration beside the common keys."""
    return {"CHECK": {"prevResult": {}}, "GC": valid()}.get(command, {})


def refused(answer, code, version="1.1.0"):
    assert answer.exit_code == 1
    cni_shapes.error(answer.body)
    assert (answer.body["code"], answer.body["cniVersion"]) == (code, version)
    return answer.body["msg"]


@pytest.mark.parametrize("absent", [None, ""], ids=["unset", "empty"])
@pytest.mark.parametrize(("command", "version"), CASES)
def test_each_required_variable_is_missed_by_name(cni, standing, command, version, absent):
    for name in REQUIRED[command]:
        answer = cni.call(command, standing, version, keys_of(command), **{name: absent})
        assert name in refused(answer, 4, version)


@pytest.mark.parametrize(("command", "version"), CASES)
def test_each_malformed_variable_is_refused_by_name(cni, standing, command, version):
    for name in REQUIRED[command]:
        for value in MALFORMED[name]:
            answer = cni.call(command, standing, version, keys_of(command), **{name: value})
            assert name in refused(answer, 4, version)


@pytest.mark.parametrize("command", [None, "", "add", "UPDATE"])
def test_an_unknown_verb_is_refused(cni, standing, command):
    assert "CNI_COMMAND" in refused(cni.call("ADD", standing, CNI_COMMAND=command), 4, "1.0.0")


@pytest.mark.parametrize(
    ("command", "version"),
    [(verb, each) for verb in ALLOWED for each in VERSIONS if each not in ALLOWED[verb]],
)
def test_a_verb_is_refused_in_versions_older_than_it(cni, standing, command, version):
    assert command in refused(cni.call(command, standing, version, keys_of(command)), 1, version)


CARRIED_OUT = {("DEL", 7), ("DEL", 1)}


@pytest.mark.parametrize(
    ("command", "code"),
    [(verb, code) for verb in ALLOWED for code in BAD_STDIN if (verb, code) not in CARRIED_OUT],
)
def test_a_bad_configuration_is_refused(cni, standing, command, code):
    for stdin in BAD_STDIN[code]:
        answer = cni.execute(cni.variables(command, standing), stdin)
        assert answer.exit_code == 1
        cni_shapes.error(answer.body)
        assert answer.body["code"] == code


@pytest.mark.parametrize("code", [1, 7])
def test_del_is_carried_out_whatever_the_configuration_says(cni, code):
    for stdin in BAD_STDIN[code]:
        with cni.sandbox() as pod:
            assert cni.call("ADD", pod).exit_code == 0
            assert cni.execute(cni.variables("DEL", pod), stdin) == Answer(0, None)
            assert cni.occupancy() == {"ipv4": 1, "ipv6": 1}


def test_an_agent_that_is_asked_directly_refuses_what_is_not_utf8_and_goes_on(cni, standing):
    """As a launcher of an earlier version asks, which looks at no variable."""
    broken = encode_request(cni.variables("ADD", standing, CNI_IFNAME="eth\udcff"), config())
    with socket.socket(socket.AF_UNIX) as agent:
        agent.connect(str(cni.node.run_dir / "cni.sock"))
        agent.sendall(broken)
        agent.shutdown(socket.SHUT_WR)
        exit_code, _, body = b"".join(iter(lambda: agent.recv(1 << 16), b"")).partition(b"\n")
    assert (exit_code, json.loads(body)["code"]) == (b"1", 4)
    with cni.sandbox() as innocent:
        assert cni.call("ADD", innocent).exit_code == 0


def test_a_kept_del_that_can_never_succeed_is_set_aside_and_reported(cni, standing):
    spool = cni.node.directory / "state" / "spool"
    cni.node.kill_agent()
    request = encode_request(cni.variables("DEL", standing, CNI_IFNAME="eth\udcff"), config())
    (spool / "0123456789abcdef.del").write_bytes(request)
    (spool / "fedcba9876543210.del").write_bytes(b"nonsense")
    cni.node.start_agent()
    cni.node.wait_until_ready()
    aside = sorted(path.name for path in spool.iterdir())
    assert aside == ["0123456789abcdef.del.refused", "fedcba9876543210.del.refused"]
    log = (cni.node.directory / "agent.log").read_text()
    assert all(name in log for name in aside)
    for name in aside:
        (spool / name).unlink()
