"""A file of libcni's result cache is read for what it says, and never for more; the directory is
read whatever lies in it, and every change of it is noticed.
"""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from netmgr.errors import StateError
from netmgr.kernel.inotify import Watch
from netmgr.model import AttachmentKey, PodRef
from netmgr.observer.cached_results import (
    MOST_BYTES,
    CachedResult,
    IgnoreReason,
    ResultCache,
    UnusableFile,
    parse,
)
from netmgr.prefixes import Address

RESULT: dict[str, Any] = {
    "cniVersion": "1.0.0",
    "interfaces": [
        {"name": "cni0", "mac": "aa:00:00:00:00:01"},
        {"name": "veth1", "mac": "aa:00:00:00:00:02"},
        {"name": "eth0", "mac": "aa:00:00:00:00:03", "sandbox": "/run/netns/a"},
    ],
    "ips": [
        {"address": "10.88.1.2/24", "interface": 2},
        {"address": "fd00::2/112", "interface": 2},
    ],
}
ENTRY: dict[str, Any] = {
    "kind": "cniCacheV1",
    "containerId": "c1",
    "ifName": "eth0",
    "networkName": "others",
    "config": "e30=",
    "cniArgs": [["IgnoreUnknown", "1"], ["K8S_POD_NAMESPACE", "research"], ["K8S_POD_NAME", "gpt"]],
    "result": RESULT,
}


def read(**changes: Any) -> CachedResult:
    return parse(json.dumps(ENTRY | changes).encode(), 5.0)


def test_a_result_says_whose_the_addresses_are_and_which_links_the_host_has():
    addresses = (Address.parse("10.88.1.2"), Address.parse("fd00::2"))
    pod = PodRef("research", "gpt")
    assert read() == CachedResult(
        AttachmentKey("c1", "eth0"), pod, addresses, ("cni0", "veth1"), 5.0
    )


def test_the_uid_is_part_of_who_it_is():
    arguments = [*ENTRY["cniArgs"], ["K8S_POD_UID", "u-1"]]
    assert read(cniArgs=arguments).pod == PodRef("research", "gpt", "u-1")


@pytest.mark.parametrize(
    "arguments", [None, [], [["OTHER", "x"]], [["K8S_POD_NAME", ""]], ["K8S", 3, ["a"]]]
)
def test_outside_kubernetes_the_container_is_the_pod(arguments: object):
    assert read(cniArgs=arguments).pod == PodRef("-", "c1")


def test_the_result_of_an_ancient_plugin_has_addresses_and_no_links():
    found = read(result={"ip4": {"ip": "10.1.0.9/24"}, "ip6": {"ip": "fd00::9/64"}})
    assert found.addresses == (Address.parse("10.1.0.9"), Address.parse("fd00::9"))
    assert found.host_links == ()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "cniCacheV2"}, IgnoreReason.MALFORMED),
        ({"result": []}, IgnoreReason.MALFORMED),
        ({"result": {"ips": [{"address": "pod"}]}}, IgnoreReason.MALFORMED),
        ({"containerId": None}, IgnoreReason.MALFORMED),
        ({"cniArgs": [["K8S_POD_NAME", 7]]}, IgnoreReason.MALFORMED),
        ({"result": {}}, IgnoreReason.WITHOUT_ADDRESS),
        ({"result": {"ips": [7, {"address": 7}, {}]}}, IgnoreReason.WITHOUT_ADDRESS),
        ({"containerId": "../c1"}, IgnoreReason.UNFIT_NAME),
        ({"ifName": "eth0\n"}, IgnoreReason.UNFIT_NAME),
        ({"cniArgs": [["K8S_POD_NAMESPACE", 'a"} 1\n']]}, IgnoreReason.UNFIT_NAME),
        ({"cniArgs": [["K8S_POD_NAME", "\x1b[2J"]]}, IgnoreReason.UNFIT_NAME),
        ({"cniArgs": [["K8S_POD_NAME", "n" * 10_000]]}, IgnoreReason.UNFIT_NAME),
        ({"cniArgs": [["K8S_POD_UID", "\ud800"]]}, IgnoreReason.UNFIT_NAME),
    ],
)
def test_what_cannot_be_counted_has_a_reason(changes: dict[str, Any], reason: IgnoreReason):
    with pytest.raises(UnusableFile) as caught:
        read(**changes)
    assert caught.value.reason is reason


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b"null"])
def test_what_is_no_document_is_malformed(content: bytes):
    with pytest.raises(UnusableFile) as caught:
        parse(content, 5.0)
    assert caught.value.reason is IgnoreReason.MALFORMED


def entry(pod: str) -> bytes:
    return json.dumps(ENTRY | {"cniArgs": [["K8S_POD_NAME", pod]]}).encode()


def test_files_come_change_and_go(tmp_path: Path):
    cache, one = ResultCache(tmp_path), tmp_path / "one"

    def pods() -> set[str]:
        return {result.pod.name for result in cache.list().results}

    one.write_bytes(entry("a"))
    assert pods() == {"a"}
    one.write_bytes(entry("b"))
    (tmp_path / "two").write_bytes(entry("c"))
    assert pods() == {"b", "c"}
    one.unlink()
    assert pods() == {"c"}


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
    assert listing.unusable == {
        IgnoreReason.UNREADABLE: 3,
        IgnoreReason.TOO_LARGE: 1,
        IgnoreReason.MALFORMED: 1,
    }


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


def test_a_directory_is_followed_before_and_after_it_exists(watch: Watch, directory: Path):
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
