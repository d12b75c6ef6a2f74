"""Documents in, changes out: what of a directory's changes is noticed, and what reaches the
backend.
"""

from __future__ import annotations

import json
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from netmgr.kernel.inotify import Watch
from netmgr.prefixes import Family
from netmgr.services.engine import Services
from tests.fakes.service_maps import Folder, map_of
from tests.fakes.services import FakeServices
from tests.fakes.services_world import service, slice_of


class Host:
    """Services over a backend without a kernel."""

    def __init__(self, source: Path) -> None:
        self.backend = FakeServices()
        self.services = Services(self.backend, map_of(source), Watch(source))

    def noticed(self) -> bool:
        return bool(select.select([self.services], [], [], 0)[0])

    def vips(self) -> dict[str, int]:
        return {str(vips): len(one.endpoints) for vips, one in self.backend.programmed.items()}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "services"


@pytest.fixture
def host(source: Path) -> Iterator[Host]:
    made = Host(source)
    yield made
    made.services.close()


def test_a_directory_may_come_after_the_agent(host: Host, source: Path):
    host.services.start()
    assert host.services.faults() == [
        f"{source}: there is no such file or directory; nothing was changed"
    ]
    source.mkdir()
    assert host.noticed()
    host.services.refresh()
    assert host.services.faults() == []
    Folder(source)("a.json", service(1, Family.V4), slice_of(1, Family.V4, [1]))
    assert host.noticed()
    host.services.refresh()
    assert host.vips() == {"10.200.0.1:80/tcp": 1}
    assert not host.noticed()


def test_every_kind_of_change_is_noticed_and_applied(host: Host, source: Path):
    source.mkdir()
    put = Folder(source)
    put("a.json", service(1, Family.V4), slice_of(1, Family.V4, [1]))
    host.services.start()
    put(".scratch", service(2, Family.V4))
    (source / ".scratch").rename(source / "b.json")
    host.services.refresh()
    assert host.vips() == {"10.200.0.1:80/tcp": 1, "10.200.0.2:80/tcp": 0}
    put("a.json", service(1, Family.V4), slice_of(1, Family.V4, [1, 2]))
    host.services.refresh()
    assert host.vips()["10.200.0.1:80/tcp"] == 2
    (source / "a.json").unlink()
    host.services.refresh()
    assert host.vips() == {"10.200.0.2:80/tcp": 0}


def test_a_mounted_config_map_is_followed_at_once(host: Host, source: Path):
    source.mkdir()
    for number in (1, 2):
        version = source / f"..{number}"
        version.mkdir()
        (version / "all.json").write_text(json.dumps(service(number, Family.V4)))
    (source / "..data").symlink_to("..1")
    (source / "all.json").symlink_to("..data/all.json")
    host.services.start()
    host.services.refresh()
    assert list(host.vips()) == ["10.200.0.1:80/tcp"]
    (source / "..next").symlink_to("..2")
    (source / "..next").rename(source / "..data")
    host.services.refresh()
    assert list(host.vips()) == ["10.200.0.2:80/tcp"]


def test_a_removed_service_is_closed_although_another_one_is_refused(host: Host, source: Path):
    source.mkdir()
    put = Folder(source)
    for number in (1, 2):
        put(f"{number}.json", service(number, Family.V4), slice_of(number, Family.V4, [number]))
    host.services.start()
    (source / "1.json").unlink()
    outside = slice_of(2, Family.V4, [2])
    outside["endpoints"][0]["addresses"] = ["192.0.2.1"]
    put("2.json", service(2, Family.V4), outside)
    successor = Services(host.backend, map_of(source), Watch(source))
    successor.start()
    assert host.vips() == {"10.200.0.2:80/tcp": 1}
    assert len(successor.faults()) == 1
    successor.close()


def test_what_a_predecessor_opened_is_closed_only_when_every_file_can_be_read(
    host: Host, source: Path
):
    source.mkdir()
    put = Folder(source)
    put("a.json", service(1, Family.V4))
    put("b.json", service(2, Family.V4))
    host.services.start()
    (source / "a.json").unlink()
    bad = put("b.json", {"kind": "Pod"})
    successor = Services(host.backend, map_of(source), Watch(source))
    successor.start()
    assert len(host.vips()) == 2
    assert len(successor.faults()) == 1
    bad.unlink()
    successor.refresh()
    assert host.vips() == {}
    successor.close()


def test_sync_tells_what_it_repaired_and_takes_what_changed(host: Host, source: Path):
    source.mkdir()
    put = Folder(source)
    put("a.json", service(1, Family.V4), slice_of(1, Family.V4, [1]))
    host.services.start()
    assert host.services.sync() == []
    host.backend.programmed.clear()
    put("b.json", service(2, Family.V4))
    assert host.services.sync() == ["10.200.0.1:80/tcp was not as it should be"]
    assert len(host.vips()) == 2


def test_status_tells_ready_and_draining_endpoints(host: Host, source: Path):
    source.mkdir()
    Folder(source)(
        "a.json",
        service(1, Family.V4, sticky=True),
        slice_of(1, Family.V4, [1, 2], terminating=[3]),
    )
    host.services.start()
    (status,) = host.services.status()
    assert (str(status.service), str(status.vip), status.sticky) == (
        "team/s1",
        "10.200.0.1:80/tcp",
        True,
    )
    assert [str(one) for one in status.ready] == ["10.9.0.1:8080", "10.9.0.2:8080"]
    assert [str(one) for one in status.draining] == ["10.9.0.3:8080"]
    assert status.hits == 0
    assert host.services.size() == (1, 2)
