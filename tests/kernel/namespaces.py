"""Programs in the network namespaces of a world, and the links of its pods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

from netmgr import programs
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.waiting import eventually


def inside(namespace: Path, *command: str) -> str:
    """What a program prints there; it must succeed."""
    done = programs.run(["nsenter", f"--net={namespace}", *command])
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@contextmanager
def process_in(namespace: Path) -> Iterator[Path]:
    """The path by which a runtime names the namespace of a process."""
    with Popen(["nsenter", f"--net={namespace}", "sleep", "600"]) as process:
        try:
            path = Path(f"/proc/{process.pid}/ns/net")
            eventually(lambda: path.samefile(namespace))
            yield path
        finally:
            process.kill()


@contextmanager
def ipv6_kept_off(namespace: Path) -> Iterator[None]:
    """For the length of the block, somebody switches IPv6 off again whenever it is on there."""
    off = "while :; do echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; done"
    with Popen(["nsenter", f"--net={namespace}", "sh", "-c", off]) as switching:
        try:
            yield
        finally:
            switching.kill()
    inside(namespace, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=0")


def host_link(node: LabNode, sandbox: Sandbox) -> str:
    """The node's end of a pod's link, as the agent names it."""
    return next(
        item["host_link"]
        for item in node.ask("pods")["attachments"]
        if item["container_id"] == sandbox.container_id
    )
