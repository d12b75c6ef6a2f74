"""Limits that a pod brings along by its annotations, as the runtime passes them on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Address, Family
from tests.kernel.conforming import Answer, Caller, Pod, one_node
from tests.kernel.flows import MEGABIT, attains, flows
from tests.lab.topology import INTERNET, cluster

pytestmark = pytest.mark.root

ANNOTATIONS = "io.kubernetes.cri.pod-annotations"
EGRESS, INGRESS = (f"netmgr.io/internet-{way}-bandwidth" for way in ("egress", "ingress"))
LIMITS = {"limits": [{"pods": "*/*", "internet-out": "50M"}], "reconcile_seconds": 1}
Rates = dict[str, int]


@pytest.fixture(scope="module")
def cni() -> Iterator[Caller]:
    # Limits are nftables' whatever counts.
    room, keys = cluster(nodes=1, pods=0), LIMITS | {"limits_by_annotation": True}
    with one_node(room, backend=Backend.NFTABLES, **keys) as caller:
        yield caller


def add(cni: Caller, pod: Pod, runtime: object) -> Answer:
    return cni.call("ADD", pod, keys={"runtimeConfig": runtime})


def annotated(**values: object) -> dict[str, object]:
    return {ANNOTATIONS: {"other.io/key": "any", **values}}


def in_force(cni: Caller, pod: Pod) -> Rates:
    return {
        one["traffic"]: one["rate"] // MEGABIT
        for one in cni.node.snapshot()["limits"]
        if one["pod"] == pod.container
    }


def test_annotations_tighten_what_the_document_allows(cni: Caller) -> None:
    for runtime, expected in (
        (annotated(), {"internet-out": 50}),
        (annotated(**{EGRESS: "9M", INGRESS: "8M"}), {"internet-out": 9, "internet-in": 8}),
        (annotated(**{EGRESS: "1G"}), {"internet-out": 50}),
        (
            {"bandwidth": {"ingressRate": 7_000_000, "ingressBurst": 1, "egressRate": 0}},
            {"internet-out": 50, "all-in": 7},
        ),
        # As containerd writes it.
        (
            {"bandwidth": {"IngressRate": 0, "IngressBurst": 0, "EgressRate": 90_000_000}},
            {"internet-out": 50, "all-out": 90},
        ),
    ):
        with cni.sandbox() as pod:
            assert add(cni, pod, runtime).exit_code == 0
            assert in_force(cni, pod) == expected


@pytest.mark.parametrize(
    ("runtime", "words"),
    [
        (annotated(**{EGRESS: "fast"}), f"{EGRESS}: 'fast' is no rate"),
        (annotated(**{EGRESS: "1k"}), f"{EGRESS}: 1000 bits a second: give at least 64k"),
        (annotated(**{INGRESS: ["1M"]}), f"{INGRESS}: \"['1M']\" is no rate"),
        (annotated(**{INGRESS: "9" * 400}), "is no rate"),
        ({ANNOTATIONS: []}, f"runtimeConfig.{ANNOTATIONS}: must be an object"),
        ({"bandwidth": {"egressRate": -5}}, "bandwidth.egressRate: '-5' is no rate"),
        ({"bandwidth": 7}, "runtimeConfig.bandwidth: must be an object"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_key(
    cni: Caller, runtime: dict[str, object], words: str
) -> None:
    with cni.sandbox() as pod:
        answer = add(cni, pod, runtime)
        assert answer.code == 7
        assert words in answer.body["msg"]
        assert in_force(cni, pod) == {}


def test_they_outlive_the_agent(cni: Caller) -> None:
    with cni.sandbox() as pod:
        assert add(cni, pod, annotated(**{EGRESS: "9M"})).exit_code == 0
        cni.node.restart_after_kill()
        assert in_force(cni, pod) == {"internet-out": 9}


def test_they_outlive_the_agents_state(cni: Caller) -> None:
    asked = {"bandwidth": {"ingressRate": 7_000_000}} | annotated(**{EGRESS: "9M"})
    with cni.sandbox() as pod:
        assert add(cni, pod, asked).exit_code == 0
        before = in_force(cni, pod)
        cni.node.kill_agent()
        for file in (cni.node.directory / "state").glob("ipam.sqlite*"):
            file.unlink()
        cni.node.start_until_ready()
        assert in_force(cni, pod) == before == {"internet-out": 9, "all-in": 7}


@pytest.mark.slow
@pytest.mark.alone
def test_all_traffic_is_limited_and_internet_traffic_within_it(cni: Caller) -> None:
    with cni.sandbox() as pod, cni.sandbox() as server:
        asked = {"bandwidth": {"egressRate": 20_000_000}} | annotated(**{EGRESS: "10M"})
        assert add(cni, pod, asked).exit_code == 0
        there = Address.parse(add(cni, server, {}).body["ips"][0]["address"].split("/")[0])
        with (
            flows(pod.netns, server.netns, there) as inside,
            flows(pod.netns, cni.world.internet, INTERNET[Family.V4]) as outside,
        ):
            assert attains(inside, 20)
            assert attains(outside, 10)
            # Together no more than what all of its traffic may have.
            assert attains([*inside, *outside], 20)
