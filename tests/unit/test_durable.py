"""Small files are old or new, never half, and what is read back is held against what it should
be."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from netmgr import durable
from netmgr.documents.node import Backend
from netmgr.errors import StateError

WRITER = """
import sys
from pathlib import Path
from netmgr.durable import write_text
write_text(Path(sys.argv[1]), "b" * 200_000)
print("ready", flush=True)
while True:
    for letter in "ab":
        write_text(Path(sys.argv[1]), letter * 200_000)
"""


@pytest.mark.programs
def test_a_writer_that_is_killed_leaves_the_old_file_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "written"
    for delay in (0.001, 0.004, 0.009, 0.02):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        with writer:
            writer.stdout.readline()
            time.sleep(delay)
            writer.send_signal(signal.SIGKILL)
        assert path.read_text() in ("a" * 200_000, "b" * 200_000)


def test_a_file_keeps_its_mode_or_gets_the_one_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for asked, mode in ((None, 0o644), (0o600, 0o600), (None, 0o600), (0o755, 0o755)):
        durable.write(path, b"x", asked)
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_what_cannot_be_written_is_told_and_nothing_stays_behind(tmp_path: Path) -> None:
    with pytest.raises(
        StateError, match="missing/file: cannot be written: No such file or directory"
    ):
        durable.write(tmp_path / "missing" / "file", b"x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StateError, match="folder: cannot be written: Is a directory"):
        durable.write(tmp_path / "folder", b"x")
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


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
        names = sorted(each.name.rpartition(".")[0] or each.name for each in tmp_path.iterdir())
        seen.append((is_folder, path.read_text(), names))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    durable.write_text(path, "n\u00e9w")
    assert seen == [(False, "old", [".file", "file"]), (True, "n\u00e9w", ["file"])]


def test_a_folder_is_made_with_its_parents_and_kept_if_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    for _ in range(2):
        durable.make_folder(path)
        assert path.is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match=r"file/a: cannot be made: Not a directory$"):
        durable.make_folder(tmp_path / "file" / "a")


def test_what_killed_writers_left_goes_with_the_next_write(tmp_path: Path) -> None:
    path, kept = tmp_path / "ranges[1].json", {".ranges[1].json.another", ".ranges1.json.abcdefgh"}
    for name in {".ranges[1].json.abcdefgh", *kept}:
        (tmp_path / name).write_bytes(b"half")
    with (tmp_path / ".ranges[1].json.ijklmnop").open("wb") as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        durable.write(path, b"x")
    found = {each.name for each in tmp_path.iterdir()}
    assert found == {path.name, ".ranges[1].json.ijklmnop", *kept}


def test_writers_of_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [bytes([letter]) * 100 for letter in b"abcd"]
    with ThreadPoolExecutor(len(contents)) as workers:
        list(workers.map(lambda one: [durable.write(path, one) for _ in range(50)], contents))
    assert path.read_bytes() in contents
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("content", [b"", b"nothing of ours", b"\xff\xfe", b"nftables iptables"])
def test_what_is_read_back_must_be_understood(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mark"
    assert durable.read(path, Backend) is None
    path.write_bytes(content)
    with pytest.raises(StateError, match=f"{path}: cannot be understood: "):
        durable.read(path, lambda text: Backend(text.strip()))


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mark"
    path.write_text("{}")
    with pytest.raises(StateError, match="'ranges' is missing"):
        durable.read(path, lambda text: json.loads(text)["ranges"])
    path.unlink()
    path.mkdir()
    with pytest.raises(StateError, match="cannot be read: Is a directory"):
        durable.read(path, str)


@pytest.mark.parametrize(
    "parse",
    [
        lambda text: text.split()[1],
        lambda _: (5).partition("/"),
        lambda _: int(float("inf")),
        lambda _: 1 / 0,
    ],
    ids=["index", "attribute", "overflow", "division"],
)
def test_whatever_a_parser_stumbles_over_is_a_state_error(tmp_path: Path, parse) -> None:
    path = tmp_path / "mark"
    path.write_text("x")
    with pytest.raises(StateError, match=f"{path}: cannot be understood: "):
        durable.read(path, parse)
