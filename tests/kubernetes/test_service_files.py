"""`netmgr kube services` on a real API server: the folder says what the cluster says, through
everything.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.controllers import Crowd, Starter
from tests.kubernetes.cutting import Way
from tests.kubernetes.services import (
    HOME,
    SLICES_OF,
    create,
    endpoint_slice,
    follow,
    said,
    service,
    true,
)
from tests.waiting import eventually

pytestmark = pytest.mark.kubernetes

MANY = 300
FOLLOWED = ("services", "endpointslices")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "services"


@pytest.fixture
def way(installed: ControlPlane) -> Iterator[Way]:
    made = Way(installed.port)
    yield made
    made.close()


def test_services_come_change_and_go_through_two_watches(
    installed: ControlPlane, services: Starter, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compared = 0

    def follows() -> bool:
        nonlocal compared
        compared += 1
        return said(folder) == true(installed)

    create(installed, ["first"])
    with installed.counted() as asked:
        follow(services, folder)
        eventually(lambda: "test-services_first" in said(folder))
        begun = time.monotonic()
        create(installed, (f"s{number}" for number in range(MANY)))
        created = time.monotonic()
        eventually(follows, every=0.2)
        lag = time.monotonic() - created
        changed = [
            (f"{SLICES_OF}/s{number}-1", endpoint_slice(f"s{number}", f"10.2.0.{number}"))
            for number in range(100)
        ]
        Crowd(installed).ask("PUT", changed)
        eventually(follows, every=0.2)
        assert said(folder)["test-services_s42"][1] == ("10.2.0.42",)
        installed.ask("DELETE", SLICES_OF)
        installed.ask("DELETE", f"{HOME}/services")
        eventually(follows, every=0.2)
        assert not [name for name in said(folder) if name.startswith("test-services")]
    # The two lists of the start; all else came through the two watches.
    assert [asked["LIST", kind] for kind in FOLLOWED] == [1 + compared, 1 + compared]
    with capsys.disabled():
        sys.stdout.write(
            f"\n{MANY} Services with slices: made in {created - begun:.1f} s, files true "
            f"{lag:.2f} s later\n"
        )


def test_a_service_without_an_address_has_no_file(
    installed: ControlPlane, services: Starter, folder: Path
) -> None:
    Crowd(installed).ask(
        "POST",
        [
            (f"{HOME}/services", service("headless", clusterIP="None")),
            (
                f"{HOME}/services",
                service("elsewhere", type="ExternalName", externalName="example.com"),
            ),
        ],
    )
    create(installed, ["shown"])
    follow(services, folder)
    eventually(lambda: "test-services_shown" in said(folder))
    assert not [name for name in said(folder) if "headless" in name or "elsewhere" in name]
    installed.ask("DELETE", f"{HOME}/services/shown")
    eventually(lambda: "test-services_shown" not in said(folder))
    create_again = service("shown")
    installed.ask("POST", f"{HOME}/services", create_again)
    eventually(lambda: said(folder).get("test-services_shown", ("", ()))[1] == ("10.1.0.1",))


def test_a_slice_that_goes_over_to_another_service_leaves_the_first(
    installed: ControlPlane, services: Starter, folder: Path
) -> None:
    create(installed, ["blue", "green"])
    follow(services, folder)
    eventually(lambda: said(folder) == true(installed) if folder.exists() else False)
    path = f"{SLICES_OF}/blue-1"
    installed.ask("PUT", path, endpoint_slice("green", "10.1.0.2", "blue-1"))
    eventually(lambda: said(folder)["test-services_green"][1] == ("10.1.0.1", "10.1.0.2"))
    eventually(lambda: said(folder)["test-services_blue"][1] == (), seconds=10)
    nobodys = {"metadata": {"labels": {"kubernetes.io/service-name": None}}}
    installed.ask("PATCH", path, nobodys, kind="merge-patch+json")
    eventually(lambda: said(folder)["test-services_green"][1] == ("10.1.0.1",), seconds=10)


def test_a_dropped_watch_goes_on_without_listing_again(
    installed: ControlPlane, services: Starter, folder: Path, way: Way
) -> None:
    create(installed, ["a", "b"])
    program = follow(services, folder, way)
    eventually(lambda: said(folder) == true(installed) if folder.exists() else False)
    with installed.counted() as asked:
        way.cut()
        create(installed, ["c"])
        installed.ask("DELETE", f"{HOME}/services/a")
        time.sleep(1.5)
        assert "test-services_a" in said(folder), (
            "what was known last stays while the server is away"
        )
        way.mend()
        eventually(
            lambda: "test-services_c" in said(folder) and "test-services_a" not in said(folder)
        )
    assert asked["LIST", "services"] == asked["LIST", "endpointslices"] == 0
    assert program.process.poll() is None


def test_what_happened_before_a_restart_of_the_server_is_learnt_by_listing_again(
    installed: ControlPlane, services: Starter, folder: Path, way: Way
) -> None:
    create(installed, ["a", "b"])
    follow(services, folder, way)
    eventually(lambda: said(folder) == true(installed) if folder.exists() else False)
    way.cut()
    installed.ask("DELETE", f"{HOME}/services/a")
    create(installed, (f"later{number}" for number in range(20)))
    installed.stop_server()
    installed.start_server()
    way.mend()
    eventually(lambda: said(folder) == true(installed), seconds=60)


def test_a_folder_that_somebody_else_filled_is_put_right(
    installed: ControlPlane, services: Starter, folder: Path
) -> None:
    create(installed, ["a", "b"])
    folder.mkdir()
    (folder / "test-services_gone.json").write_text("{}")
    (folder / "test-services_a.json").write_text('{"half a')
    follow(services, folder)
    eventually(lambda: not (folder / "test-services_gone.json").exists())
    eventually(lambda: said(folder) == true(installed))


def test_the_folder_appears_whole(installed: ControlPlane, services: Starter, folder: Path) -> None:
    create(installed, (f"s{number}" for number in range(200)))
    follow(services, folder)
    eventually(folder.exists, every=0.001)
    assert len(list(folder.glob("*.json"))) >= 200
    assert [path.name for path in folder.parent.glob(".services*")] == []
