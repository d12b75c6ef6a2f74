"""Services and EndpointSlices as documents: what they open."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from netmgr.documents.sites import ServiceRange
from netmgr.prefixes import Family, Prefix
from netmgr.services.directory import Documents
from netmgr.services.model import Protocol
from netmgr.services.service_map import ServiceMap, ServiceObjects
from tests.fakes.service_maps import Folder, edited, map_of, opened
from tests.fakes.services_world import RANGES, SPOKE, service, slice_of


@pytest.fixture
def service_map(tmp_path: Path) -> ServiceMap:
    return map_of(tmp_path)


@pytest.fixture
def put(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_a_service_is_seen_at_the_address_that_its_range_is_translated_to(
    service_map: ServiceMap, put
):
    put("a.json", service(7, Family.V4), slice_of(7, Family.V4, [1, 2]))
    put(
        "b.json",
        service(8, Family.V6, protocol="UDP", port=53),
        slice_of(8, Family.V6, [3], protocol="UDP"),
    )
    service_map.read(None)
    assert opened(service_map) == {
        "10.200.0.7:80/tcp": (["10.9.0.1:8080", "10.9.0.2:8080"], []),
        "[fd00:200::8]:53/udp": (["[fd00:9::3]:8080"], []),
    }


def test_yaml_may_hold_many_documents_and_lists(service_map: ServiceMap, tmp_path: Path):
    (tmp_path / "all.yaml").write_text(
        textwrap.dedent("""\
        apiVersion: v1
        kind: ServiceList
        items:
        - metadata: {name: s1}
          spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
        ---
        ---
        apiVersion: discovery.k8s.io/v1
        kind: EndpointSlice
        metadata: {name: s1-a, labels: {kubernetes.io/service-name: s1}}
        addressType: IPv4
        endpoints: [{addresses: [10.9.0.1]}]
        ports: [{port: 9000}]
        """)
    )
    service_map.read(None)
    assert opened(service_map) == {"10.200.0.1:80/tcp": (["10.9.0.1:9000"], [])}
    assert service_map.faults() == []


def test_a_map_that_has_read_nothing_yet_opens_nothing_and_refuses_nothing(
    service_map: ServiceMap,
):
    assert (opened(service_map), service_map.faults()) == ({}, [])
    assert service_map.in_doubt() == frozenset()


def test_both_families_of_a_service_get_their_own_slices(service_map: ServiceMap, put):
    dual = edited(service(1, Family.V4), clusterIPs=["10.96.0.1", "fd00:96::1"])
    put("svc.json", dual)
    put("v4.json", slice_of(1, Family.V4, [1]))
    put("v6.json", slice_of(1, Family.V6, [1]))
    service_map.read(None)
    assert opened(service_map) == {
        "10.200.0.1:80/tcp": (["10.9.0.1:8080"], []),
        "[fd00:200::1]:80/tcp": (["[fd00:9::1]:8080"], []),
    }


def test_ports_are_joined_by_name_and_protocol(service_map: ServiceMap, put):
    ports = [
        {"name": "web", "port": 80, "protocol": "TCP"},
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
    ]
    part = slice_of(1, Family.V4, [1]) | {
        "ports": [
            {"name": "dns", "port": 1053, "protocol": "UDP"},
            {"name": "dns-tcp", "port": 2053},
            {"name": "other", "port": 80},
            {"name": "web", "port": None},
        ]
    }
    put("a.json", edited(service(1, Family.V4), ports=ports), part)
    service_map.read(None)
    assert opened(service_map) == {
        "10.200.0.1:80/tcp": ([], []),
        "10.200.0.1:53/udp": (["10.9.0.1:1053"], []),
        "10.200.0.1:53/tcp": (["10.9.0.1:2053"], []),
    }


@pytest.mark.parametrize(
    "nothing",
    [
        {"clusterIP": "None"},
        {"clusterIP": "None", "clusterIPs": ["None"]},
        {"clusterIP": ""},
        {"type": "ExternalName", "clusterIP": "10.96.0.1"},
        {"ports": None},
    ],
    ids=["headless", "headless twice", "not yet allocated", "ExternalName", "no ports"],
)
def test_a_service_without_anything_to_open_is_no_fault(service_map: ServiceMap, put, nothing):
    put("a.json", edited(service(1, Family.V4), **nothing), slice_of(1, Family.V4, [1]))
    service_map.read(None)
    assert (opened(service_map), service_map.faults()) == ({}, [])


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (None, (["1"], [])),
        ({"ready": None}, (["1"], [])),
        ({"ready": True, "serving": True, "terminating": True}, (["1"], [])),
        ({"ready": False, "serving": False}, ([], [])),
        ({"ready": False, "serving": True, "terminating": True}, (["1"], [])),
        ({"ready": False, "serving": True}, ([], [])),
    ],
)
def test_only_ready_endpoints_serve_and_terminating_ones_where_none_is(
    service_map: ServiceMap, put, conditions, expected
):
    part = slice_of(1, Family.V4, [1])
    part["endpoints"][0]["conditions"] = conditions
    put("a.json", service(1, Family.V4), part)
    service_map.read(None)
    ready, draining = expected
    with_port = [f"10.9.0.{one}:8080" for one in ready], [f"10.9.0.{one}:8080" for one in draining]
    assert opened(service_map)["10.200.0.1:80/tcp"] == with_port


def test_terminating_endpoints_drain_beside_ready_ones_and_doubles_count_once(
    service_map: ServiceMap, put
):
    put("svc.json", service(1, Family.V4))
    put("one.json", slice_of(1, Family.V4, [1, 2], terminating=[3]))
    put("two.json", slice_of(1, Family.V4, [2, 4]))
    service_map.read(None)
    assert opened(service_map) == {
        "10.200.0.1:80/tcp": (
            ["10.9.0.1:8080", "10.9.0.2:8080", "10.9.0.4:8080"],
            ["10.9.0.3:8080"],
        )
    }


def test_a_sticky_service_is_known(service_map: ServiceMap, put):
    put("a.json", service(1, Family.V4, sticky=True))
    service_map.read(None)
    (one,) = service_map.ports.values()
    assert one.frontend.sticky


def test_a_family_that_the_host_opens_nothing_of_is_left_out(tmp_path: Path, put):
    put("a.json", edited(service(1, Family.V4), clusterIPs=["10.96.0.1", "fd00:77::1"]))
    service_map = ServiceMap(Documents(tmp_path), ServiceObjects(RANGES[:1], SPOKE))
    service_map.read(None)
    assert (list(opened(service_map)), service_map.faults()) == (["10.200.0.1:80/tcp"], [])
    put("a.json", edited(service(1, Family.V4), clusterIPs=["10.77.0.1", "fd00:96::1"]))
    service_map = ServiceMap(Documents(tmp_path), ServiceObjects(RANGES[1:], SPOKE))
    service_map.read(None)
    assert (list(opened(service_map)), service_map.faults()) == (["[fd00:200::1]:80/tcp"], [])


def test_several_ranges_are_each_translated(tmp_path: Path, put):
    put("a.json", service(1, Family.V4), edited(service(2, Family.V4), clusterIP="10.97.1.2"))
    ranges = (*RANGES, ServiceRange(vip_range="10.201.0.0/16", service_cidr="10.97.0.0/16"))
    service_map = ServiceMap(Documents(tmp_path), ServiceObjects(ranges, SPOKE))
    service_map.read(None)
    assert set(opened(service_map)) == {"10.200.0.1:80/tcp", "10.201.1.2:80/tcp"}


def test_only_files_that_changed_are_told_of_and_only_services_that_changed(
    service_map: ServiceMap, put, tmp_path: Path
):
    for number in range(1, 6):
        put(f"{number}.json", service(number, Family.V4), slice_of(number, Family.V4, [1]))
    assert len(service_map.read(None)) == 5
    assert service_map.read(None) == {}
    put("3.json", service(3, Family.V4), slice_of(3, Family.V4, [1, 2]))
    ((vip, (before, after)),) = service_map.read(["3.json"]).items()
    assert (str(vip.address), vip.protocol) == ("10.200.0.3", Protocol.TCP)
    assert (len(before.frontend.endpoints), len(after.frontend.endpoints)) == (1, 2)
    (tmp_path / "4.json").rename(tmp_path / "4b.json")
    assert service_map.read(["4.json", "4b.json"]) == {}
    (tmp_path / "5.json").unlink()
    ((vip, (_, after)),) = service_map.read(None).items()
    assert (str(vip.address), after) == ("10.200.0.5", None)


def test_only_the_files_that_are_named_are_read(service_map: ServiceMap, put):
    put("a.json", service(1, Family.V4))
    put("b.json", service(2, Family.V4))
    assert len(service_map.read(["a.json"])) == 1
    assert len(service_map.read(["b.json"])) == 1


def test_a_slice_that_goes_leaves_the_service_its_others(
    service_map: ServiceMap, put, tmp_path: Path
):
    put("svc.json", service(1, Family.V4))
    put("a.json", slice_of(1, Family.V4, [1]))
    put("b.json", slice_of(1, Family.V4, [2]))
    service_map.read(None)
    (tmp_path / "a.json").unlink()
    service_map.read(None)
    ((endpoints, _),) = opened(service_map).values()
    assert endpoints == ["10.9.0.2:8080"]
    (tmp_path / "svc.json").unlink()
    service_map.read(None)
    assert opened(service_map) == {}


@pytest.mark.parametrize("family", ["FQDN", "IPv4"])
def test_a_slice_of_names_or_of_nobody_opens_nothing(service_map: ServiceMap, put, family):
    names = slice_of(1, Family.V4, [1]) | {"addressType": family}
    if family == "FQDN":
        names["endpoints"][0]["addresses"] = ["web.example"]
    else:
        del names["metadata"]["labels"]
    put("svc.json", service(1, Family.V4))
    put("slice.json", names)
    service_map.read(None)
    assert service_map.faults() == []
    assert [endpoints for endpoints, _ in opened(service_map).values()] == [[]]


def test_files_that_are_not_documents_are_left_alone(service_map: ServiceMap, put, tmp_path: Path):
    put(".hidden.json", service(1, Family.V4))
    put("notes.txt", service(2, Family.V4))
    (tmp_path / "folder.json").mkdir()
    service_map.read(None)
    assert (opened(service_map), service_map.faults()) == ({}, [])


def test_one_file_can_be_the_whole_source(tmp_path: Path, put):
    path = put("all.json", service(1, Family.V4), slice_of(1, Family.V4, [1]))
    put("other.json", service(2, Family.V4))
    service_map = ServiceMap(Documents(path), ServiceObjects(RANGES, SPOKE))
    service_map.read(None)
    assert list(opened(service_map)) == ["10.200.0.1:80/tcp"]
    assert Documents(path).watched == tmp_path
    assert Documents(tmp_path / "services.d").watched == tmp_path / "services.d"
    path.unlink()
    service_map.read(["all.json"])
    assert opened(service_map) == {}


def test_a_source_that_is_not_there_yet_is_told_and_changes_nothing(tmp_path: Path):
    service_map = ServiceMap(Documents(tmp_path / "later"), ServiceObjects(RANGES, SPOKE))
    assert service_map.read(None) == {}
    (fault,) = service_map.faults()
    assert fault == f"{tmp_path}/later: there is no such file or directory; nothing was changed"
    (tmp_path / "later").mkdir()
    service_map.read(None)
    assert service_map.faults() == []


def test_a_mounted_config_map_is_followed_through_its_links(tmp_path: Path):
    versions = [tmp_path / "..1", tmp_path / "..2"]
    for at, version in enumerate(versions, 1):
        version.mkdir()
        (version / "svc.json").write_text(json.dumps(service(at, Family.V4)))
    (tmp_path / "..data").symlink_to(versions[0])
    (tmp_path / "svc.json").symlink_to("..data/svc.json")
    service_map = ServiceMap(Documents(tmp_path), ServiceObjects(RANGES, SPOKE))
    service_map.read(None)
    assert list(opened(service_map)) == ["10.200.0.1:80/tcp"]
    (tmp_path / "next").symlink_to(versions[1])
    (tmp_path / "next").rename(tmp_path / "..data")
    service_map.read(None)
    assert list(opened(service_map)) == ["10.200.0.2:80/tcp"]


MACHINES = ["10.9.0.8/29", "10.9.0.250", "fd00:9::8/125"]


def guarded(source: Path) -> ServiceMap:
    return ServiceMap(Documents(source), ServiceObjects(RANGES, SPOKE, map(Prefix.parse, MACHINES)))


@pytest.mark.parametrize(
    ("family", "host", "prefix"),
    [
        (Family.V4, 9, "10.9.0.8/29"),
        (Family.V4, 250, "10.9.0.250/32"),
        (Family.V6, 8, "fd00:9::8/125"),
    ],
)
def test_an_endpoint_with_a_machines_own_address_is_refused(
    tmp_path: Path, put: Folder, family, host, prefix
):
    """Whoever may write EndpointSlices in a namespace could otherwise open a kubelet or the NAT
    host to the hub.
    """
    put("a.json", service(1, family), slice_of(1, family, [1, host]))
    put("b.json", service(2, family), slice_of(2, family, [2]))
    service_map = guarded(tmp_path)
    service_map.read(None)
    assert len(opened(service_map)) == 1
    (fault,) = service_map.faults()
    assert ": items[1].endpoints[1].addresses[0]: endpoint " in fault
    assert (
        f"is a machine's own address (of {prefix}), not a pod's; set nat.host_endpoints: true"
        in fault
    )
    assert fault.endswith(f"(see {tmp_path}/a.json:5: items[0])")
    allowed = map_of(tmp_path)
    allowed.read(None)
    assert (len(opened(allowed)), allowed.faults()) == (2, [])


def test_the_api_servers_own_service_is_closed_without_a_fault(tmp_path: Path, put: Folder):
    found, part = service(1, Family.V4), slice_of(1, Family.V4, [9])
    for each in (found, part):
        each["metadata"]["namespace"] = "default"
    found["metadata"]["name"] = part["metadata"]["labels"]["kubernetes.io/service-name"] = (
        "kubernetes"
    )
    put("a.json", found, part)
    service_map = guarded(tmp_path)
    service_map.read(None)
    assert (opened(service_map), service_map.faults()) == ({}, [])
