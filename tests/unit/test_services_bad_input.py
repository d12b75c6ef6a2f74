"""Documents of Services that cannot be: refused with file, line and key,
and what was open stays."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from netmgr.documents.diagnostics import Location
from netmgr.prefixes import Family
from netmgr.services import objects
from netmgr.services.objects import Refused
from netmgr.services.service_map import ServiceMap
from tests.fakes.service_maps import Folder, edited, map_of, opened
from tests.fakes.services_world import service, slice_of


@pytest.fixture
def service_map(tmp_path: Path) -> ServiceMap:
    return map_of(tmp_path)


@pytest.fixture
def put(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def edited_slice(part: dict[str, Any], **endpoint: Any) -> dict[str, Any]:
    """A slice with its first endpoint otherwise."""
    return part | {"endpoints": [part["endpoints"][0] | endpoint]}


OUTSIDE = edited(service(1, Family.V4), clusterIP="10.99.0.1")
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a service outside its range": (
        OUTSIDE,
        (
            "bad.json:9: spec.clusterIP: 10.99.0.1 of service team/s1 is in no Service "
            "range of this host "
            "(10.96.0.0/16, fd00:96::/112)"
        ),
    ),
    "one address of two outside its range": (
        edited(service(1, Family.V4), clusterIPs=["10.96.0.1", "fd00:97::1"]),
        (
            "bad.json:21: spec.clusterIPs[1]: fd00:97::1 of service team/s1 is in no "
            "Service range of this host "
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
        (
            "bad.json:5: metadata.name: String should match pattern "
            "'^[a-z0-9]([a-z0-9.\\-]{0,251}[a-z0-9])?$'"
        ),
    ),
    "another kind": (
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}},
        "bad.json:3: kind: Deployment is neither Service nor EndpointSlice; take it out",
    ),
    "another version of slices": (
        slice_of(1, Family.V4, []) | {"apiVersion": "discovery.k8s.io/v1beta1"},
        "bad.json:2: apiVersion: Input should be 'discovery.k8s.io/v1'",
    ),
    "a list that is none": (
        {"apiVersion": "v1", "kind": "List", "items": 7},
        "bad.json:4: items: must be a list",
    ),
    "a list of something else": (
        {"apiVersion": "v1", "kind": "List", "items": ["x"]},
        "bad.json:5: items[0]: must be a Kubernetes object",
    ),
    "an endpoint that is no address": (
        edited_slice(slice_of(1, Family.V4, [1]), addresses=["ten"]),
        "bad.json:15: endpoints[0].addresses[0]: 'ten' is not an IP address",
    ),
    "an endpoint of the other family": (
        slice_of(1, Family.V4, [1]) | {"addressType": "IPv6"},
        "bad.json:15: endpoints[0].addresses[0]: 10.9.0.1 is not of the slice's addressType IPv6",
    ),
}


@pytest.mark.parametrize(("document", "expected"), FAULTS.values(), ids=FAULTS)
def test_what_cannot_be_is_refused_with_file_line_and_key(
    service_map: ServiceMap, put, tmp_path: Path, document, expected
):
    put("bad.json", document)
    service_map.read(None)
    assert service_map.faults() == [f"{tmp_path}/{expected}"]
    assert opened(service_map) == {}


def test_a_refusal_that_is_logged_as_an_exception_says_what_is_wrong():
    with pytest.raises(Refused, match=r"^must be a Kubernetes object: a Service, "):
        list(objects.read(7, Location(file="x.json")))


def test_an_endpoint_outside_the_spoke_is_refused_with_both_documents(
    service_map: ServiceMap, put, tmp_path: Path
):
    put("svc.json", service(1, Family.V4))
    part = slice_of(1, Family.V4, [1, 2])
    part["endpoints"][1]["addresses"] = ["10.8.0.2"]
    put("slice.json", part)
    service_map.read(None)
    assert service_map.faults() == [
        (
            f"{tmp_path}/slice.json:23: endpoints[1].addresses[0]: endpoint 10.8.0.2 of "
            "service team/s1 is outside the "
            f"spoke (10.9.0.0/16, fd00:9::/64) (see {tmp_path}/svc.json:1)"
        )
    ]


def test_a_refused_service_is_found_at_its_line_of_now(service_map: ServiceMap, tmp_path: Path):
    path = tmp_path / "svc.json"
    path.write_text(json.dumps(OUTSIDE, indent=1))
    service_map.read(None)
    (before,) = service_map.faults()
    path.write_text("\n\n" + json.dumps(OUTSIDE, indent=1))
    service_map.read(None)
    assert service_map.faults() == [before.replace("svc.json:9:", "svc.json:11:")]


def test_a_service_given_twice_and_a_port_of_two_services_are_refused_with_both_documents(
    service_map: ServiceMap, put, tmp_path
):
    put("a.json", service(1, Family.V4))
    put("b.json", service(1, Family.V4))
    put("c.json", service(2, Family.V4))
    put("d.json", edited(service(3, Family.V4), clusterIP="10.96.0.2"))
    service_map.read(None)
    assert service_map.faults() == [
        f"{tmp_path}/b.json:1: service team/s1 is given twice; keep one (see {tmp_path}/a.json:1)",
        (
            f"{tmp_path}/d.json:1: service team/s3: 10.200.0.2:80/tcp is open already for "
            "service team/s2; "
            f"a ServicePort is of one Service (see {tmp_path}/c.json:1)"
        ),
    ]
    (tmp_path / "c.json").unlink()
    (tmp_path / "b.json").unlink()
    service_map.read(["b.json", "c.json"])
    assert service_map.faults() == []
    assert {str(one.service) for one in service_map.ports.values()} == {"team/s1", "team/s3"}


def test_a_file_that_would_fill_the_memory_is_refused_unread(service_map: ServiceMap, tmp_path):
    with (tmp_path / "x.json").open("wb") as endless:
        endless.truncate(1 << 40)
    assert service_map.read(None) == {}
    assert service_map.faults() == [
        f"{tmp_path}/x.json: has more than 256 MiB; give Services in several files"
    ]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        (
            "x.json",
            b'{"kind": "Service",\n oops',
            ":2: is not JSON: Expecting property name enclosed in double quotes",
        ),
        (
            "x.yaml",
            b"kind: Service\n\tspec: 1",
            ":2: is not YAML: found a tab character that violates indentation",
        ),
        ("x.json", b"\xff{}", ": is not UTF-8: byte 0 cannot be decoded"),
        (
            "x.json",
            b"[]",
            ":1: must be a Kubernetes object: a Service, an EndpointSlice or a List of these",
        ),
        ("x.json", b"[" * 200_000, ": has more than 1000 lists and mappings in each other"),
        (
            "x.yaml",
            b"[" * 200_000 + b"]" * 200_000,
            ": has more than 1000 lists and mappings in each other",
        ),
        ("x.yaml", b"- " * 200_000, ": has more than 1000 lists and mappings in each other"),
        ("x.yaml", b"at: 2026-13-45", ":1: has a value that cannot be one: month must be in 1..12"),
        ("x.yaml", b"on: !!bool maybe", ":1: has a value that cannot be one: 'maybe'"),
        ("x.yaml", b'on: !!float ""', ":1: has a value that cannot be one: string index out of"),
        ("x.yaml", b"on: 1" + b":00" * 200 + b".5", ":1: has a value that cannot be one: int too"),
        ("x.yaml", b"on: \x07", ": is not YAML: unacceptable character #x0007: control characters"),
        (
            "x.yaml",
            b'kind: "\\e[2J"',
            ":1: kind: \N{REPLACEMENT CHARACTER}[2J is neither Service nor EndpointSlice",
        ),
        ("x.json", b'{"kind": ["Service"]}', ":1: kind: must be Service or EndpointSlice"),
    ],
)
def test_a_file_that_is_no_document_keeps_saying_what_it_said(
    service_map: ServiceMap, put, tmp_path, name, content, expected
):
    put(name, service(1, Family.V4), slice_of(1, Family.V4, [1]))
    service_map.read(None)
    before = opened(service_map)
    assert before
    (tmp_path / name).write_bytes(content)
    assert service_map.read([name]) == {}
    assert opened(service_map) == before
    (fault,) = service_map.faults()
    assert fault.startswith(
        f"{tmp_path}/{name}{expected}"
    )  # Python's own words at the end differ by its release
    put(name, service(2, Family.V4))
    service_map.read([name])
    assert (list(opened(service_map)), service_map.faults()) == (["10.200.0.2:80/tcp"], [])


def test_a_refused_service_keeps_what_it_had_and_others_go_on(service_map: ServiceMap, put):
    put("one.json", service(1, Family.V4), slice_of(1, Family.V4, [1]))
    put("two.json", service(2, Family.V4), slice_of(2, Family.V4, [1]))
    service_map.read(None)
    part = slice_of(1, Family.V4, [2])
    part["endpoints"][0]["addresses"] = ["192.0.2.1"]
    put("one.json", service(1, Family.V4), part)
    put("two.json", service(2, Family.V4), slice_of(2, Family.V4, [2]))
    service_map.read(None)
    assert opened(service_map) == {
        "10.200.0.1:80/tcp": (["10.9.0.1:8080"], []),
        "10.200.0.2:80/tcp": (["10.9.0.2:8080"], []),
    }
    assert len(service_map.faults()) == 1


def test_a_port_stays_with_the_service_that_has_it_whatever_the_other_is_called(
    service_map: ServiceMap, put
):
    put("z.json", service(9, Family.V4), slice_of(9, Family.V4, [1]))
    service_map.read(None)
    put("a.json", edited(service(1, Family.V4), clusterIP="10.96.0.9"), slice_of(1, Family.V4, [5]))
    assert service_map.read(["a.json"]) == {}
    put("z.json", service(9, Family.V4), slice_of(9, Family.V4, [1, 2]))
    service_map.read(["z.json"])
    assert [str(one.service) for one in service_map.ports.values()] == ["team/s9"]
    assert "team/s1: " in service_map.faults()[0]


def test_a_service_that_asks_for_another_ones_port_keeps_its_own(service_map: ServiceMap, put):
    put("a.json", service(1, Family.V4), slice_of(1, Family.V4, [1]))
    put("b.json", service(2, Family.V4), slice_of(2, Family.V4, [2]))
    service_map.read(None)
    before = opened(service_map)
    put("b.json", edited(service(2, Family.V4), clusterIP="10.96.0.1"), slice_of(2, Family.V4, [2]))
    assert service_map.read(["b.json"]) == {}
    assert opened(service_map) == before
    assert len(service_map.faults()) == 1


def test_a_thousand_faults_of_one_file_are_located_in_one_pass(
    service_map: ServiceMap, tmp_path: Path
):
    bad = [edited(service(number, Family.V4), clusterIP="10.99.0.1") for number in range(1000)]
    path = tmp_path / "all.json"
    path.write_text(json.dumps({"kind": "List", "items": bad}, indent=1))
    began = time.process_time()
    service_map.read(None)
    first = time.process_time() - began
    told = service_map.faults()
    assert len(told) == 1000
    lines = path.read_text().splitlines()
    for sentence in told:
        line, key = sentence.removeprefix(f"{path}:").split(": ")[:2]
        assert lines[int(line) - 1].strip().startswith('"clusterIP"'), key
    began = time.process_time()
    service_map.read(None)
    assert service_map.faults() == told
    assert time.process_time() - began < first / 3
