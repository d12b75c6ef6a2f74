"""What happens to the agent's files, to their disk, and to the clock."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from netmgr import programs
from tests.chaos.books import Blind
from tests.chaos.node import Chaos
from tests.kernel.stalling import Stall
from tests.lab.errors import LabError
from tests.lab.runtime import Sandbox

DISK = "4m"
MOST_HOURS = 10


def remove_state(chaos: Chaos) -> None:
    """The running agent has it all, and makes it again."""
    # It may be making it again already.
    with suppress(OSError):
        shutil.rmtree(chaos.state)


def remove_run(chaos: Chaos) -> None:
    with suppress(OSError):
        shutil.rmtree(chaos.node.run_dir)


def remove_file(chaos: Chaos) -> None:
    """Any one file of the agent's."""
    paths = [*chaos.state.iterdir(), *chaos.node.run_dir.iterdir()]
    path = chaos.chance.choice(sorted(paths))
    with suppress(OSError):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def remove_sockets(chaos: Chaos) -> None:
    for path in chaos.node.run_dir.glob("*.sock"):
        path.unlink()


def replace_socket(chaos: Chaos) -> None:
    """A file is where the socket was."""
    path = chaos.node.run_dir / "cni.sock"
    # At once: an agent that finds none makes it again.
    other = path.with_suffix(".other")
    other.write_text("no socket")
    other.replace(path)


def lose_leases(chaos: Chaos) -> None:
    """The kernel has every attachment."""
    with _while_dead(chaos):
        for path in chaos.state.glob("ipam.sqlite*"):
            path.unlink()


def damage_leases(chaos: Chaos) -> None:
    with _while_dead(chaos):
        path = chaos.state / "ipam.sqlite"
        path.write_bytes(chaos.chance.randbytes(path.stat().st_size))


def lose_ledger(chaos: Chaos) -> None:
    """Totals begin at zero, and a gap says so."""
    with _while_dead(chaos):
        chaos.faults.books_since = 0.0
        for path in chaos.state.glob("ledger.sqlite*"):
            path.unlink()


def damage_ledger(chaos: Chaos) -> None:
    with _while_dead(chaos):
        chaos.faults.books_since = 0.0
        path = chaos.state / "ledger.sqlite"
        path.write_bytes(chaos.chance.randbytes(path.stat().st_size))


def lose_state(chaos: Chaos) -> None:
    with _while_dead(chaos):
        chaos.faults.books_since = 0.0
        shutil.rmtree(chaos.state)


def copy_state(chaos: Chaos) -> None:
    """Somebody makes a backup, which is put back one day."""
    with _while_dead(chaos):
        chaos.keep_copy()


def restore_state(chaos: Chaos) -> None:
    """A backup is put back: all of it, or one of its files."""
    if chaos.copied_at is None:
        copy_state(chaos)
        return
    with _while_dead(chaos):
        chaos.restore_copy(chaos.chance.choice(("", "ledger", "ipam")))


@contextmanager
def _while_dead(chaos: Chaos) -> Iterator[None]:
    chaos.kill()
    yield
    # Whoever has the leases by the kernel alone, or an older copy, knows no cooldown.
    chaos.released.clear()
    chaos.start()


# --- the disk -----------------------------------------------------------------------------------


def fill_disk(chaos: Chaos) -> None:
    """ADDs are refused, DELs are not, and counting goes on in memory."""
    with _on_small_disk(chaos):
        began, filler = time.monotonic(), chaos.state / "filler"
        _fill(filler)
        _come_and_go(chaos)
        chaos.pause(1.0)
        filler.unlink()
        chaos.faults.undurable.append(Blind(began, _durable_again(chaos)))


def protect_disk(chaos: Chaos) -> None:
    """The file system is read-only when the agent starts, as after an error of its disk."""
    with _on_small_disk(chaos):
        chaos.kill()
        _mount("remount,ro", chaos.state)
        chaos.start()
        chaos.pause(1.5)
        gone = _go_or_not(chaos)
        # What could not be written has no cooldown.
        chaos.released.clear()
        chaos.node.kill_agent()
        _mount("remount,rw", chaos.state)
        chaos.start()
        chaos.node.wait_until_ready()
        if gone:
            chaos.node.runtime.execute("DEL", gone)


def _go_or_not(chaos: Chaos) -> Sandbox | None:
    """A DEL that perhaps can be kept nowhere, so that its runtime has to repeat it."""
    if (name := chaos.one()) is None:
        return None
    sandbox = chaos.forget(name)
    with suppress(LabError):
        chaos.node.runtime.delete(sandbox)
    return sandbox


def stall_disk(chaos: Chaos) -> None:
    """Whoever opens the ledger's file waits, as a sync does."""
    stall = Stall(chaos.state / "ledger.sqlite")
    try:
        name = chaos.add().pod.name
        chaos.pause(1.0)
        chaos.delete(name)
    finally:
        stall.end()


def _come_and_go(chaos: Chaos) -> None:
    with suppress(LabError):
        chaos.add()
    if name := chaos.one():
        chaos.delete(name)


def _fill(path: Path) -> None:
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def _durable_again(chaos: Chaos) -> float:
    deadline = time.monotonic() + 10
    while not chaos.node.snapshot()["durable"]:
        assert time.monotonic() < deadline, "the disk is there, and the ledger is not durable"
        time.sleep(0.01)
    return time.monotonic()


@contextmanager
def _on_small_disk(chaos: Chaos) -> Iterator[None]:
    """The state on a file system of its own, and back."""
    kept = chaos.node.directory / "kept"
    chaos.node.stop_agent()
    shutil.copytree(chaos.state, kept)
    _mount(f"size={DISK}", chaos.state)
    try:
        shutil.copytree(kept, chaos.state, dirs_exist_ok=True)
        chaos.start()
        chaos.node.wait_until_ready()
        yield
        chaos.kill()
        shutil.rmtree(kept)
        shutil.copytree(chaos.state, kept)
    finally:
        chaos.node.kill_agent()
        done = programs.run(["umount", str(chaos.state)])
        assert done.returncode == 0, done.stderr
    shutil.rmtree(chaos.state)
    kept.rename(chaos.state)
    chaos.start()


def _mount(options: str, path: Path) -> None:
    done = programs.run(["mount", "-t", "tmpfs", "-o", options, "netmgr-chaos", str(path)])
    assert done.returncode == 0, done.stderr


# --- the clock ----------------------------------------------------------------------------------


def step_clock(chaos: Chaos) -> None:
    chaos.clock.set(chaos.chance.randint(-MOST_HOURS * 3600, MOST_HOURS * 3600))
