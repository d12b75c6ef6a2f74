"""The launcher beside a little agent that says exactly what it is told to."""

import json
import os
import re
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cni.install import Installation, install
from cni.wire import MAX_MESSAGE, STARTED, decode_request, encode_request
from netmgr.programs import SEARCH_PATH
from tests.kernel.launching import CONFIG, MIB, answering, elf, error_of, execute, layout, variables
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.programs

MACHINES = {"x86_64": 62, "aarch64": 183}


def test_request_arrives_to_the_byte(plugin, agent):
    listening = agent(plugin, answering(b"0\n"))
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    execute(plugin, "ADD", HOME="/root", XCNI_Y="no")
    (message,) = listening.requests
    started = re.search(rb"NETMGR_STARTED=(\d+)\0", message)
    assert message == (
        b"netmgr-cni 1\0CNI_COMMAND=ADD\0CNI_CONTAINERID=c1\0"
        b"CNI_NETNS=/run/netns/pod\0CNI_IFNAME=eth0\0"
        b"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAME=web\0CNI_PATH=/opt/cni/bin\0%s\0%s"
        % (started.group(), CONFIG)
    )
    assert before < int(started.group(1)) < time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def test_agent_decodes_what_the_launcher_encodes(plugin, agent):
    listening = agent(plugin, answering(b"0\n"))
    odd = {"CNI_ARGS": "café=\U0001f600", "CNI_EMPTY": ""}
    execute(plugin, "ADD", b"a\0b", **odd)
    environment, stdin = decode_request(listening.requests[0])
    started = {STARTED: environment.pop(STARTED)}
    assert environment == variables("ADD", **odd)
    assert stdin == b"a\0b"
    assert encode_request(environment | started, stdin) == listening.requests[0]


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_exit_code_and_output_are_the_agents(plugin, agent, code):
    output = os.urandom(MIB) + b"\0\n"
    agent(plugin, answering(b"%d\n%s" % (code, output)))
    outcome = execute(plugin, "ADD")
    assert outcome.returncode == code
    assert outcome.stdout == output
    assert outcome.stderr == b""


def test_a_configuration_of_one_mebibyte_passes(plugin, agent):
    listening = agent(plugin, answering(b"0\n"))
    config = os.urandom(MIB)
    assert execute(plugin, "ADD", config).returncode == 0
    assert decode_request(listening.requests[0])[1] == config
    assert len(listening.requests[0]) < MAX_MESSAGE


def test_a_larger_configuration_is_refused_before_the_agent_is_asked(plugin, agent):
    listening = agent(plugin, answering(b"0\n"))
    assert error_of(execute(plugin, "ADD", b"x" * (MIB + 1)))["code"] == 5
    assert listening.requests == []


def test_too_many_variables_are_refused(plugin):
    flood = {f"CNI_{index}": "x" * 100_000 for index in range(3)}
    assert error_of(execute(plugin, "ADD", **flood))["code"] == 4
    assert error_of(execute(plugin, "DEL", **flood))["code"] == 4


def test_an_answer_before_the_request_was_read_counts(plugin, agent):
    def refuse_at_once(_agent, connection):
        connection.sendall(b"1\n{}")
        connection.close()

    agent(plugin, refuse_at_once)
    outcome = execute(plugin, "ADD", b"x" * MIB)
    assert (outcome.returncode, outcome.stdout) == (1, b"{}")


@pytest.mark.parametrize(
    ("stdin", "version"),
    [
        (b"", "1.1.0"),
        (b'{"cniVersion":"0.4.0"}', "0.4.0"),
        (b'{ "cniVersion" :\n "1.0.0" }', "1.0.0"),
        (b'{"cniVersion":"1.0.0\\"x"}', "1.1.0"),
        (b'{"cniVersion":7}', "1.1.0"),
        (b'{"cniVersion"', "1.1.0"),
        (b'{"cniVersion":"11111111111111111111"}', "1.1.0"),
    ],
)
def test_version_is_answered_without_an_agent(plugin, stdin, version):
    outcome = execute(plugin, "VERSION", stdin)
    assert outcome.returncode == 0
    assert json.loads(outcome.stdout) == {
        "cniVersion": version,
        "supportedVersions": ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"],
    }


@pytest.mark.parametrize(
    "text", ["", "/run/x.sock", "/run/x.sock\n", "relative\n/spool\n", "/a\n/b\n/c\n", "\n\n"]
)
def test_a_damaged_path_file_is_told(plugin, text):
    plugin.paths_file.write_text(text)
    error = error_of(execute(plugin, "DEL"))
    assert error["code"] == 5
    assert "install the plugin again" in error["msg"]


def test_a_plugin_that_is_replaced_while_it_starts_finds_its_agent(plugin, agent):
    listening = agent(plugin, answering(b"0\n"))
    started = os.open(plugin.launcher, os.O_RDONLY)
    try:
        # As an upgrade does: a new file takes the name, and the old one is gone.
        successor = plugin.bin_dir / "successor"
        shutil.copy(plugin.launcher, successor)
        successor.replace(plugin.launcher)
        outcome = subprocess.run(
            [f"/proc/self/fd/{started}"],
            input=CONFIG,
            env=variables("ADD"),
            pass_fds=[started],
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
    finally:
        os.close(started)
    assert (outcome.returncode, outcome.stdout) == (0, b"")
    assert len(listening.requests) == 1


def test_a_plugin_that_is_removed_while_it_waits_for_its_input_finds_its_agent(plugin, agent):
    listening = agent(plugin, answering(b"0\n"))
    with subprocess.Popen(
        [plugin.launcher], env=variables("ADD"), stdin=subprocess.PIPE
    ) as process:
        status = Path(f"/proc/{process.pid}/status")
        eventually(lambda: re.match(r"(?s)Name:\tnetmgr\n.*State:\tS", status.read_text()))
        plugin.launcher.unlink()
        plugin.paths_file.unlink()
        process.communicate(CONFIG, timeout=PATIENCE)
    assert process.returncode == 0
    assert len(listening.requests) == 1


def test_paths_have_a_default(plugin):
    plugin.paths_file.unlink()
    default = Installation(plugin.bin_dir, plugin.conf_dir).socket
    if default.exists():
        pytest.skip("an agent runs on this machine")
    assert str(default) in error_of(execute(plugin, "STATUS"))["details"]


def test_two_plugins_side_by_side_have_their_own_agents(tmp_path, agent):
    plans = [
        layout(tmp_path, run_dir=tmp_path / name, state_dir=tmp_path / name, name=name)
        for name in ("left", "right")
    ]
    for index, plan in enumerate(plans):
        install(plan)
        agent(plan, answering(b"%d\n" % index))
    assert [execute(plan, "ADD").returncode for plan in plans] == [0, 1]


def test_a_path_that_is_no_json_still_gives_json(tmp_path):
    plan = layout(tmp_path, run_dir=tmp_path / 'r"u\\n\u00e9')
    install(plan)
    assert "r?u?n??" in error_of(execute(plan, "ADD"))["details"]


def test_many_at_once_are_all_answered(plugin, agent):
    listening = agent(plugin, answering(b"0\n{}"))
    with ThreadPoolExecutor(16) as pool:
        outcomes = list(
            pool.map(lambda index: execute(plugin, "ADD", CNI_CONTAINERID=f"c{index}"), range(100))
        )
    assert {(outcome.returncode, outcome.stdout) for outcome in outcomes} == {(0, b"{}")}
    containers = {decode_request(message)[0]["CNI_CONTAINERID"] for message in listening.requests}
    assert len(containers) == 100


def test_the_launcher_needs_nothing_of_the_host(plugin, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    shutil.copy(plugin.launcher, root / "netmgr")
    if os.geteuid() == 0:
        outcome = subprocess.run(
            ["chroot", root, "/netmgr"],
            input=CONFIG,
            env=variables("VERSION") | {"PATH": SEARCH_PATH},
            capture_output=True,
            check=False,
        )
        assert json.loads(outcome.stdout)["cniVersion"] == "1.0.0"
    assert elf(plugin.launcher) == (MACHINES[os.uname().machine], False)
