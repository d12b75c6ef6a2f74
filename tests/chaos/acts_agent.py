"""What happens to the agent itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

from tests.chaos.node import Chaos
from tests.failpoints.order import Order, When
from tests.failpoints.steps import ROOT
from tests.lab.errors import LabError
from tests.waiting import PATIENCE

MOST_STEPS_OF_A_START, MOST_STEPS_OF_WORK = 30, 25
UP_SECONDS = 10.0


def kill(chaos: Chaos) -> None:
    chaos.kill()
    chaos.pause()
    chaos.start()


def kill_twice(chaos: Chaos) -> None:
    """Killed again while it starts."""
    chaos.kill()
    chaos.start()
    chaos.pause(0.5)
    chaos.kill()
    chaos.start()


def kill_at_a_step_of_a_start(chaos: Chaos) -> None:
    chaos.kill()
    chaos.points.give(
        Order(number=chaos.chance.randint(1, MOST_STEPS_OF_A_START), when=_when(chaos))
    )
    chaos.start("tests.failpoints")
    _wait_for_death(chaos)
    chaos.start()


def kill_at_a_step_of_work(chaos: Chaos) -> None:
    """Killed between any two durable steps of ADDs and DELs, which go on with the next agent."""
    chaos.kill()
    chaos.points.give(Order())
    chaos.start("tests.failpoints")
    chaos.node.wait_until_ready()
    chaos.points.give(Order(number=chaos.chance.randint(1, MOST_STEPS_OF_WORK), when=_when(chaos)))
    worker = threading.Thread(target=_churn, args=(chaos,))
    worker.start()
    _wait_for_death(chaos)
    chaos.start()
    worker.join()


def _when(chaos: Chaos) -> When:
    return chaos.chance.choice(list(When))


def _churn(chaos: Chaos) -> None:
    with suppress(LabError):
        chaos.add()
    if name := chaos.one():
        chaos.delete(name)


def _wait_for_death(chaos: Chaos) -> None:
    """It dies at its step, or at the latest now."""
    deadline = time.monotonic() + UP_SECONDS
    while chaos.points.killed_at() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    if chaos.points.killed_at() is not None:
        chaos.done["fail points"] += 1
    chaos.kill()


def kill_at_work(chaos: Chaos) -> None:
    """Killed at any instant of a pod's ADD, which its runtime then undoes."""
    pid = chaos.node.agent_pid()
    assert pid is not None
    killer = threading.Timer(chaos.chance.random() * 0.03, os.kill, (pid, signal.SIGKILL))
    killer.start()
    added = None
    with suppress(LabError):
        added = chaos.node.add(chaos.name())
    killer.join()
    chaos.kill()
    chaos.start()
    chaos.node.wait_until_ready()
    if added is not None:
        chaos.node.runtime.delete(added)


def restart(chaos: Chaos) -> None:
    chaos.node.stop_agent()
    chaos.repairs = None
    chaos.pause()
    chaos.start()


def pause(chaos: Chaos) -> None:
    pid = chaos.node.agent_pid()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    chaos.pause(2.0)
    os.kill(pid, signal.SIGCONT)


def double(chaos: Chaos) -> None:
    """A second agent is refused before it changes anything, and the first goes on."""
    pid = chaos.node.agent_pid()
    command = [sys.executable, "-m", "netmgr", "agent", "--config", str(chaos.node.document)]
    second = subprocess.Popen(
        ["nsenter", f"--net={chaos.node.namespace}", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    # It waits for a predecessor that ends; ended before that, it has not changed anything either.
    time.sleep(chaos.chance.uniform(0.3, 1.5))
    second.terminate()
    assert second.wait(PATIENCE) is not None
    assert chaos.node.agent_pid() == pid, "the first agent did not go on"


def come_while_away(chaos: Chaos) -> None:
    """An ADD waits for the next agent, for a short while."""
    chaos.kill()
    worker = threading.Thread(target=_add_or_not, args=(chaos,))
    worker.start()
    chaos.pause(0.5)
    chaos.start()
    worker.join()


def _add_or_not(chaos: Chaos) -> None:
    with suppress(LabError):
        chaos.add()


def overtake_while_away(chaos: Chaos) -> None:
    """A DEL overtakes its ADD, and the agent that carried it out is killed."""
    with chaos.caller.sandbox() as pod, chaos.caller.begun("ADD", pod) as finish:
        assert chaos.caller.call("DEL", pod).exit_code == 0
        chaos.kill()
        chaos.start()
        chaos.node.wait_until_ready()
        answer = finish()
        assert answer.code == 3, f"an ADD that its DEL overtook: {answer.body}"


def go_while_away(chaos: Chaos) -> None:
    """Pods end while no agent is there; their DELs wait on disk."""
    chaos.kill()
    if name := chaos.one():
        chaos.delete(name)
    chaos.pause()
    chaos.start()
