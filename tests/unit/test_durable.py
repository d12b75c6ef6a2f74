"""Small files are old or new, never half, and what is read back is held against what it should
be."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
import time
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
