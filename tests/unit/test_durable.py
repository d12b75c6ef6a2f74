"""Small files are old or new, never half, and what is read back is held against what it should be;
of many, all are on the disk when the call returns, by one sync.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from netmgr import durable
from netmgr.documents.node import Backend
from netmgr.errors import StateError

WRITERS = {
    "one file": """
write(folder / "0", b"b" * 200_000)
print("ready", flush=True)
while True:
    for letter in "ab":
        write(folder / "0", letter.encode() * 200_000)
""",
    "many files": """
print("ready", flush=True)
while True:
    for letter in b"ab":
        write_many(folder, ((str(number), bytes([letter]) * 200_000) for number in range(20)))
""",
}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.programs
@pytest.mark.parametrize("writer", WRITERS)
def test_a_writer_that_is_killed_leaves_every_file_old_or_new(tmp_path: Path, writer: str) -> None:
    program = "import sys\nfrom pathlib import Path\nfrom netmgr.durable import *\n"
    program += "folder = Path(sys.argv[1])" + WRITERS[writer]
    for delay in (0.001, 0.004, 0.009, 0.02, 0.05):
        with subprocess.Popen(
            [sys.executable, "-c", program, tmp_path],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        ) as running:
            assert running.stdout.readline()
            time.sleep(delay)
            running.send_signal(signal.SIGKILL)
        for path in tmp_path.glob("[0-9]*"):
            assert path.read_bytes() in (b"a" * 200_000, b"b" * 200_000)


def test_a_file_keeps_its_mode_or_gets_the_one_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for asked, mode in ((None, 0o644), (0o600, 0o600), (None, 0o600), (0o755, 0o755)):
        durable.write(path, b"x", asked)
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert names(tmp_path) == ["file"]


def test_a_file_that_is_so_already_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("same")
    path.chmod(0o600)
    before = path.stat().st_ino
    for mode in (None, 0o600):
        durable.write(path, b"same", mode)
        assert path.stat().st_ino == before
    link = tmp_path / "link"
    link.symlink_to(path)
    durable.write(link, b"same")
    assert not link.is_symlink()


def test_what_cannot_be_written_is_told_and_nothing_stays_behind(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="missing/file: cannot be written: No such file or dir"):
        durable.write(tmp_path / "missing" / "file", b"x")
    with pytest.raises(StateError, match=f"{tmp_path}/none: cannot be written: No such file"):
        durable.write_many(tmp_path / "none", [("a", b"")])
    (tmp_path / "folder").mkdir()
    with pytest.raises(StateError, match="folder: cannot be written: Is a directory"):
        durable.write(tmp_path / "folder", b"x")
    assert names(tmp_path) == ["folder"]


def test_the_content_is_synced_beside_the_file_and_then_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its own folder, whatever TMPDIR is: a file system of its own would refuse the renaming."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    path = tmp_path / "file"
    path.write_text("old")
    seen = []
    sync = os.fsync

    def watched(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        beside = [name.rpartition(".")[0] or name for name in names(tmp_path)]
        seen.append((is_folder, path.read_text(), beside))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    durable.write(path, "n\u00e9w".encode())
    assert seen == [(False, "old", [".file", "file"]), (True, "n\u00e9w", ["file"])]


def test_a_folder_is_made_with_its_parents_and_kept_if_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    for _ in range(2):
        durable.make_folder(path)
        assert path.is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match=r"file/a: cannot be made: Not a directory;"):
        durable.make_folder(tmp_path / "file" / "a")


@pytest.mark.parametrize(
    ("mode", "most", "after"), [(0o644, 0o700, 0o600), (0o777, 0o750, 0o750), (0o600, 0o700, 0o600)]
)
@pytest.mark.parametrize("make", [Path.touch, Path.mkdir])
def test_what_is_ours_is_closed_to_others(
    tmp_path: Path, make: Callable[[Path], None], mode: int, most: int, after: int
) -> None:
    path = tmp_path / "kept"
    make(path)
    path.chmod(mode)
    assert durable.close_to_others(path, most) is (mode != after)
    assert stat.S_IMODE(path.stat().st_mode) == after
    path.chmod(0o601)
    assert durable.close_to_others(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_not_ours_is_not_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, link, fifo = (tmp_path / name for name in ("file", "link", "fifo"))
    path.touch()
    path.chmod(0o644)
    link.symlink_to(path)
    os.mkfifo(fifo)
    fifo.chmod(0o644)
    for other in (link, fifo, tmp_path / "none"):
        assert not durable.close_to_others(other)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
        assert not durable.close_to_others(path)
    assert {stat.S_IMODE(kept.stat().st_mode) for kept in (path, fifo)} == {0o644}

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(
        StateError, match=f"^{path}: cannot be closed to others: Operation not permitted"
    ):
        durable.close_to_others(path)


def test_what_killed_writers_left_goes_with_the_next_write(tmp_path: Path) -> None:
    path, kept = tmp_path / "ranges[1].json", {".ranges[1].json.another", ".ranges1.json.abcdefgh"}
    for name in {".ranges[1].json.abcdefgh", *kept}:
        (tmp_path / name).write_bytes(b"half")
    with (tmp_path / ".ranges[1].json.ijklmnop").open("wb") as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        durable.write(path, b"x")
    assert {*names(tmp_path)} == {path.name, ".ranges[1].json.ijklmnop", *kept}


def test_writers_of_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [bytes([letter]) * 100 for letter in b"abcd"]
    with ThreadPoolExecutor(len(contents)) as workers:
        list(workers.map(lambda one: [durable.write(path, one) for _ in range(50)], contents))
    assert path.read_bytes() in contents
    assert names(tmp_path) == ["file"]


def backend(text: str) -> Backend:
    return Backend(text.strip())


@pytest.mark.parametrize(
    ("content", "parse", "fault"),
    [
        *((content, backend, ".+") for content in (b"", b"nothing of ours", b"\xff\xfe")),
        (b"nftables iptables", backend, ".+"),
        (b"{}", lambda text: json.loads(text)["ranges"], "'ranges' is missing"),
        (b"x", lambda text: text.split()[1], ".+"),
        (b"x", lambda _: (5).partition("/"), ".+"),
        (b"x", lambda _: int(float("inf")), ".+"),
        (b"x", lambda _: 1 / 0, ".+"),
    ],
)
def test_what_is_read_back_must_be_understood(
    tmp_path: Path, content: bytes, parse: Callable[[str], object], fault: str
) -> None:
    path = tmp_path / "mark"
    assert durable.read(path, parse) is None
    path.write_bytes(content)
    with pytest.raises(StateError, match=f"{path}: cannot be understood: {fault}"):
        durable.read(path, parse)


def test_a_folder_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="cannot be read: Is a directory"):
        durable.read(tmp_path, str)


def test_files_are_replaced_and_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "mine").write_text("mine")
    assert durable.write_many(tmp_path, iter([("a", b"new"), ("b", b"more")])) == 2
    contents = {name: (tmp_path / name).read_text() for name in names(tmp_path)}
    assert contents == {"a": "new", "b": "more", "mine": "mine"}
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
