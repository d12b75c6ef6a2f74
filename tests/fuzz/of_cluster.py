"""What API servers, kubelets, nodes and clouds say: objects, annotations, reports, metadata."""

from __future__ import annotations

import functools
import ipaddress
import json
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from unittest.mock import patch

from netmgr.api.client import MOST_SPENT
from netmgr.api.connectivity import Probe, ProbeAnswer
from netmgr.documents import node_list
from netmgr.documents.node import NodeDocument
from netmgr.errors import ConfigError, RangesUnknown, StateError
from netmgr.kube.client import agent_pods
from netmgr.kube.controller import claim_store, node_listing, node_reports
from netmgr.kube.controller.allocations import NodeAllocations
from netmgr.kube.controller.assigning import MOST_TOUCHED, decide
from netmgr.kube.controller.node_document import render
from netmgr.kube.controller.nodes import NodeView, node_view
from netmgr.kube.diagnose.connectivity import (
    Check,
    CountedBytes,
    NodeResult,
    Options,
    PlannedProbe,
    conclude,
)
from netmgr.plan.document import PlanDocument
from netmgr.plan.files import load_limits
from netmgr.plan.locking import make_lock
from netmgr.prefixes import Prefix
from netmgr.ranges import aws, azure, gcp, metadata
from netmgr.ranges.assigned import AssignedRanges
from netmgr.ranges.sources import validate
from tests.builders import NODE_KEYS, PLAN_KEYS
from tests.fuzz.mutation import Shape
from tests.fuzz.target import target

NODES = """
metadata name uid creationTimestamp resourceVersion labels annotations spec podCIDRs podCIDR
taints key value effect status conditions type status reason addresses InternalIP Hostname
allocatable pods netmgr.io/ranges netmgr.io/node-pool NetworkUnavailable NetmgrHealthy True
node-restriction.kubernetes.io/netmgr-role netmgr.io/agent-not-ready 10.0.0.0/8 010.000.0.0/24
::ffff:010.0.0.0/120 0000001::/64 10.0.0.5/28 fd00:10::/64 10.0.0.0/016
"""
REPORTS = """
spent problems namespace pod uid traffic internet-in internet-out period day month budget slow
until reason message
"""
PROBES = """
probes internet unreachable to_internet to_unreachable result seen reason ok no-answer refused
stalled no-name bytes_out bytes_in icmpv6_out icmpv6_in 10.1.0.2 fd00::1
"""
METADATA = """
interface ipv4 ipv6 ipAddress privateIpAddress privateIPAddressPrefixLength prefixLength subnet
HTTP/1.1 200 301 429 Content-Length: Transfer-Encoding: chunked Retry-After: Location:
ipAliases Metadata-Flavor: Google ETag: 02:29:96:8f:6a:2d/ 10.0.0.4 10.0.0.16/28
ffffffffffffffffffff 99999999999999999999999999 -1
"""
CLAIMS = "node uid ranges released 2026-01-01T00:00:00+00:00 0001-01-01 9999-12-31T23:59:59-23:59"
OTHERS = 5


@functools.cache
def _allocations() -> NodeAllocations:
    plan = PlanDocument.model_validate(
        PLAN_KEYS
        | {
            "name": "fuzzed",
            "cloud": "none",
            "pools": {"nodes": ["10.0.0.0/8", "fd00:10::/40"], "services": ["172.16.0.0/12"]},
            "clusters": {
                "a": {"node_pools": {"cpu": {"nodes": 60, "surge": 0, "pods_per_node": 14}}}
            },
        }
    )
    return NodeAllocations(make_lock(plan, None, load_limits(plan.cloud)), "a")


@target(Shape.JSON, rounds=1200, tokens=PROBES)
def connectivity_answer(data: bytes) -> None:
    """What a connectivity test's pod prints is refused or concluded, and is shown within bounds."""
    with suppress(ValueError):
        answer = ProbeAnswer.model_validate_json(data)
        planned = [PlannedProbe(Check.OTHER_NODES, "b", Probe(by="tcp", host="10.1.1.2"))]
        nothing = CountedBytes(0, 0)
        result = NodeResult("a", "", ("10.1.0.2",), planned, answer, nothing, nothing)
        conclude(result, ("10.96.0.1",), Options())
        assert len(result.findings) <= 5
        assert all(len(each.message) < 2000 for each in result.findings)


@target(Shape.JSON, rounds=1200, tokens=NODES)
def node_object(data: bytes) -> None:
    """A Node that an API server can have ends no controller, and keeps nothing from others."""
    node = _admitted_node(_json(data))
    if node is None:
        return
    view = node_view(node, "netmgr.io/node-pool")
    others = [NodeView(f"n{number}", f"u{number}", "2026", "cpu") for number in range(OTHERS)]
    found = decide(_allocations(), {}, [view, *others], now=1e9, quarantine=600.0)
    given = [found.assignments[each.name] for each in others if each.name != view.name]
    assert len({each.index for each in given}) == len(given)
    assert all(each.index.number < OTHERS + MOST_TOUCHED + 1 for each in given)
    node_listing.choose([view, *others])
    template = NODE_KEYS | {"cni": True}
    with suppress(ConfigError):
        assert json.dumps(render(template, node))


def _admitted_node(found: Any) -> dict[str, Any] | None:
    """The object as an API server would let it be; None if nothing of it is."""
    if not isinstance(found, dict):
        return None
    metadata_, spec, status = (_part(found, key) for key in ("metadata", "spec", "status"))
    cidrs = [each for each in _texts(spec.get("podCIDRs")) if go_takes(each)][:2]
    if len(cidrs) == 2 and (":" in cidrs[0]) == (":" in cidrs[1]):
        cidrs = cidrs[:1]
    version = metadata_.get("resourceVersion")
    return {
        "metadata": {
            "name": _text(metadata_.get("name")) or "n",
            "uid": _text(metadata_.get("uid")) or "u",
            "creationTimestamp": _text(metadata_.get("creationTimestamp")),
            "resourceVersion": version
            if isinstance(version, str) and version.isdecimal() and version.isascii()
            else "1",
            "labels": _strings(metadata_.get("labels")),
            "annotations": _strings(metadata_.get("annotations")),
        },
        "spec": {
            "podCIDRs": cidrs,
            "taints": [{"key": "k"} | _strings(each) for each in _dicts(spec.get("taints"))],
        },
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": ""} | _strings(each)
                for each in _dicts(status.get("addresses"))
            ],
            "conditions": [
                {"type": "", "status": "True"} | _strings(each)
                for each in _dicts(status.get("conditions"))
            ],
            "allocatable": _strings(status.get("allocatable")),
        },
    }


def go_takes(text: str) -> bool:
    """Whether ParseCIDRSloppy takes it (k8s.io/utils/net, a copy of Go 1.16's net.ParseCIDR).

    By that parser's own rules: leading zeros are decimal, and a group of IPv6 is any hexadecimal
    number up to 0xffff, however many digits it has.
    """
    address, slash, length = text.partition("/")
    if not slash or not re.fullmatch("[0-9]+", length):
        return False
    groups = _go_groups(address) if ":" in address else None
    if groups is None:
        return ":" not in address and _go_v4(address) and int(length) <= 32
    return int(length) <= 128


def _go_v4(text: str) -> bool:
    parts = text.split(".")
    return len(parts) == 4 and all(
        re.fullmatch("[0-9]+", part) and int(part) <= 255 for part in parts
    )


def _go_groups(text: str) -> int | None:
    """How many groups are written out, in a form that means eight; None for any other text."""
    halves = text.split("::")
    if len(halves) > 2 or ":::" in text:
        return None
    written = 0
    for place, half in enumerate(halves):
        parts = half.split(":") if half else []
        for number, part in enumerate(parts):
            is_last = place == len(halves) - 1 and number == len(parts) - 1
            if is_last and "." in part and _go_v4(part):
                written += 2
            elif re.fullmatch("[0-9a-fA-F]+", part) and int(part, 16) <= 0xFFFF:
                written += 1
            else:
                return None
    is_whole = written == 8 if len(halves) == 1 else written < 8
    return written if is_whole else None


def _part(found: dict[str, Any], key: str) -> dict[str, Any]:
    value = found.get(key)
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    """Strings as the API has them: UTF-8."""
    if not isinstance(value, str):
        return ""
    return value.encode(errors="replace").decode()


def _texts(value: object) -> list[str]:
    return (
        [_text(each) for each in value if isinstance(each, str)] if isinstance(value, list) else []
    )


def _strings(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {_text(key): _text(each) for key, each in value.items() if isinstance(each, str)}


def _dicts(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


@target(Shape.TEXT, rounds=4000, longest=120, tokens=NODES)
def pod_cidr(data: bytes) -> None:
    """What Kubernetes takes for a podCIDR is one here, of the same addresses."""
    text = data.decode(errors="replace")
    if not go_takes(text):
        return
    view = node_view(
        {
            "metadata": {"name": "n", "uid": "u", "creationTimestamp": ""},
            "spec": {"podCIDRs": [text]},
        },
        "pool",
    )
    (prefix,) = view.cidrs
    head, _, length = text.partition("/")
    assert prefix.length == int(length)
    with suppress(ValueError):
        assert str(ipaddress.ip_network(f"{head}/{int(length)}", strict=False)) == str(
            ipaddress.ip_network(str(prefix))
        )


@target(Shape.JSON, rounds=3000, tokens=NODES)
def node_ranges(data: bytes) -> None:
    """The annotation of a Node's ranges is a `ValueError`, or written it is read as the same."""
    text = data.decode(errors="surrogateescape")
    try:
        found = AssignedRanges.parse(text)
    except ValueError:
        return
    assert AssignedRanges.parse(str(found)) == found
    assert str(found).isprintable()


@target(Shape.JSON, rounds=2500, tokens=NODES)
def agent_pod(data: bytes) -> None:
    """Whatever a pod's annotation says, its agent is known, with readable ranges or without."""
    pod = {
        "metadata": {
            "name": "p",
            "uid": "u",
            "resourceVersion": "1",
            "annotations": {"netmgr.io/node-ranges": data.decode(errors="replace")},
        },
        "spec": {"nodeName": "n", "containers": []},
    }
    found = agent_pods.agent_pod(pod)
    assert found
    assert found.assigned is None or isinstance(found.assigned.version, int)


@target(Shape.JSON, rounds=3000, tokens=NODES)
def listed_nodes(data: bytes) -> None:
    """A list of nodes is a `ValueError`, or written it is read as the same."""
    try:
        found = node_list.parse(data.decode(errors="surrogateescape"))
    except ValueError:
        return
    assert node_list.parse(node_list.write(found)) == found


@target(Shape.JSON, rounds=3000, tokens=CLAIMS)
def claims(data: bytes) -> None:
    """A ConfigMap's claims are a `StateError`, or written they are read as the same."""
    document = _json(data)
    entries = document if isinstance(document, dict) else {}
    values = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in entries.items()
    }
    try:
        found = list(claim_store.read("cpu", values))
    except StateError:
        return
    again = {str(claim.index.number): claim_store.write(claim) for claim in found}
    assert list(claim_store.read("cpu", again)) == list({one.index: one for one in found}.values())


@target(Shape.HTTP, rounds=3000, tokens=REPORTS)
def node_report(data: bytes) -> None:
    """A node's report is a `ValueError`, or has names that Kubernetes could have given."""
    try:
        found = node_reports.parse(data)
    except ValueError:
        return
    assert len(found.spent) <= MOST_SPENT
    for one in found.spent:
        for text in (one.namespace, one.pod, one.uid):
            assert re.fullmatch(r"[a-z0-9.-]*", text)
    assert all(
        re.fullmatch("[A-Za-z]+", one.reason) and len(one.message) <= 1024 for one in found.problems
    )
    assert json.dumps(found.model_dump())


DOCUMENT = NodeDocument.model_validate(
    NODE_KEYS
    | {
        "node": {"name": "n", "addresses": ["10.0.0.4"]},
        "range_source": "azure",
        "backend": "nftables",
    }
)


@target(Shape.HTTP, rounds=2500, tokens=METADATA)
def instance_metadata(data: bytes) -> None:
    """An answer of any metadata service is `RangesUnknown`, or blocks without the machine's own."""
    for source in (azure, aws, gcp):
        with patch.object(metadata, "_exchange", lambda *_: data):
            try:
                found = source.read()
            except RangesUnknown as error:
                assert error.message
                assert 0 <= error.retry_after <= metadata.MAX_RETRY_AFTER
                continue
        valid = validate(found, DOCUMENT, {})
        _are_disjoint(valid.ranges)
        assert all(str(refusal) for refusal in valid.refused)


def _are_disjoint(ranges: Iterable[Prefix]) -> None:
    known: list[Prefix] = []
    for block in ranges:
        assert not any(other.overlaps(block) for other in known)
        known.append(block)
