"""The DELs that launchers kept: done in order, one after the other, whatever else lies in the
spool.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from netmgr.agent.cni.spool import replay
from netmgr.errors import InvalidNetworkConfig, TryAgainLater

HOUR = 3600


class Server:
    """Takes requests, and answers some with a code of their own."""

    def __init__(self) -> None:
        self.served: list[bytes] = []
        self.codes: dict[bytes, int] = {}

    def __call__(self, message: bytes) -> int:
        self.served.append(message)
        return self.codes.get(message, 0)


@pytest.fixture
def server() -> Server:
    return Server()


def put(directory: Path, name: str, *, age: float = 0) -> Path:
    path = directory / name
    path.write_bytes(name.encode())
    then = time.time() - age
    os.utime(path, (then, then))
    return path


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_oldest_is_done_first_and_what_is_done_is_removed(
    tmp_path: Path, server: Server
) -> None:
    for name, age in (("young.del", 100), ("old.del", 300), ("middle.del", 200)):
        put(tmp_path, name, age=age)
    replay([tmp_path / "none", tmp_path], server)
    assert server.served == [b"old.del", b"middle.del", b"young.del"]
    assert names(tmp_path) == []


def test_a_request_at_fault_is_set_aside_and_one_that_failed_here_stays(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.codes = {
        b"wrong.del": InvalidNetworkConfig.cni_code,
        b"later.del": TryAgainLater.cni_code,
    }
    for name in ("wrong.del", "later.del"):
        put(tmp_path, name)
    for _ in range(2):
        replay([tmp_path], server)
    assert names(tmp_path) == ["later.del", "wrong.del.refused"]
    assert server.served.count(b"wrong.del") == 1
    assert [
        record.levelname for record in caplog.records if "wrong.del.refused" in record.getMessage()
    ] == ["ERROR"]


def test_a_request_that_ends_in_a_fault_of_ours_is_set_aside_and_holds_no_later_one_up(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "1.del", age=3)
    put(tmp_path, "2.del", age=2)

    def serve(message: bytes) -> int:
        if message == b"1.del":
            raise UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed")
        return server(message)

    replay([tmp_path], serve)
    assert names(tmp_path) == ["1.del.refused"]
    assert server.served == [b"2.del"]
    assert "surrogates not allowed" in caplog.text


def test_what_a_launcher_of_another_version_kept_stays_for_its_agent(
    tmp_path: Path, server: Server
) -> None:
    kept = tmp_path / "1.del"
    kept.write_bytes(b"netmgr-cni 2\0CNI_COMMAND=DEL\0\0{}")
    (tmp_path / "2.del").write_bytes(b"netmgr-cni 1\0CNI_COMMAND=DEL\0\0{}")
    replay([tmp_path], server)
    assert names(tmp_path) == ["1.del"]
    assert len(server.served) == 1


def test_a_failure_of_the_nodes_own_keeps_the_request(tmp_path: Path) -> None:
    put(tmp_path, "1.del")

    def serve(message: bytes) -> int:
        raise OSError(28, message.decode())

    replay([tmp_path], serve)
    assert names(tmp_path) == ["1.del"]


def test_a_file_larger_than_any_request_is_not_even_read(tmp_path: Path, server: Server) -> None:
    with (tmp_path / "1.del").open("wb") as file:
        file.truncate(1 << 40)
    replay([tmp_path], server)
    assert names(tmp_path) == ["1.del.refused"]
    assert server.served == []


def test_what_no_launcher_left_holds_nothing_up_and_stays(tmp_path: Path, server: Server) -> None:
    (tmp_path / "a-directory").mkdir()
    (tmp_path / "b-link").symlink_to("nowhere")
    os.mkfifo(tmp_path / "c-pipe")
    put(tmp_path, "request.del")
    replay([tmp_path], server)
    assert server.served == [b"request.del"]
    assert names(tmp_path) == ["a-directory", "b-link", "c-pipe"]


def test_a_file_that_cannot_be_read_holds_no_later_one_up(tmp_path: Path, server: Server) -> None:
    put(tmp_path, "1.del", age=3)
    vanishing = put(tmp_path, "2.del", age=2)
    put(tmp_path, "3.del", age=1)

    def serve(message: bytes) -> int:
        vanishing.unlink(missing_ok=True)
        return server(message)

    replay([tmp_path], serve)
    assert server.served == [b"1.del", b"3.del"]
    assert names(tmp_path) == []


@pytest.mark.parametrize("code", [0, InvalidNetworkConfig.cni_code])
def test_a_newer_request_under_the_same_name_is_carried_out_next(
    tmp_path: Path, server: Server, code: int
) -> None:
    spooled = put(tmp_path, "1.del")

    def serve(message: bytes) -> int:
        put(tmp_path, "newer").rename(spooled)
        server(message)
        return code

    replay([tmp_path], serve)
    assert names(tmp_path) == ["1.del"]
    replay([tmp_path], server)
    assert server.served == [b"1.del", b"newer"]
    assert names(tmp_path) == []


def test_what_a_launcher_left_unfinished_goes_once_nobody_can_be_writing_it(
    tmp_path: Path, server: Server
) -> None:
    put(tmp_path, ".0123456789abcdef.4711", age=HOUR + 60)
    put(tmp_path, ".0123456789abcdef.4712", age=HOUR - 60)
    put(tmp_path, ".somebody-elses", age=2 * HOUR)
    replay([tmp_path], server)
    assert server.served == []
    assert names(tmp_path) == [".0123456789abcdef.4712", ".somebody-elses"]
