"""Services and EndpointSlices as documents: what they open, and what is refused, with file, line and key."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from netmgr.prefixes import Family
from netmgr.services.desk import Desk
from netmgr.services.directory import Documents
from netmgr.services.joining import Catalogue
from netmgr.services.model import Protocol
from netmgr.sites import ServiceRange
from tests.fakes.services_world import RANGES, SPOKE, service, slice_of


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(Documents(tmp_path), Catalogue(RANGES, SPOKE))


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str, *objects: dict[str, Any]) -> Path:
        path = tmp_path / name
        content = objects[0] if len(objects) == 1 else {"apiVersion": "v1", "kind": "List", "items": objects}
        path.write_text(json.dumps(content, indent=1))
        return path

    return write


def opened(desk: Desk) -> dict[str, tuple[list[str], list[str]]]:
    """Endpoints that new connections get, and draining ones, by ServicePort."""
    return {
        str(seen): (sorted(map(str, one.opening.frontend.endpoints)), sorted(map(str, one.opening.draining)))
        for seen, one in desk.opened.items()
    }


def edited(document: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return document | {"spec": document["spec"] | spec}


def test_a_service_is_seen_at_the_address_that_its_range_is_translated_to(desk: Desk, put):
    put("a.json", service(7, Family.V4), slice_of(7, Family.V4, [1, 2]))
    put("b.json", service(8, Family.V6, protocol="UDP", port=53), slice_of(8, Family.V6, [3], protocol="UDP"))
    desk.read(None)
    assert opened(desk) == {
        "10.200.0.7:80/tcp": (["10.9.0.1:8080", "10.9.0.2:8080"], []),
        "[fd00:200::8]:53/udp": (["[fd00:9::3]:8080"], []),
    }


def test_yaml_may_hold_many_documents_and_lists(desk: Desk, tmp_path: Path):
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
    desk.read(None)
    assert opened(desk) == {"10.200.0.1:80/tcp": (["10.9.0.1:9000"], [])}
    assert desk.faults() == []


def test_both_families_of_a_service_get_their_own_slices(desk: Desk, put):
    dual = edited(service(1, Family.V4), clusterIPs=["10.96.0.1", "fd00:96::1"])
    put("svc.json", dual)
    put("v4.json", slice_of(1, Family.V4, [1]))
    put("v6.json", slice_of(1, Family.V6, [1]))
    desk.read(None)
    assert opened(desk) == {
        "10.200.0.1:80/tcp": (["10.9.0.1:8080"], []),
        "[fd00:200::1]:80/tcp": (["[fd00:9::1]:8080"], []),
    }


def test_ports_are_joined_by_name_and_protocol(desk: Desk, put):
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
    desk.read(None)
    assert opened(desk) == {
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
def test_a_service_without_anything_to_open_is_no_fault(desk: Desk, put, nothing):
    put("a.json", edited(service(1, Family.V4), **nothing), slice_of(1, Family.V4, [1]))
    desk.read(None)
    assert (opened(desk), desk.faults()) == ({}, [])


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
def test_only_ready_endpoints_serve_and_terminating_ones_where_none_is(desk: Desk, put, conditions, expected):
    part = slice_of(1, Family.V4, [1])
    part["endpoints"][0]["conditions"] = conditions
    put("a.json", service(1, Family.V4), part)
    desk.read(None)
    ready, draining = expected
    with_port = [f"10.9.0.{one}:8080" for one in ready], [f"10.9.0.{one}:8080" for one in draining]
    assert opened(desk)["10.200.0.1:80/tcp"] == with_port


def test_terminating_endpoints_drain_beside_ready_ones_and_doubles_count_once(desk: Desk, put):
    put("svc.json", service(1, Family.V4))
    put("one.json", slice_of(1, Family.V4, [1, 2], terminating=[3]))
    put("two.json", slice_of(1, Family.V4, [2, 4]))
    desk.read(None)
    assert opened(desk) == {
        "10.200.0.1:80/tcp": (["10.9.0.1:8080", "10.9.0.2:8080", "10.9.0.4:8080"], ["10.9.0.3:8080"])
    }


def test_a_sticky_service_is_known(desk: Desk, put):
    put("a.json", service(1, Family.V4, sticky=True))
    desk.read(None)
    (one,) = desk.opened.values()
    assert one.opening.frontend.sticky


def test_a_family_that_the_host_opens_nothing_of_is_left_out(tmp_path: Path, put):
    put("a.json", edited(service(1, Family.V4), clusterIPs=["10.96.0.1", "fd00:77::1"]))
    desk = Desk(Documents(tmp_path), Catalogue(RANGES[:1], SPOKE))
    desk.read(None)
    assert (list(opened(desk)), desk.faults()) == (["10.200.0.1:80/tcp"], [])


def test_several_ranges_are_each_translated(tmp_path: Path, put):
    put("a.json", service(1, Family.V4), edited(service(2, Family.V4), clusterIP="10.97.1.2"))
    ranges = (*RANGES, ServiceRange(seen="10.201.0.0/16", real="10.97.0.0/16"))
    desk = Desk(Documents(tmp_path), Catalogue(ranges, SPOKE))
    desk.read(None)
    assert set(opened(desk)) == {"10.200.0.1:80/tcp", "10.201.1.2:80/tcp"}


OUTSIDE = edited(service(1, Family.V4), clusterIP="10.99.0.1")
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a service outside its range": (
        OUTSIDE,
        (
            "bad.json:9: spec.clusterIP: 10.99.0.1 of service team/s1 is in no Service range of this host "
            "(10.96.0.0/16, fd00:96::/112)"
        ),
    ),
    "one address of two outside its range": (
        edited(service(1, Family.V4), clusterIPs=["10.96.0.1", "fd00:97::1"]),
        (
            "bad.json:21: spec.clusterIPs[1]: fd00:97::1 of service team/s1 is in no Service range of this host "
            "(10.96.0.0/16, fd00:96::/112)"
        ),
    ),
    "no address at all": (
        edited(service(1, Family.V4), clusterIP="ten"),
        "bad.json:9: spec.clusterIP: 'ten' is not an IP address",
    ),
    "a port that is none": (
        edited(service(1, Family.V4), ports=[{"port": 70000}]),
        "bad.json:12: spec.ports[0].port: Input should be less than or equal to 65535",
    ),
    "a protocol nobody has": (
        edited(service(1, Family.V4), ports=[{"port": 80, "protocol": "ICMP"}]),
        "bad.json:13: spec.ports[0].protocol: Input should be 'TCP', 'UDP' or 'SCTP'",
    ),
    "no name": (
        service(1, Family.V4) | {"metadata": {}},
        "bad.json:4: metadata.name: is required and missing",
    ),
    "a name that no object has": (
        service(1, Family.V4) | {"metadata": {"name": "s1\x1b[2J"}},
        "bad.json:5: metadata.name: String should match pattern '^[a-z0-9]([a-z0-9.\\-]{0,251}[a-z0-9])?$'",
    ),
    "another kind": (
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}},
        "bad.json:3: kind: Deployment is neither Service nor EndpointSlice; take it out",
    ),
    "another version of slices": (
        slice_of(1, Family.V4, []) | {"apiVersion": "discovery.k8s.io/v1beta1"},
        "bad.json:2: apiVersion: Input should be 'discovery.k8s.io/v1'",
    ),
    "an endpoint of the other family": (
        slice_of(1, Family.V4, [1]) | {"addressType": "IPv6"},
        "bad.json:15: endpoints[0].addresses[0]: 10.9.0.1 is not of the slice's addressType IPv6",
    ),
}


@pytest.mark.parametrize(("document", "expected"), FAULTS.values(), ids=FAULTS)
def test_what_cannot_be_is_refused_with_file_line_and_key(desk: Desk, put, tmp_path: Path, document, expected):
    put("bad.json", document)
    desk.read(None)
    assert desk.faults() == [f"{tmp_path}/{expected}"]
    assert opened(desk) == {}


def test_an_endpoint_outside_the_spoke_is_refused_with_both_documents(desk: Desk, put, tmp_path: Path):
    put("svc.json", service(1, Family.V4))
    part = slice_of(1, Family.V4, [1, 2])
    part["endpoints"][1]["addresses"] = ["10.8.0.2"]
    put("slice.json", part)
    desk.read(None)
    assert desk.faults() == [
        (
            f"{tmp_path}/slice.json:23: endpoints[1].addresses[0]: endpoint 10.8.0.2 of service team/s1 is outside the "
            f"spoke (10.9.0.0/16, fd00:9::/64) (see {tmp_path}/svc.json:1)"
        )
    ]


def test_a_service_given_twice_and_a_port_of_two_services_are_refused_with_both_documents(desk: Desk, put, tmp_path):
    put("a.json", service(1, Family.V4))
    put("b.json", service(1, Family.V4))
    put("c.json", service(2, Family.V4))
    put("d.json", edited(service(3, Family.V4), clusterIP="10.96.0.2"))
    desk.read(None)
    assert desk.faults() == [
        f"{tmp_path}/b.json:1: service team/s1 is given twice; keep one (see {tmp_path}/a.json:1)",
        (
            f"{tmp_path}/d.json:1: service team/s3: 10.200.0.2:80/tcp is open already for service team/s2; "
            f"a ServicePort is of one Service (see {tmp_path}/c.json:1)"
        ),
    ]
    (tmp_path / "c.json").unlink()
    (tmp_path / "b.json").unlink()
    desk.read(["b.json", "c.json"])
    assert desk.faults() == []
    assert {str(one.service) for one in desk.opened.values()} == {"team/s1", "team/s3"}


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.json", b'{"kind": "Service",\n oops', ":2: is not JSON: Expecting property name enclosed in double quotes"),
        ("x.yaml", b"kind: Service\n\tspec: 1", ":2: is not YAML: found a tab character that violates indentation"),
        ("x.json", b"\xff{}", ": is not UTF-8: byte 0 cannot be decoded"),
        ("x.json", b"[]", ":1: must be a Kubernetes object: a Service, an EndpointSlice or a List of these"),
        ("x.json", b"[" * 200_000, ": has more than 1000 lists and mappings in each other"),
        ("x.yaml", b"[" * 200_000 + b"]" * 200_000, ": has more than 1000 lists and mappings in each other"),
        ("x.yaml", b"- " * 200_000, ": has more than 1000 lists and mappings in each other"),
        ("x.yaml", b"at: 2026-13-45", ":1: has a value that cannot be one: month must be in 1..12"),
        ("x.yaml", b"on: !!bool maybe", ":1: has a value that cannot be one: 'maybe'"),
        ("x.json", b'{"kind": ["Service"]}', ":1: kind: must be Service or EndpointSlice"),
    ],
)
def test_a_file_that_is_no_document_keeps_saying_what_it_said(desk: Desk, put, tmp_path, name, content, expected):
    put(name, service(1, Family.V4), slice_of(1, Family.V4, [1]))
    desk.read(None)
    before = opened(desk)
    assert before
    (tmp_path / name).write_bytes(content)
    assert desk.read([name]) == {}
    assert opened(desk) == before
    assert desk.faults() == [f"{tmp_path}/{name}{expected}"]
    put(name, service(2, Family.V4))
    desk.read([name])
    assert (list(opened(desk)), desk.faults()) == (["10.200.0.2:80/tcp"], [])


def test_a_refused_service_keeps_what_it_had_and_others_go_on(desk: Desk, put):
    put("one.json", service(1, Family.V4), slice_of(1, Family.V4, [1]))
    put("two.json", service(2, Family.V4), slice_of(2, Family.V4, [1]))
    desk.read(None)
    part = slice_of(1, Family.V4, [2])
    part["endpoints"][0]["addresses"] = ["192.0.2.1"]
    put("one.json", service(1, Family.V4), part)
    put("two.json", service(2, Family.V4), slice_of(2, Family.V4, [2]))
    desk.read(None)
    assert opened(desk) == {"10.200.0.1:80/tcp": (["10.9.0.1:8080"], []), "10.200.0.2:80/tcp": (["10.9.0.2:8080"], [])}
    assert len(desk.faults()) == 1


def test_a_port_stays_with_the_service_that_has_it_whatever_the_other_is_called(desk: Desk, put):
    put("z.json", service(9, Family.V4), slice_of(9, Family.V4, [1]))
    desk.read(None)
    put("a.json", edited(service(1, Family.V4), clusterIP="10.96.0.9"), slice_of(1, Family.V4, [5]))
    assert desk.read(["a.json"]) == {}
    put("z.json", service(9, Family.V4), slice_of(9, Family.V4, [1, 2]))
    desk.read(["z.json"])
    assert [str(one.service) for one in desk.opened.values()] == ["team/s9"]
    assert "team/s1: " in desk.faults()[0]


def test_a_service_that_asks_for_another_ones_port_keeps_its_own(desk: Desk, put):
    put("a.json", service(1, Family.V4), slice_of(1, Family.V4, [1]))
    put("b.json", service(2, Family.V4), slice_of(2, Family.V4, [2]))
    desk.read(None)
    before = opened(desk)
    put("b.json", edited(service(2, Family.V4), clusterIP="10.96.0.1"), slice_of(2, Family.V4, [2]))
    assert desk.read(["b.json"]) == {}
    assert opened(desk) == before
    assert len(desk.faults()) == 1


def test_only_files_that_changed_are_told_of_and_only_services_that_changed(desk: Desk, put, tmp_path: Path):
    for number in range(1, 6):
        put(f"{number}.json", service(number, Family.V4), slice_of(number, Family.V4, [1]))
    assert len(desk.read(None)) == 5
    assert desk.read(None) == {}
    put("3.json", service(3, Family.V4), slice_of(3, Family.V4, [1, 2]))
    ((seen, (before, after)),) = desk.read(["3.json"]).items()
    assert (str(seen.address), seen.protocol) == ("10.200.0.3", Protocol.TCP)
    assert (len(before.frontend.endpoints), len(after.frontend.endpoints)) == (1, 2)
    (tmp_path / "4.json").rename(tmp_path / "4b.json")
    assert desk.read(["4.json", "4b.json"]) == {}
    (tmp_path / "5.json").unlink()
    ((seen, (_, after)),) = desk.read(None).items()
    assert (str(seen.address), after) == ("10.200.0.5", None)


def test_a_thousand_faults_of_one_file_are_located_in_one_pass(desk: Desk, tmp_path: Path):
    bad = [edited(service(number, Family.V4), clusterIP="10.99.0.1") for number in range(1000)]
    path = tmp_path / "all.json"
    path.write_text(json.dumps({"kind": "List", "items": bad}, indent=1))
    began = time.process_time()
    desk.read(None)
    first = time.process_time() - began
    told = desk.faults()
    assert len(told) == 1000
    lines = path.read_text().splitlines()
    for sentence in told:
        line, key = sentence.removeprefix(f"{path}:").split(": ")[:2]
        assert lines[int(line) - 1].strip().startswith('"clusterIP"'), key
    began = time.process_time()
    desk.read(None)
    assert desk.faults() == told
    assert time.process_time() - began < first / 3


def test_files_that_are_not_documents_are_left_alone(desk: Desk, put, tmp_path: Path):
    put(".hidden.json", service(1, Family.V4))
    put("notes.txt", service(2, Family.V4))
    (tmp_path / "folder.json").mkdir()
    desk.read(None)
    assert (opened(desk), desk.faults()) == ({}, [])


def test_one_file_can_be_the_whole_source(tmp_path: Path, put):
    path = put("all.json", service(1, Family.V4), slice_of(1, Family.V4, [1]))
    put("other.json", service(2, Family.V4))
    desk = Desk(Documents(path), Catalogue(RANGES, SPOKE))
    desk.read(None)
    assert list(opened(desk)) == ["10.200.0.1:80/tcp"]
    assert Documents(path).watched == tmp_path
    path.unlink()
    desk.read(["all.json"])
    assert opened(desk) == {}


def test_a_source_that_is_not_there_yet_is_told_and_changes_nothing(tmp_path: Path):
    desk = Desk(Documents(tmp_path / "later"), Catalogue(RANGES, SPOKE))
    assert desk.read(None) == {}
    (fault,) = desk.faults()
    assert fault == f"{tmp_path}/later: there is no such file or directory; nothing was changed"
    (tmp_path / "later").mkdir()
    desk.read(None)
    assert desk.faults() == []


def test_a_mounted_config_map_is_followed_through_its_links(tmp_path: Path):
    versions = [tmp_path / "..1", tmp_path / "..2"]
    for at, version in enumerate(versions, 1):
        version.mkdir()
        (version / "svc.json").write_text(json.dumps(service(at, Family.V4)))
    (tmp_path / "..data").symlink_to(versions[0])
    (tmp_path / "svc.json").symlink_to("..data/svc.json")
    desk = Desk(Documents(tmp_path), Catalogue(RANGES, SPOKE))
    desk.read(None)
    assert list(opened(desk)) == ["10.200.0.1:80/tcp"]
    (tmp_path / "next").symlink_to(versions[1])
    (tmp_path / "next").rename(tmp_path / "..data")
    desk.read(None)
    assert list(opened(desk)) == ["10.200.0.2:80/tcp"]
