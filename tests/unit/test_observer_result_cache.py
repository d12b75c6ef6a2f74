"""The cache directory is read whatever lies in it, and every change of it is noticed."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from netmgr.errors import StateError
from netmgr.kernel.inotify import Watch
from netmgr.observer.cached_results import MOST_BYTES, Reason, ResultCache


def entry(pod: str, address: str = "10.88.1.2/24") -> bytes:
    arguments = [["K8S_POD_NAMESPACE", "team"], ["K8S_POD_NAME", pod]]
    document = {
        "kind": "cniCacheV1",
        "containerId": f"c-{pod}",
        "ifName": "eth0",
        "cniArgs": arguments,
    }
    return json.dumps(document | {"result": {"ips": [{"address": address}]}}).encode()


def pods(cache: ResultCache) -> list[str]:
    return sorted(result.pod.name for result in cache.list().results)


def test_files_come_change_and_go(tmp_path: Path):
    cache = ResultCache(tmp_path)
    (tmp_path / "one").write_bytes(entry("a"))
    assert pods(cache) == ["a"]
    (tmp_path / "one").write_bytes(entry("b"))
    (tmp_path / "two").write_bytes(entry("c"))
    assert pods(cache) == ["b", "c"]
    (tmp_path / "one").unlink()
    assert pods(cache) == ["c"]


def test_a_directory_that_is_not_there_is_empty(tmp_path: Path):
    assert ResultCache(tmp_path / "none").list() == ((), {})


def test_a_name_too_long_to_be_a_directory_is_told(tmp_path: Path):
    with pytest.raises(StateError, match="cannot be listed"):
        ResultCache(tmp_path / ("n" * 300)).list()


def test_nothing_but_regular_files_of_some_size_is_read(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_bytes(entry("outside"))
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "huge").write_bytes(entry("huge") + b" " * MOST_BYTES)
    (tmp_path / "half").write_bytes(entry("half")[:-9])
    (tmp_path / os.fsdecode(b"\xff")).write_bytes(entry("good"))
    listing = ResultCache(tmp_path).list()
    assert [result.pod.name for result in listing.results] == ["good"]
    assert listing.unusable == {Reason.UNREADABLE: 3, Reason.TOO_LARGE: 1, Reason.MALFORMED: 1}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cni" / "results"


@pytest.fixture
def watch(directory: Path) -> Iterator[Watch]:
    watch = Watch(directory)
    yield watch
    watch.close()


def noticed(watch: Watch) -> bool:
    return bool(select.select([watch], [], [], 0)[0])


def settle(watch: Watch) -> None:
    watch.drain()
    watch.renew()


def test_a_directory_is_followed_from_before_it_exists_to_after_it_was_replaced(
    watch: Watch, directory: Path
):
    for _ in range(2):
        assert not watch.complete
        for path in (directory.parent, directory):
            path.mkdir()
            assert noticed(watch)
            settle(watch)
        assert watch.complete
        directory.rmdir()
        directory.parent.rmdir()
        assert noticed(watch)
        settle(watch)


def test_a_file_is_noticed_when_it_is_written_renamed_and_removed(watch: Watch, directory: Path):
    directory.mkdir(parents=True)
    settle(watch)
    file = directory / "one"
    for change in (
        lambda: file.write_bytes(b"x"),
        lambda: file.rename(directory / "two"),
        (directory / "two").unlink,
    ):
        assert not noticed(watch)
        change()
        assert noticed(watch)
        settle(watch)
    assert not noticed(watch)
