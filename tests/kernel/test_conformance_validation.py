"""Requests that break the CNI specification are refused with its codes, and harm nobody; nor do
questions that are none.

Which requests they are is tested in `tests/unit/test_cni_request.py`.
"""

import json
import socket

import pytest

from cni.wire import encode_request
from tests.kernel.conforming import Answer, config
from tests.unit import cni_shapes
from tests.waiting import PATIENCE

pytestmark = pytest.mark.root

BAD_STDIN = {
    6: (b"", b"\xff", b"[" * 100_000),
    7: (config("1.1.0", name="a b"), config("1.1.0", name="another-network")),
    1: (config(...), config("2.0.0")),
}
BAD_VARIABLES = {
    "CNI_COMMAND": "UPDATE",
    "CNI_CONTAINERID": "a/b",
    "CNI_IFNAME": "eth\udcff",
    "CNI_NETNS": "relative/path",
}


@pytest.fixture(autouse=True)
def standing(cni):
    """A pod that must come through every bad request unharmed."""
    with cni.sandbox() as pod:
        result = cni.add(pod)
        yield pod
        assert cni.check(pod, result).exit_code == 0
        assert cni.occupancy() == {"ipv4": 1, "ipv6": 1}


def refused(answer, code):
    assert answer.exit_code == 1
    cni_shapes.error(answer.body)
    assert answer.body["code"] == code
    return answer.body["msg"]


@pytest.mark.parametrize("name", BAD_VARIABLES)
def test_a_variable_that_is_missing_or_malformed_is_refused_by_name(cni, standing, name):
    for value in (None, "", BAD_VARIABLES[name]):
        assert name in refused(cni.call("ADD", standing, **{name: value}), 4)


@pytest.mark.parametrize("code", BAD_STDIN)
def test_a_bad_configuration_is_refused(cni, standing, code):
    for stdin in BAD_STDIN[code]:
        refused(cni.execute(cni.variables("ADD", standing), stdin), code)


@pytest.mark.parametrize("code", [1, 7])
def test_del_is_carried_out_whatever_the_configuration_says(cni, code):
    for stdin in BAD_STDIN[code]:
        with cni.sandbox() as pod:
            cni.add(pod)
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
        cni.add(innocent)


def test_a_kept_del_that_can_never_succeed_is_set_aside_and_reported(cni, standing):
    spool = cni.node.directory / "state" / "spool"
    cni.node.kill_agent()
    request = encode_request(cni.variables("DEL", standing, CNI_IFNAME="eth\udcff"), config())
    (spool / "0123456789abcdef.del").write_bytes(request)
    (spool / "fedcba9876543210.del").write_bytes(b"nonsense")
    cni.node.start_until_ready()
    aside = sorted(path.name for path in spool.iterdir())
    assert aside == ["0123456789abcdef.del.refused", "fedcba9876543210.del.refused"]
    log = (cni.node.directory / "agent.log").read_text()
    assert all(name in log for name in aside)
    for name in aside:
        (spool / name).unlink()


def ask(cni, line):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(str(cni.node.run_dir / "ledger.sock"))
        connection.sendall(line + b"\n")
        return json.loads(b"".join(iter(lambda: connection.recv(1 << 16), b"")))


NO_QUERIES = {
    "arrays": b"[" * 4000,
    "objects": b'{"version":' * 360,
    "deep query": b'{"version": 1, "query": ' + b"[" * 3900,
    "digits": b"9" * 4000,
    "too long": b"[" + b" " * 8000,
    "bytes": b"\xff",
    "empty": b"",
    "infinite": b'{"version": 1e999}',
    "surrogate": b'{"version": "\\ud800"}',
}


@pytest.mark.parametrize("line", NO_QUERIES.values(), ids=NO_QUERIES)
def test_what_is_no_query_gets_an_answer_and_leaves_no_traceback(cni, line):
    assert "error" in ask(cni, line)
    assert "Traceback" not in (cni.node.directory / "agent.log").read_text()
    assert cni.node.snapshot()["ready"]
