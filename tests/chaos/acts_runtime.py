"""What runtimes do to a node, right and wrong."""

from __future__ import annotations

import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tests.chaos.node import Chaos
from tests.kernel import conforming
from tests.lab import named_netns, wiring
from tests.lab.errors import LabError
from tests.lab.topology import Host

MOST_PODS = 6
BURST = 4


def come(chaos: Chaos) -> None:
    if len(chaos.pods) < MOST_PODS:
        chaos.add()


def go(chaos: Chaos) -> None:
    """A DEL, and another one for the same pod."""
    if name := chaos.one():
        sandbox = chaos.pods[name]
        chaos.delete(name)
        with suppress(LabError):
            chaos.node.runtime.execute("DEL", sandbox)


def burst(chaos: Chaos) -> None:
    """Pods come all at once and go all at once."""
    names = [chaos.name() for _ in range(BURST)]
    with ThreadPoolExecutor(BURST) as workers:
        made = list(workers.map(lambda name: chaos.node.add(name, "burst"), names))
        for sandbox in made:
            chaos.welcome(sandbox)
        chaos.pause()
        for name in names:
            chaos.forget(name)
        list(workers.map(chaos.node.runtime.delete, made))


def vanish(chaos: Chaos) -> None:
    """A sandbox goes without a DEL, as when its runtime crashed."""
    if name := chaos.one():
        named_netns.delete(chaos.forget(name).netns)


def reuse_path(chaos: Chaos) -> None:
    """A sandbox goes without a DEL, and another pod's is at its path at once."""
    if name := chaos.one():
        path = chaos.forget(name).netns
        named_netns.delete(path)
        wiring.make_host(Host(name), path)
        chaos.attach(path)


def repeat(chaos: Chaos) -> None:
    if name := chaos.one():
        sandbox = chaos.pods[name]
        again = chaos.node.runtime.execute("ADD", sandbox)
        given = {ip["address"].partition("/")[0] for ip in again["ips"]}
        assert given == set(map(str, sandbox.addresses)), "another address for the same sandbox"


def overtake(chaos: Chaos) -> None:
    """A DEL overtakes its ADD, which has to be refused then."""
    with chaos.caller.sandbox() as pod, chaos.caller.begun("ADD", pod) as finish:
        assert chaos.caller.call("DEL", pod).exit_code == 0
        answer = finish()
        assert answer.code == 3, f"an ADD that its DEL overtook: {answer.body}"


def repeat_at_once(chaos: Chaos) -> None:
    """A runtime that does not wait: the same request several times at once."""
    with chaos.caller.sandbox() as pod, ThreadPoolExecutor(BURST) as workers:

        def ask(verb: str, **keys: Any) -> Any:
            answers = list(
                workers.map(lambda _: chaos.caller.call(verb, pod, keys=keys), range(BURST))
            )
            assert all(one == answers[0] and one.code == 0 for one in answers), (verb, answers)
            return answers[0].body

        ask("CHECK", prevResult=ask("ADD"))
        ask("DEL")


def drop_answer(chaos: Chaos) -> None:
    """A runtime gives an ADD up before it is answered, and begins again."""
    with chaos.caller.sandbox() as pod:
        process = subprocess.Popen(
            [chaos.caller.plugin],
            env=chaos.caller.variables("ADD", pod),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        with process:
            process.stdin.write(conforming.config())
            process.stdin.close()
            chaos.pause(0.03)
            process.send_signal(signal.SIGKILL)
        assert chaos.caller.call("DEL", pod).exit_code == 0
        assert chaos.caller.call("ADD", pod).exit_code == 0


def refuse(chaos: Chaos) -> None:
    """An ADD that cannot be carried out leaves nothing."""
    with chaos.caller.sandbox() as pod:
        with wiring.inside(pod.netns):
            subprocess.run(["ip", "link", "add", "eth0", "type", "bridge"], check=True)
        assert chaos.caller.call("ADD", pod).exit_code != 0
        assert not chaos.kernel.run("ip", "-o", "link").count(f"netmgr {pod.container}")


def collect_garbage(chaos: Chaos) -> None:
    """A runtime has forgotten a pod, and says which ones it knows."""
    if name := chaos.one():
        sandbox = chaos.forget(name)
        keys = conforming.valid(
            *(conforming.Pod(one.container_id, one.netns) for one in chaos.pods.values())
        )
        assert chaos.caller.call("GC", version="1.1.0", keys=keys).exit_code == 0
        chaos.node.runtime.delete(sandbox)


def ask(chaos: Chaos) -> None:
    """STATUS and VERSION, many at once."""
    with ThreadPoolExecutor(BURST) as workers:
        answers = list(
            workers.map(lambda _: chaos.caller.call("STATUS", version="1.1.0"), range(2 * BURST))
        )
    assert all(answer.exit_code == 0 for answer in answers), answers


def come_back(chaos: Chaos) -> None:
    """The same container gets another sandbox without a DEL, as after its machine was suspended."""
    if name := chaos.one():
        former = chaos.forget(name)
        path = former.netns.with_name(f"{former.netns.name}-again")
        wiring.make_host(Host(name), path)
        chaos.node.runtime.execute("ADD", replace(former, netns=path))
        named_netns.delete(former.netns)
        chaos.node.runtime.delete(replace(former, netns=path))


def send_while_ending(chaos: Chaos) -> None:
    """A pod's DEL while it talks: what it sent until its link went is counted."""
    if name := chaos.one():
        chaos.node.runtime.delete(chaos.give_back(name))
        chaos.conversation.end(name)
