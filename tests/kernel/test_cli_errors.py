"""Whatever a machine refuses ends a command in one sentence with what to do, and never in a
traceback.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from netmgr import errors
from tests.builders import NODE_KEYS
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.root, pytest.mark.slow]

NOBODY = "setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all --inh-caps=-all"
COMMANDS = (
    "exporter --listen 127.0.0.1:0 --tls-cert {} --tls-key {}",
    "exporter --listen 127.0.0.1:0 --basic-auth-file {}",
    "node status --socket {}",
    "plan adopt {}",
    "cni install --bin-dir {}/a --conf-dir {}/b --state-dir {}/c",
    "cni uninstall --bin-dir {}",
)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory that everybody can enter, with things in it that are not what one hopes for."""
    made = Path(tempfile.mkdtemp(prefix="netmgr-errors-"))
    made.chmod(0o755)
    (made / "binary").write_bytes(b"\xff\xfe\0")
    (made / "folder").mkdir()
    (made / "empty").touch()
    (made / "read-only").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs"]
    subprocess.run([*mount, str(made / "read-only")], check=True)
    yield made
    subprocess.run(["umount", str(made / "read-only")], check=True)
    shutil.rmtree(made)


def run(place: Path, *arguments: str, user: str = "") -> subprocess.CompletedProcess[str]:
    """In a network namespace of its own, so that nothing of this machine can be changed."""
    command = ["unshare", "--net", *user.split(), sys.executable, "-m", "netmgr", *arguments]
    return subprocess.run(
        command, check=False, cwd=place, capture_output=True, text=True, timeout=PATIENCE
    )


def document(place: Path, state_dir: Path, run_dir: Path) -> str:
    content = {
        **NODE_KEYS,
        "node": {"name": "one"},
        "ranges": ["10.9.0.0/28"],
        "state_dir": str(state_dir),
        "run_dir": str(run_dir),
    }
    path = place / "node.yaml"
    path.write_text(yaml.safe_dump(content))
    path.chmod(0o644)
    return str(path)


def assert_one_sentence(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert "Traceback" not in done.stderr
    assert done.returncode in (1, 2), done.stderr
    assert done.stderr.splitlines(), "it says nothing"
    assert not [part for part in parts if part not in done.stderr], done.stderr


@pytest.mark.parametrize(
    ("command", "group", "mode", "way_in"),
    [
        ("node status", 1, 0o755, "join its reader_group, daemon: usermod -aG daemon USER"),
        ("node top", 77777, 0o755, "with the group 77777, its reader_group"),
        ("usage", 0, 0o755, "set reader_group in node.yaml to a group of this user and restart"),
        ("nat status", 1, 0o700, "join the group that reader_group in node.yaml names"),
    ],
    ids=["group", "number", "none", "closed"],
)
def test_who_may_not_open_the_socket_reads_how_to_get_in(
    place: Path, command: str, group: int, mode: int, way_in: str
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=place))
    path = folder / "ledger.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        path.chmod(0o660)
        os.chown(path, 0, group)
        folder.chmod(mode)
        done = run(place, *command.split(), "--socket", str(path), user=NOBODY)
    assert_one_sentence(done, f"{path}: this user may not read the agent's socket; ", way_in)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_path_that_is_not_what_it_should_be(place: Path, command: str) -> None:
    files = ("binary", "empty/below", "read-only") if "cni" in command else ("binary", "folder")
    for file in files:
        words = [word.replace("{}", str(place / file)) for word in command.split()]
        assert_one_sentence(run(place, *words))


@pytest.mark.parametrize("file", ["missing", "folder", "empty/below"])
def test_a_launcher_that_is_no_file(place: Path, tmp_path: Path, file: str) -> None:
    where = [f"--{key}={tmp_path / key}" for key in ("bin-dir", "conf-dir", "state-dir")]
    done = run(place, "cni", "install", *where, "--launcher", str(place / file))
    assert_one_sentence(done, str(place / file), "; ")
    assert not (tmp_path / "conf-dir").exists()


@pytest.mark.parametrize("which", ["state_dir", "run_dir"])
@pytest.mark.parametrize(
    ("where", "reason"), [("/proc/none", "No such file"), ("read-only/x", "Read-only file system")]
)
def test_a_directory_that_cannot_be_made(
    place: Path, tmp_path: Path, which: str, where: str, reason: str
) -> None:
    sound = {"state_dir": tmp_path / "state", "run_dir": tmp_path / "run"}
    wrong = document(place, **sound | {which: place / where})
    assert_one_sentence(run(place, "agent", "-c", wrong), str(place / where), reason)


@pytest.mark.parametrize(
    "command",
    [
        "agent -c node.yaml",
        "host clean --state-dir gone --run-dir gone",
        "cni install --bin-dir {}/a --conf-dir {}/b --state-dir {}/c",
    ],
)
def test_without_root(place: Path, tmp_path: Path, command: str) -> None:
    document(place, tmp_path / "state", tmp_path / "run")
    reason = "Permission denied" if "cni" in command else "run it as root"
    words = command.replace("{}", str(place)).split()
    assert_one_sentence(run(place, *words, user=NOBODY), reason)
    assert not (tmp_path / "state").exists()


def test_a_remedy_follows_what_the_system_said(tmp_path: Path) -> None:
    for path, remedy in (
        (tmp_path / "none", "make it first"),
        (tmp_path, "name a file: this is a directory"),
    ):
        with pytest.raises(OSError) as caught:  # noqa: PT011  any of them
            path.read_bytes()
        assert str(errors.of_system(caught.value)).startswith(f"{path}: ")
        assert remedy in str(errors.of_system(caught.value))
