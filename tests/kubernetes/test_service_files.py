"""`netmgr kube services` on a real API server: the folder says what the cluster says, through everything."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.kubernetes.control_plane import ControlPlane, Object
from tests.kubernetes.controllers import Crowd, Program, Starter, eventually
from tests.kubernetes.cutting import Way

pytestmark = pytest.mark.kubernetes

MANY = 1000
FOLLOWED = ("services", "endpointslices")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "services"


@pytest.fixture
def way(installed: ControlPlane) -> Iterator[Way]:
    made = Way(installed.port)
    yield made
    made.close()


@pytest.fixture
def start(installed: ControlPlane, starter: Starter) -> Iterator[Starter]:
    """Starts followers; afterwards there are no Services but the one the server keeps for itself."""
    yield starter
    starter.stop()
    for namespace in ("default", "test-services"):
        for path in (f"/api/v1/namespaces/{namespace}/services", f"{SLICES}/{namespace}/endpointslices"):
            installed.answer("DELETE", path)


SLICES = "/apis/discovery.k8s.io/v1/namespaces"
HOME = "/api/v1/namespaces/test-services"


@pytest.fixture(scope="module", autouse=True)
def _namespace(control_plane: ControlPlane) -> None:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "test-services"}}
    control_plane.ask("POST", "/api/v1/namespaces", body)


def follow(starter: Starter, folder: Path, way: Way | None = None) -> Program:
    account = starter.account("netmgr", "netmgr-nat-host")
    port = {"KUBERNETES_SERVICE_PORT": str(way.port)} if way else {}
    return starter.start("kube", "services", f"--to={folder}", account=account, environment=port)


def service(name: str, **spec: object) -> Object:
    ports = [{"name": "http", "port": 80, "protocol": "TCP"}]
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"ports": ports} | spec}


def endpoint_slice(owner: str, address: str, name: str = "") -> Object:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name or f"{owner}-1", "labels": {"kubernetes.io/service-name": owner}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }


def said(folder: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Each Service's cluster address and endpoints, as the files have them."""
    found = {}
    for path in folder.glob("[!.]*.json"):
        try:
            head, *slices = json.loads(path.read_text())["items"]
        except FileNotFoundError:  # removed since it was listed
            continue
        endpoints = sorted(a for each in slices for e in each["endpoints"] for a in e["addresses"])
        found[path.stem] = (head["spec"]["clusterIP"], tuple(endpoints))
    return found


def true(plane: ControlPlane) -> dict[str, tuple[str, tuple[str, ...]]]:
    """The same, as the server has them."""
    endpoints: dict[str, list[str]] = {}
    for each in plane.ask("GET", "/apis/discovery.k8s.io/v1/endpointslices")["items"]:
        owner = f"{each['metadata']['namespace']}_{each['metadata']['labels']['kubernetes.io/service-name']}"
        endpoints.setdefault(owner, []).extend(a for e in each["endpoints"] or [] for a in e["addresses"])
    services = plane.ask("GET", "/api/v1/services")["items"]
    names = {f"{each['metadata']['namespace']}_{each['metadata']['name']}": each for each in services}
    return {
        name: (each["spec"]["clusterIP"], tuple(sorted(endpoints.get(name, []))))
        for name, each in names.items()
        if each["spec"].get("clusterIP") not in (None, "", "None")
    }


def create(plane: ControlPlane, names: Iterable[str], address: str = "10.1.0.1") -> None:
    """Services with one endpoint each."""
    names = list(names)
    Crowd(plane).ask("POST", ((f"{HOME}/services", service(name)) for name in names))
    slices = f"{SLICES}/test-services/endpointslices"
    Crowd(plane).ask("POST", ((slices, endpoint_slice(name, address)) for name in names))


def test_services_by_the_thousand_come_change_and_go(
    installed: ControlPlane, start: Starter, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compared = 0

    def follows() -> bool:
        nonlocal compared
        compared += 1
        return said(folder) == true(installed)

    create(installed, ["first"])
    with installed.counted() as asked:
        follow(start, folder)
        eventually(lambda: "test-services_first" in said(folder))
        begun = time.monotonic()
        create(installed, (f"s{number}" for number in range(MANY)))
        created = time.monotonic()
        eventually(follows, every=0.2)
        lag = time.monotonic() - created
        slices = f"{SLICES}/test-services/endpointslices"
        changed = [(f"{slices}/s{number}-1", endpoint_slice(f"s{number}", f"10.2.0.{number}")) for number in range(100)]
        Crowd(installed).ask("PUT", changed)
        eventually(follows, every=0.2)
        assert said(folder)["test-services_s42"][1] == ("10.2.0.42",)
        installed.ask("DELETE", slices)
        installed.ask("DELETE", f"{HOME}/services")
        eventually(follows, every=0.2)
        assert not [name for name in said(folder) if name.startswith("test-services")]
    # The two lists of the start; all else, 2,200 changes and more, came through the two watches.
    assert [asked["LIST", kind] for kind in FOLLOWED] == [1 + compared, 1 + compared]
    with capsys.disabled():
        sys.stdout.write(
            f"\n{MANY} Services with slices: made in {created - begun:.1f} s, files true {lag:.2f} s later\n"
        )


def test_a_service_without_an_address_has_no_file(installed: ControlPlane, start: Starter, folder: Path) -> None:
    Crowd(installed).ask(
        "POST",
        [
            (f"{HOME}/services", service("headless", clusterIP="None")),
            (f"{HOME}/services", service("elsewhere", type="ExternalName", externalName="example.com")),
        ],
    )
    create(installed, ["shown"])
    follow(start, folder)
    eventually(lambda: "test-services_shown" in said(folder))
    assert not [name for name in said(folder) if "headless" in name or "elsewhere" in name]
    installed.ask("DELETE", f"{HOME}/services/shown")
    eventually(lambda: "test-services_shown" not in said(folder))
    create_again = service("shown")
    installed.ask("POST", f"{HOME}/services", create_again)
    eventually(lambda: said(folder).get("test-services_shown", ("", ()))[1] == ("10.1.0.1",))


def test_a_dropped_watch_goes_on_without_listing_again(
    installed: ControlPlane, start: Starter, folder: Path, way: Way
) -> None:
    create(installed, ["a", "b"])
    program = follow(start, folder, way)
    eventually(lambda: said(folder) == true(installed) if folder.exists() else False)
    with installed.counted() as asked:
        way.cut()
        create(installed, ["c"])
        installed.ask("DELETE", f"{HOME}/services/a")
        time.sleep(1.5)
        assert "test-services_a" in said(folder), "what was known last stays while the server is away"
        way.mend()
        eventually(lambda: "test-services_c" in said(folder) and "test-services_a" not in said(folder))
    assert asked["LIST", "services"] == asked["LIST", "endpointslices"] == 0
    assert program.process.poll() is None


def test_what_happened_before_a_restart_of_the_server_is_learnt_by_listing_again(
    installed: ControlPlane, start: Starter, folder: Path, way: Way
) -> None:
    create(installed, ["a", "b"])
    follow(start, folder, way)
    eventually(lambda: said(folder) == true(installed) if folder.exists() else False)
    way.cut()
    installed.ask("DELETE", f"{HOME}/services/a")
    create(installed, (f"later{number}" for number in range(20)))
    installed.stop_server()
    installed.start_server()
    way.mend()
    eventually(lambda: said(folder) == true(installed), seconds=60)


def test_a_folder_that_somebody_else_filled_is_put_right(installed: ControlPlane, start: Starter, folder: Path) -> None:
    create(installed, ["a", "b"])
    folder.mkdir()
    (folder / "test-services_gone.json").write_text("{}")
    (folder / "test-services_a.json").write_text('{"half a')
    follow(start, folder)
    eventually(lambda: not (folder / "test-services_gone.json").exists())
    eventually(lambda: said(folder) == true(installed))


def test_the_folder_appears_whole(installed: ControlPlane, start: Starter, folder: Path) -> None:
    create(installed, (f"s{number}" for number in range(200)))
    follow(start, folder)
    eventually(folder.exists, every=0.001)
    assert len(list(folder.glob("*.json"))) >= 200
    assert [path.name for path in folder.parent.glob(".services*")] == []
