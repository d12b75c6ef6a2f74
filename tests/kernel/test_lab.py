"""The lab as its user has it: the commands, what they print, and that nothing is left of it."""

from __future__ import annotations

import json
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from netmgr.kernel import proc
from netmgr.prefixes import Family
from tests.lab import named_netns, processes, wiring
from tests.lab.errors import LabError
from tests.lab.topology import INTERNET, cluster
from tests.lab.world import ROOT, World
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.root

TOP = Path(__file__).parents[2]
ECHO_REQUEST = bytes([8, 0, 0, 0, 0, 0, 0, 1])
Lab = Callable[..., subprocess.CompletedProcess[str]]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tests.lab", *arguments]


@pytest.fixture
def lab(lab_name: str) -> Iterator[Lab]:
    """Runs `python -m tests.lab …` on a lab of this test's own, which is removed after the test."""

    def run(*arguments: str, name: str = lab_name) -> subprocess.CompletedProcess[str]:
        verb, *rest = arguments
        return subprocess.run(
            command(verb, "--name", name, *rest),
            cwd=TOP,
            capture_output=True,
            text=True,
            check=False,
        )

    yield run
    if (ROOT / lab_name).exists():
        run("down")


def hosts_own_network() -> list[str]:
    """Links, addresses, routes and rules of the machine's own namespace."""
    questions = (
        ["ip", "-o", "link"],
        ["ip", "-o", "addr"],
        ["ip", "route", "show", "table", "all"],
        ["nft", "list", "ruleset"],
    )
    answers = [
        subprocess.run(question, capture_output=True, text=True, check=True).stdout
        for question in questions
    ]
    return [re.sub(r"valid_lft \S+ preferred_lft \S+", "", answer) for answer in answers]


def left_of(name: str) -> list[str]:
    """Files, mounts and processes that still have to do with a lab."""
    directory = ROOT / name
    found = [str(directory)] if directory.exists() else []
    found += [line for line in proc.lines(Path("/proc/self/mountinfo")) if f"{directory}/" in line]
    for process in Path("/proc").glob("[0-9]*"):
        if any(
            f"{directory}/" in argument for argument in processes.command_line(int(process.name))
        ):
            found.append(f"process {process.name}")
    return found


@pytest.mark.slow
def test_a_lab_comes_up_counts_every_byte_and_leaves_nothing(
    lab: Lab, lab_name: str, backend: str
) -> None:
    before = hosts_own_network()
    up = lab("up", "--backend", backend)
    assert up.returncode == 0, up.stderr
    assert "pod-8" in up.stdout
    assert hosts_own_network() == before
    assert len(left_of(lab_name)) > 1  # what is looked for below can be found

    traffic = lab("traffic")
    assert traffic.returncode == 0, traffic.stdout + traffic.stderr
    rows = [line.split() for line in traffic.stdout.replace(",", "").splitlines() if "✓" in line]
    outgoing, incoming = rows[::2], rows[1::2]
    assert [row[:2] for row in outgoing] == [[f"pod-{number}", "out"] for number in range(1, 9)]
    assert [row[0] for row in incoming] == ["in"] * 8
    for _, _, sent, counted, *packets, internal, _ in outgoing:
        assert sent == counted
        assert packets[0] == packets[1]
        assert int(sent) > 500_000
        assert int(internal) > 1_000_000
    for _, sent, counted, *packets, _ in incoming:
        assert sent == counted
        assert packets[0] == packets[1]
        assert int(sent) > 500_000

    assert lab("down").returncode == 0
    assert left_of(lab_name) == []
    assert hosts_own_network() == before


@pytest.mark.slow
def test_a_difference_is_shown_and_fails(lab: Lab, lab_name: str) -> None:
    """A ping beside the lab's own traffic is counted, as it should be, but nothing that the lab
    sent.
    """
    assert lab("up", "--pods", "1").returncode == 0
    pod = World.open(lab_name).pod("pod-1")
    with wiring.inside(pod.netns):
        pinger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)

    def differs() -> bool:
        driver = subprocess.Popen(
            command("traffic", "--name", lab_name), cwd=TOP, stdout=subprocess.PIPE
        )
        while driver.poll() is None:
            pinger.sendto(ECHO_REQUEST, (str(INTERNET[Family.V4]), 0))
            time.sleep(0.01)
        output, _ = driver.communicate()
        differing = b"Sent and counted differ for pod-1." in output
        assert driver.returncode == differing
        return differing

    with pinger:
        # On a busy machine no ping may fall into the lab's own traffic.
        eventually(differs)


def test_the_whole_show_is_one_command(lab: Lab, lab_name: str) -> None:
    shown = lab("run", "--pods", "2")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    for expected in (
        "pod-4",
        "every byte counted",
        "correctly excluded",
        "netmgr_pod_traffic_bytes_total{",
        "Removed in",
    ):
        assert expected in shown.stdout
    advised = shown.stdout.rpartition("look around: ")[2].split()
    assert (TOP / advised[0]).exists(), advised
    assert left_of(lab_name) == []


STAGES = {
    "hosts": lambda directory: (directory / "netns" / "fabric").exists(),
    "agents": lambda directory: (directory / "nodes" / "node-1" / "agent.log").exists(),
    "pods": lambda directory: (directory / "pods" / "pod-1").exists(),
    "complete": lambda directory: (directory / "complete").exists(),
}


def started(lab_name: str, stage: str, verb: str = "run") -> subprocess.Popen[bytes]:
    """A lab's command, caught at a stage of its work."""
    # Enough pods that their stage lasts until a signal arrives, also on a busy machine.
    running = subprocess.Popen(
        command(verb, "--name", lab_name, "--pods", "16"),
        cwd=TOP,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    eventually(lambda: STAGES[stage](ROOT / lab_name) or running.poll() is not None, every=0.005)
    return running


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "stage"),
    [
        *((signal.SIGINT, stage) for stage in STAGES),
        (signal.SIGTERM, "pods"),
        (signal.SIGHUP, "pods"),
    ],
)
def test_an_interrupted_lab_removes_itself(
    lab_name: str, stage: str, number: signal.Signals
) -> None:
    def interrupted() -> bool:
        running = started(lab_name, stage)
        running.send_signal(number)
        _, errors = running.communicate()
        # On a busy machine it may have come to its end before the signal.
        assert running.returncode in (0, 128 + number), errors
        assert b"Traceback" not in errors
        assert left_of(lab_name) == []
        return running.returncode != 0

    eventually(interrupted)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_what_a_killed_builder_left_can_be_taken_down(lab: Lab, lab_name: str, stage: str) -> None:
    running = started(lab_name, stage, "up")
    running.kill()
    running.communicate()
    assert left_of(lab_name) != []
    # On a busy machine it may have come to its end before the signal.
    if not (ROOT / lab_name / "complete").exists():
        assert "tests.lab down" in lab("status").stderr
    down = lab("down")
    assert down.returncode == 0, down.stderr
    assert left_of(lab_name) == []


@pytest.mark.slow
def test_down_ends_what_runs_in_the_lab_and_nothing_else(lab: Lab, lab_name: str) -> None:
    assert lab("up", "--pods", "1").returncode == 0
    inside = subprocess.Popen(
        command("exec", "--name", lab_name, "pod-1", "--", "sleep", "100"), cwd=TOP
    )
    bystander = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(100)", f"{ROOT}/{lab_name}/"]
    )
    try:
        eventually(lambda: processes.running_in([ROOT / lab_name / "pods" / "pod-1"]))
        assert lab("down").returncode == 0
        assert inside.wait(PATIENCE) == 128 + signal.SIGTERM
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.slow
def test_namespaces_that_somebody_pinned_in_the_labs_directory_go_with_it(lab_name: str) -> None:
    with World(cluster(pods=0), name=lab_name) as world:
        named_netns.create(world.node("node-1").directory / "deep" / "below" / "extra")
    assert left_of(lab_name) == []


@pytest.mark.slow
def test_a_lab_of_more_namespaces_than_a_shell_may_open_files_can_be_removed(lab_name: str) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        with World(cluster(pods=0), name=lab_name) as world:
            for number in range(30):
                named_netns.create(world.node("node-1").directory / f"extra-{number}")
            few = len(list(Path("/proc/self/fd").iterdir())) + 20
            resource.setrlimit(resource.RLIMIT_NOFILE, (few, limits[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert left_of(lab_name) == []


@pytest.mark.slow
def test_exec_runs_a_command_where_it_is_told_to(lab: Lab) -> None:
    assert lab("up", "--pods", "1").returncode == 0
    assert lab("status").stdout.count("agent ready, metrics on :9119") == 2
    addresses = lab("exec", "pod-1", "--", "ip", "-br", "addr")
    assert "10.128.16.0/32" in addresses.stdout
    assert "203.0.113.1/32" in lab("exec", "internet", "--", "ip", "-br", "addr").stdout
    assert lab("exec", "pod-1", "--", "sh", "-c", "exit 7").returncode == 7
    assert lab("exec", "pod-1", "--", "sh", "-c", "kill -TERM $$").returncode == 128 + 15
    # A command of netmgr's asks the agent of that node.
    ask = ("--", "netmgr", "node", "status", "-o", "json")
    for where, node in {"pod-1": "node-1", "pod-2": "node-2", "node-2": "node-2"}.items():
        assert json.loads(lab("exec", where, *ask).stdout)["node"] == node
    doctor = lab("exec", "node-1", "--", "netmgr", "doctor")
    assert doctor.returncode == 0, doctor.stdout
    unknown = lab("exec", "pod-9", "--", "true")
    assert unknown.returncode == 1
    assert "pod-1" in unknown.stderr
    assert "Traceback" not in unknown.stderr


@pytest.mark.slow
def test_what_up_advises_works_as_it_is_printed(lab: Lab, lab_name: str) -> None:
    advised = [line for line in lab("up").stdout.splitlines() if " -m tests.lab " in line]
    assert len(advised) == 6
    for line in advised:
        assert len(line) < 80 + len(lab_name)
        done = subprocess.run(["sh", "-c", line], cwd=TOP, capture_output=True, check=False)
        assert done.returncode == 0, (line, done.stderr)
    assert left_of(lab_name) == []


@pytest.mark.slow
def test_a_document_that_was_changed_is_in_force_after_a_restart(lab: Lab, lab_name: str) -> None:
    assert lab("up", "--pods", "1").returncode == 0
    document = ROOT / lab_name / "nodes" / "node-1" / "node.yaml"
    text = document.read_text()
    document.write_text(f"{text}limits: [{{pods: '*/*', internet-out: 1GB}}]\n")
    refused = lab("restart", "node-1")
    assert (refused.returncode, "limits[0].internet-out" in refused.stderr) == (1, True)
    document.write_text(f"{text}limits: [{{pods: '*/*', internet-out: 1G}}]\n")
    assert lab("restart", "node-1").returncode == 0
    explained = lab("exec", "node-1", "--", "netmgr", "node", "explain", "10.128.16.0")
    assert "internet-out: 1G" in explained.stdout


@pytest.mark.slow
def test_the_exporter_runs_without_privileges(lab_name: str) -> None:
    with World(cluster(pods=1), name=lab_name) as world:
        number = world.node("node-1").exporter_pid()
        fields = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{number}/status").read_text().splitlines()
        )
        assert set(fields["Uid"].split()) == set(fields["Gid"].split()) == {"65534"}
        assert fields["Groups"].split() == []
        assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == 0


@pytest.mark.slow
def test_a_name_that_is_taken_is_refused_and_left_alone(lab: Lab, lab_name: str) -> None:
    assert lab("up", "--pods", "1").returncode == 0
    again = lab("up", "--pods", "1")
    assert again.returncode == 1
    assert lab_name in again.stderr
    assert lab("traffic").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", "../x", "Upper", "-a", "a" * 25])
def test_an_unfit_name_is_refused_before_anything_is_made(lab: Lab, name: str) -> None:
    refused = lab("up", name=name)
    assert refused.returncode == 1
    assert "no name for a lab" in refused.stderr


@pytest.mark.slow
def test_an_agent_that_cannot_start_is_told_with_its_last_words(lab_name: str) -> None:
    world = World(
        cluster(pods=0), name=lab_name, settings={"node": {"name": "node-1", "uplink": "nowhere0"}}
    )
    with pytest.raises(LabError, match="the agent of node-1 did not start") as failure:
        world.up()
    assert "nowhere0" in failure.value.details
    assert left_of(lab_name) == []
