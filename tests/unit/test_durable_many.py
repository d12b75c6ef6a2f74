"""Many small files at once: each old or new, all on the disk when the call returns, by one sync."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from netmgr import durable
from netmgr.errors import StateError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_files_are_replaced_and_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "mine").write_text("mine")
    assert durable.write_many(tmp_path, iter([("a", b"new"), ("b", b"more")])) == 2
    assert {name: (tmp_path / name).read_text() for name in names(tmp_path)} == {
        "a": "new",
        "b": "more",
        "mine": "mine",
    }
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o644
    assert durable.write_many(tmp_path, iter(())) == 0


def test_what_the_file_system_refuses_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
    try:
        with pytest.raises(StateError, match="cannot be written: File too large"):
            durable.write_many(tmp_path, [("a", b"new"), ("b", b"x" * 1000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_new_files_are_gathered_in_the_folder_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))

    def files() -> Iterator[tuple[str, bytes]]:
        yield "a", b"1"
        (scratch,) = tmp_path.iterdir()
        assert scratch.name.startswith(".new.")
        assert names(scratch) == ["a"]

    assert durable.write_many(tmp_path, files()) == 1
    assert names(tmp_path) == ["a"]


def test_a_disk_that_fails_to_sync_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FailingDisk:
        def __init__(self, name: None, *, use_errno: bool) -> None:
            assert (name, use_errno) == (None, True)

        @staticmethod
        def syncfs(descriptor: int) -> int:
            assert stat.S_ISDIR(os.fstat(descriptor).st_mode)
            ctypes.set_errno(errno.EIO)
            return -1

    (tmp_path / "a").write_text("old")
    monkeypatch.setattr(ctypes, "CDLL", FailingDisk)
    with pytest.raises(StateError, match=f"^{tmp_path}: cannot be written: Input/output error$"):
        durable.write_many(tmp_path, [("a", b"new")])
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=f"{tmp_path}/none: cannot be written: No such file"):
        durable.write_many(tmp_path / "none", [("a", b"")])


WRITER = """
import sys
from pathlib import Path
from netmgr.durable import write_many
print("ready", flush=True)
while True:
    for letter in b"ab":
        files = ((str(number), bytes([letter]) * 100_000) for number in range(20))
        write_many(Path(sys.argv[1]), files)
"""


@pytest.mark.programs
def test_a_writer_that_is_killed_leaves_every_file_old_or_new(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    folder.mkdir()
    for delay in (0.005, 0.02, 0.05):
        command = [sys.executable, "-c", WRITER, str(folder)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
        ) as writer:
            writer.stdout.readline()
            time.sleep(delay)
            writer.send_signal(signal.SIGKILL)
        for path in folder.glob("[0-9]*"):
            assert path.read_bytes() in (b"a" * 100_000, b"b" * 100_000)


def test_many_files_take_as_few_syncs_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = []
    for module, name in ((os, "fsync"), (durable, "_sync_file_system")):
        real = getattr(module, name)

        def counting(what: object, name: str = name, real: Callable[..., None] = real) -> None:
            syncs.append(name)
            real(what)

        monkeypatch.setattr(module, name, counting)
    durable.write_many(tmp_path, ((f"many-{number}", b"x" * 1000) for number in range(2000)))
    assert sorted(syncs) == ["_sync_file_system", "fsync"]
