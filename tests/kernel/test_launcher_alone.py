"""What the launcher answers when its agent is away, hangs, or talks nonsense."""

import json
import os
import random
import socket
import subprocess
import threading
import time

import pytest

from cni import build
from cni.install import install
from cni.request import Verb, check_text, check_variables
from cni.wire import STARTED, decode_request
from netmgr.errors import InvalidEnvironment
from tests.kernel.launching import CONFIG, MIB, answering, error_of, execute, layout, variables
from tests.waiting import PATIENCE

pytestmark = pytest.mark.programs

QUICK_MS = 300


@pytest.fixture(scope="session")
def quick_launcher(tmp_path_factory):
    """The same program with short patience."""
    target = tmp_path_factory.mktemp("launcher") / "quick"
    compiler = next(build.available(build.host_architecture()))
    patience = tuple(f"-D{name}_MS={QUICK_MS}" for name in ("STDIN", "SEND", "LOOK", "REPLY"))
    hasty = build.Compiler(compiler.name, compiler.command + patience)
    build.build(target, build.host_architecture(), iter([hasty]))
    return target


@pytest.fixture
def impatient_plugin(tmp_path, quick_launcher):
    plan = layout(tmp_path)
    install(plan, quick_launcher)
    return plan


def spooled(plugin):
    return sorted(plugin.spool.iterdir())


def nobody_listens(plugin, _agent):
    plugin.run_dir.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(plugin.socket))


REPLIES = {
    "closes after the request": b"",
    "answers half a line": b"0",
    "answers nonsense": b"ok\n{}",
    "answers an impossible code": b"999\n{}",
}


def closes_at_once(_agent, connection):
    connection.close()


AWAY = {
    "no socket": lambda _plugin, _agent: None,
    "nobody listens": nobody_listens,
    "closes at once": lambda plugin, agent: agent(plugin, closes_at_once),
} | {
    name: lambda plugin, agent, reply=reply: agent(plugin, answering(reply))
    for name, reply in REPLIES.items()
}


@pytest.mark.parametrize("away", AWAY)
@pytest.mark.parametrize(
    ("command", "code"), [("ADD", 11), ("CHECK", 11), ("GC", 11), ("STATUS", 50)]
)
def test_what_is_answered_while_the_agent_is_away(plugin, agent, away, command, code):
    AWAY[away](plugin, agent)
    error = error_of(execute(plugin, command, CONFIG[:-1] + b',"wait":1}'))
    assert (error["code"], error["cniVersion"]) == (code, "1.0.0")
    assert str(plugin.socket) in error["details"]
    assert spooled(plugin) == []


INVALID = [
    {"CNI_IFNAME": "e%d"},
    {"CNI_IFNAME": "../eth0"},
    {"CNI_IFNAME": "0123456789abcdef"},
    {"CNI_IFNAME": "all"},
    {"CNI_IFNAME": ""},
    {"CNI_CONTAINERID": "-c1"},
    {"CNI_CONTAINERID": ""},
    {"CNI_IFNAME": "eth\udcff"},
    {"CNI_ARGS": "K8S_POD_NAME=\udcff"},
]


@pytest.mark.parametrize("away", ["no socket", "closes after the request"])
@pytest.mark.parametrize("changes", INVALID, ids=str)
@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK"])
def test_what_can_never_succeed_is_refused_by_name_and_not_kept(
    plugin, agent, away, command, changes
):
    AWAY[away](plugin, agent)
    error = error_of(execute(plugin, command, **changes))
    assert (error["code"], error["cniVersion"]) == (4, "1.0.0")
    assert next(iter(changes)) in error["msg"]
    assert spooled(plugin) == []


def test_an_unknown_verb_is_refused_while_the_agent_is_away(plugin):
    for command in ("", "add", "UPDATE", "D"):
        assert "CNI_COMMAND" in error_of(execute(plugin, command))["msg"]


def test_bytes_that_are_not_utf8_never_reach_the_agent(plugin, agent):
    listening = agent(plugin, answering(b"0\n"))
    for broken in b"\xff \xc0\x80 \xed\xa0\x80 \xf4\x90\x80\x80 \xe2\x82 \x80".split():
        error = error_of(execute(plugin, "ADD", CNI_IFNAME=os.fsdecode(b"eth" + broken)))
        assert (error["code"], "CNI_IFNAME" in error["msg"]) == (4, True)
    assert listening.requests == []


ALPHABET = [*"ab0_.-/:% =;", "\u00e9", "\udcff", "\udcc3", "\U0001f600", "\x01", "eth0", "/run"]


def test_the_launcher_refuses_what_the_agent_would_refuse(plugin):
    chance = random.Random(20260101)  # noqa: S311  the same requests each time
    for _ in range(300):
        given = {}
        for name in ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"):
            if chance.random() < 0.5:
                given[name] = "".join(chance.choices(ALPHABET, k=chance.randrange(4)))
        command = chance.choice(("ADD", "DEL", "CHECK", "STATUS", "GC"))
        try:
            environment = variables(command, **given)
            check_text(environment)
            check_variables(Verb(command), environment)
            refused = False
        except InvalidEnvironment:
            refused = True
        outcome = execute(plugin, command, **given)
        code = json.loads(outcome.stdout)["code"] if outcome.returncode else 0
        assert (code == InvalidEnvironment.cni_code) == refused, (command, given)


@pytest.mark.parametrize("away", AWAY)
def test_a_del_is_kept_and_succeeds_while_the_agent_is_away(plugin, agent, away):
    AWAY[away](plugin, agent)
    outcome = execute(plugin, "DEL")
    assert (outcome.returncode, outcome.stdout) == (0, b"")
    (kept,) = spooled(plugin)
    assert kept.suffix == ".del"
    environment, stdin = decode_request(kept.read_bytes())
    assert environment.pop(STARTED).isdigit()
    assert (environment, stdin) == (variables("DEL"), CONFIG)
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_del_that_comes_again_is_kept_once(plugin):
    for asked in ("c1 eth0", "c1 eth0", "c1 net1", "c2 eth0", "c1e th0"):
        container, ifname = asked.split()
        execute(plugin, "DEL", CNI_CONTAINERID=container, CNI_IFNAME=ifname)
    assert len(spooled(plugin)) == 4


def test_the_spool_directory_is_made_for_root_alone(plugin):
    plugin.spool.rmdir()
    assert execute(plugin, "DEL").returncode == 0
    assert plugin.spool.stat().st_mode & 0o777 == 0o700
    assert len(spooled(plugin)) == 1


def test_a_del_that_the_state_directory_refuses_is_kept_beside_the_socket(plugin):
    plugin.spool.rmdir()
    plugin.spool.touch()
    plugin.run_dir.mkdir()
    assert execute(plugin, "DEL").returncode == 0
    folder = plugin.run_dir / "spool"
    (kept,) = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, kept.stat().st_mode & 0o777) == (0o700, 0o600)
    assert decode_request(kept.read_bytes())[1] == CONFIG


def test_a_del_that_cannot_be_kept_fails(plugin):
    plugin.spool.rmdir()
    plugin.spool.touch()
    error = error_of(execute(plugin, "DEL"))
    assert error["code"] == 11
    assert str(plugin.spool) in error["details"]


def hang(_agent, connection):
    while connection.recv(1 << 16):
        pass
    time.sleep(3 * QUICK_MS / 1000)
    connection.close()


@pytest.mark.alone
@pytest.mark.parametrize(("command", "code"), [("ADD", 11), ("STATUS", 50), ("CHECK", 50)])
def test_an_agent_that_hangs_is_not_waited_for_forever(impatient_plugin, agent, command, code):
    agent(impatient_plugin, hang)
    begin = time.monotonic()
    assert error_of(execute(impatient_plugin, command))["code"] == code
    assert QUICK_MS / 1000 <= time.monotonic() - begin < 3


def test_a_del_that_hangs_is_kept(impatient_plugin, agent):
    agent(impatient_plugin, hang)
    assert execute(impatient_plugin, "DEL").returncode == 0
    assert len(spooled(impatient_plugin)) == 1


def test_an_agent_that_does_not_read_is_not_waited_for_forever(impatient_plugin, agent):
    done = threading.Event()

    def ignore(_agent, connection):
        done.wait(PATIENCE)
        connection.close()

    agent(impatient_plugin, ignore)
    try:
        assert error_of(execute(impatient_plugin, "ADD", b"x" * MIB))["code"] == 11
    finally:
        done.set()


@pytest.mark.parametrize(("command", "code"), [("ADD", 11), ("STATUS", 50), ("CHECK", 50)])
def test_an_agent_whose_queue_is_full_is_not_waited_for_forever(impatient_plugin, command, code):
    impatient_plugin.run_dir.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(str(impatient_plugin.socket))
        listener.listen(0)
        waiting.connect(str(impatient_plugin.socket))
        assert error_of(execute(impatient_plugin, command))["code"] == code


def test_a_standard_input_without_end_is_not_waited_for_forever(impatient_plugin):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([impatient_plugin.launcher], env=variables("ADD"), **pipes) as process:
        process.stdin.write(CONFIG)
        process.stdin.flush()
        assert process.wait(PATIENCE) == 1
        assert json.loads(process.stdout.read())["code"] == 5
