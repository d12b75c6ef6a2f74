"""A machine inside this one, for programs that want /run, /etc and /var/lib for themselves.

Container runtimes have their paths built in: /opt/cni/bin, /etc/cni/net.d, /run/containerd.
So each gets a machine of its own, made of kernel namespaces:

- mounts: /etc, /opt, /usr/lib/cni and /var/lib are this machine's, but what is written there
  goes to
  memory; /run is empty; /sys and /proc show this machine alone;
- processes: they see each other only, and all end with the first one, whatever they became;
- control groups: one branch below the present one, in cgroup v2 alone;
- network: the namespace the caller gives.

A machine with a disk is a kubelet's node as well: what is written is kept in that file, so that
the machine can be started again, and it has a host name of its own, the file's.

The first process holds the machine: it reads a pipe until we close it, so that even a killed
test run leaves nothing behind.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.waiting import PATIENCE

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SCRIPT = Path(__file__).with_name("machine.sh")
JOIN = """
for group in /sys/fs/cgroup/machine /sys/fs/cgroup/*/machine; do
    [ ! -d $group ] || echo $$ >$group/cgroup.procs
done
cd /
exec "$@"
"""
"""Shell text that runs its arguments in the machine's control groups: nsenter does not join them.
"""


class MachineError(Exception):
    """A program inside failed; the message has what it printed."""


@dataclass
class Machine:
    """The machine whose network is the namespace pinned at `netns`; a context manager.

    `logs` is where the output of programs that run on is kept, `disk` a file with a file
    system that keeps what is written: <host name>.img.
    """

    netns: Path
    logs: Path
    disk: Path | None = None
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    cgroup: str = field(default_factory=lambda: f"netmgr-test-{secrets.token_hex(6)}")
    _holder: subprocess.Popen[bytes] | None = None
    _written: set[str] = field(default_factory=set)

    def __enter__(self) -> Self:
        self._holder = subprocess.Popen(
            ["nsenter", f"--net={self.netns}", *_unshared("hold", *self._own, *self._disk)],
            env={"PATH": PATH},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"made\n":
            self.__exit__()
            raise MachineError("the machine could not be made; see the messages of mount above")
        return self

    def __exit__(self, *_: object) -> None:
        if self._holder is not None:
            self._holder.kill()
            self._holder.communicate()
        for process in self.running.values():
            process.wait(PATIENCE)
        self.sweep()

    def sweep(self) -> None:
        """Remove the machine's control groups, which are all that can outlive it."""
        subprocess.run(_unshared("sweep", *self._own), env={"PATH": PATH}, check=True)

    @property
    def _own(self) -> tuple[str, Path]:
        scratch = self.logs / "scratch"
        scratch.mkdir(exist_ok=True)
        return self.cgroup, scratch

    @property
    def _disk(self) -> list[Path]:
        return [self.disk] if self.disk else []

    def inside(self, command: Sequence[str | Path]) -> list[str | Path]:
        """The command that runs `command` in every namespace of the machine."""
        assert self._holder is not None
        own = Path(f"/proc/{self._holder.pid}/ns")
        spaces = (
            f"--net={own}/net",
            f"--mount={own}/mnt",
            f"--pid={own}/pid_for_children",
            f"--cgroup={own}/cgroup",
            f"--uts=/proc/{self._first}/ns/uts",
        )
        # Entering a mount namespace leaves a chroot; --root returns to it.
        return [
            "nsenter",
            *spaces,
            f"--root=/proc/{self._holder.pid}/root",
            "--",
            "sh",
            "-c",
            JOIN,
            "sh",
            *command,
        ]

    def run(
        self,
        *command: str | Path,
        stdin: bytes = b"",
        timeout: float = 2 * PATIENCE,
        check: bool = True,
    ) -> str:
        """Run a program to its end and return its standard output.

        Raises:
            MachineError: it failed, and `check` is on.
        """
        done = subprocess.run(
            self.inside(command),
            input=stdin,
            capture_output=True,
            env={"PATH": PATH},
            timeout=timeout,
            check=False,
        )
        if check and done.returncode != 0:
            shown = " ".join(map(str, command))
            raise MachineError(
                f"{shown}: exit {done.returncode}\n{(done.stdout + done.stderr).decode()}"
            )
        return done.stdout.decode()

    def start(self, name: str, *command: str | Path) -> subprocess.Popen[bytes]:
        """Start a program that runs until the machine ends, its output in `logs/<name>.log`."""
        with (self.logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                self.inside(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": PATH},
            )
        self.running[name] = process
        return process

    def log(self, name: str) -> str:
        """What the program started as `name` has printed so far."""
        return (self.logs / f"{name}.log").read_text(errors="replace")

    def path(self, inside: str) -> Path:
        """How a path of the machine is reached from outside, while the machine is there."""
        return Path(f"/proc/{self._first}/root", inside.lstrip("/"))

    @property
    def _first(self) -> str:
        """The machine's process 1, by its number here."""
        assert self._holder is not None
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text()
        return children.split()[0]

    def write(self, inside: str, content: str | bytes, mode: int = 0o644) -> None:
        """Put a file into the machine, folders included."""
        target = self.path(inside)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
        target.chmod(mode)
        self._written.add(inside)

    def written(self, inside: str) -> bool:
        """Whether `write` put a file there; what this machine has there itself does not count."""
        return inside in self._written


def _unshared(verb: str, name: str, scratch: Path, *disk: Path) -> list[str | Path]:
    """A verb of machine.sh in a mount namespace of its own, with a root that is a mount point.

    A chroot's root is none, and neither can it be made private nor can runc begin from it. So
    the namespace's real root is made private, and ours is bound to `scratch` and entered there.
    """
    prepared = (
        'nsenter --mount=/proc/self/ns/mnt mount --make-rprivate / && mount --rbind / "$4" '
        '&& exec chroot "$4" sh "$@"'
    )
    unshared = ["unshare", "--mount", "--propagation", "unchanged", "sh", "-c", prepared, "sh"]
    return [*unshared, SCRIPT, verb, name, scratch, *disk]


def require(*programs: str) -> None:
    """Fail, naming it, when a program these tests need is missing."""
    missing = [name for name in programs if shutil.which(name, path=PATH) is None]
    assert not missing, f"not installed: {', '.join(missing)}"
