"""What the Kubernetes room keeps in files and objects: without an API server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from netmgr.errors import ConfigError, StateError
from netmgr.kube.claim_store import read
from netmgr.kube.node_document import RANGES, pod_cidr, ranges
from netmgr.kube.service_files import ServiceFiles
from netmgr.prefixes import Prefix


def service(name: str, address: str = "10.96.0.1") -> dict[str, object]:
    return {
        "metadata": {"namespace": "web", "name": name, "managedFields": [1]},
        "spec": {"clusterIP": address},
    }


def slice_of(owner: str, name: str, *addresses: str) -> dict[str, object]:
    labels = {"kubernetes.io/service-name": owner}
    return {
        "metadata": {"namespace": "web", "name": name, "labels": labels, "resourceVersion": "7"},
        "addressType": "IPv4",
        "endpoints": [{"addresses": list(addresses)}],
        "ports": None,
    }


def test_nothing_is_written_before_both_lists_are_known(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    files = ServiceFiles(folder)
    files.services.replace([service("api")])
    files.services.change(service("shop"))
    assert not folder.exists()
    files.slices.replace(
        [slice_of("api", "api-1", "10.1.0.1"), slice_of("api", "api-0", "10.1.0.2")]
    )
    assert sorted(path.name for path in folder.iterdir()) == ["web_api.json", "web_shop.json"]
    head, *slices = json.loads((folder / "web_api.json").read_text())["items"]
    assert head == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "web", "name": "api"},
    } | {"spec": {"clusterIP": "10.96.0.1"}}
    assert [each["metadata"]["name"] for each in slices] == ["api-0", "api-1"]


def test_a_file_that_would_say_the_same_is_not_written_again(tmp_path: Path) -> None:
    files = ServiceFiles(tmp_path)
    files.services.replace([service("api")])
    files.slices.replace([])
    before = (tmp_path / "web_api.json").stat()
    files.services.change(service("api"))
    files.services.replace([service("api")])
    assert (tmp_path / "web_api.json").stat().st_ino == before.st_ino
    files.slices.change(slice_of("api", "api-0", "10.1.0.1"))
    assert (tmp_path / "web_api.json").stat().st_ino != before.st_ino
    files.slices.delete(slice_of("api", "api-0", "10.1.0.1"))
    assert len(json.loads((tmp_path / "web_api.json").read_text())["items"]) == 1


def test_a_service_that_loses_its_address_loses_its_file(tmp_path: Path) -> None:
    files = ServiceFiles(tmp_path)
    files.services.replace([service("api")])
    files.slices.replace([])
    files.services.change(service("api", ""))
    assert list(tmp_path.glob("*.json")) == []


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    files = ServiceFiles(tmp_path / "file" / "folder")
    (tmp_path / "file").write_text("")
    files.services.replace([service("api")])
    with pytest.raises(StateError, match="cannot be read or made"):
        files.slices.replace([])


@pytest.mark.parametrize(
    "value",
    [
        "",
        "{",
        "{}",
        '{"node": "a", "uid": "u", "ranges": ["10.0.0.1/8"]}',
        "[1]",
        '{"node": "a", "uid": "u", "ranges": [5]}',
        '{"node": "a", "uid": "u", "ranges": [], "released": "9999-12-31T23:59:59-23:59"}',
        '{"node": "a", "uid": "u", "ranges": [], "released": "0001-01-01T00:00:00+23:59"}',
        '{"node": "a", "uid": "u", "ranges": [], "released": 5}',
    ],
)
def test_a_claim_that_is_none_is_refused_by_its_key(value: str) -> None:
    with pytest.raises(StateError, match="claim 7 of node pool gpu cannot be read"):
        list(read("gpu", {"7": value}))


def test_ranges_are_the_annotation_only_where_it_agrees_with_the_pod_cidrs() -> None:
    node = {"metadata": {"name": "a", "annotations": {}}, "spec": {"podCIDR": "10.1.0.5/27"}}
    assert list(map(str, ranges(node))) == ["10.1.0.0/27"]
    node["metadata"]["annotations"] = {RANGES: "10.1.0.0/27, 10.1.0.32/28"}
    assert list(map(str, ranges(node))) == ["10.1.0.0/27", "10.1.0.32/28"]
    node["metadata"]["annotations"] = {RANGES: "10.1.0.32/28"}
    with pytest.raises(ConfigError, match="does not name its podCIDR"):
        ranges(node)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("010.000.1.0/024", "10.0.1.0/24"),
        ("0000001::/64", "1::/64"),
        ("00fd:00000::0001/112", "fd::/112"),
        ("::ffff:010.0.0.255/120", "::ffff:a00:0/120"),
        ("0:0:0:0:0:0:0:0/0", "::/0"),
        ("::/0", "::/0"),
        ("fd00::010.0.0.1/128", "fd00::a00:1/128"),
    ],
)
def test_a_pod_cidr_is_read_as_an_api_server_does(written: str, meant: str) -> None:
    # Compared as values: only newer Pythons write an IPv4-mapped address with dots.
    assert pod_cidr(written) == Prefix.parse(meant)
