"""kube-network-policies beside netmgr: what policies allow passes and is counted exactly, what they
deny does not pass. One node has containerd 1.6, the other 2.x.
"""

from __future__ import annotations

from functools import partial

import pytest

from tests.e2e import companions, counting, netmgr, pods
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.load import Conversation
from tests.e2e.pods import BACK, FORTH, Pod
from tests.lab import exchange
from tests.lab.capture import Capture
from tests.lab.errors import LabError
from tests.lab.exchange import End

pytestmark = [pytest.mark.root, pytest.mark.e2e, pytest.mark.timeout(600)]

PODS = {"friend": "node-1", "stranger": "node-1", "server": "node-2", "neighbour": "node-2"}
SECONDS_TO_ENFORCE = 30


@pytest.fixture(scope="module")
def running(cluster: Cluster) -> dict[str, Pod]:
    netmgr.apply(cluster, netmgr.overlay(cluster, "cni"))
    netmgr.roll_out(cluster)
    companions.install_policies(cluster)
    return pods.run(cluster, PODS)


def talks(client: Pod, server: End) -> bool:
    try:
        exchange.stream(client.end(), server, FORTH, BACK)
    except LabError:
        return False
    return True


def allow(cluster: Cluster, name: str, selected: str, **rules: object) -> None:
    """A policy for the pods of one app, which allows what `rules` say and nothing else."""
    selector = {"matchLabels": {"app": selected}}
    types = [each.capitalize() for each in rules]
    body = {
        "metadata": {"name": name},
        "spec": {"podSelector": selector, "policyTypes": types, **rules},
    }
    cluster.plane.ask("POST", _path(), body)


def withdraw(cluster: Cluster, name: str) -> None:
    cluster.plane.ask("DELETE", _path(name))


def _path(name: str = "") -> str:
    return f"/apis/networking.k8s.io/v1/namespaces/default/networkpolicies/{name}".rstrip("/")


def pods_of(app: str) -> dict[str, object]:
    return {"podSelector": {"matchLabels": {"app": app}}}


def test_without_a_policy_everything_passes(running: dict[str, Pod], internet: End):
    for name in ("friend", "stranger", "neighbour"):
        assert talks(running[name], running["server"].end())
        assert talks(running[name], internet)


def test_a_policy_of_ingress_lets_only_chosen_pods_in(cluster: Cluster, running: dict[str, Pod]):
    allow(cluster, "friends", "server", ingress=[{"from": [pods_of("friend")]}])
    server = running["server"].end()
    for name in ("stranger", "neighbour"):
        wait_for(lambda name=name: not talks(running[name], server), name, SECONDS_TO_ENFORCE)
    assert talks(running["friend"], server)
    assert talks(running["server"], running["stranger"].end()), "its own connections may go out"
    withdraw(cluster, "friends")
    wait_for(partial(talks, running["stranger"], server), "traffic again", SECONDS_TO_ENFORCE)


def test_a_policy_of_egress_keeps_a_pod_from_the_internet_and_others_are_counted_exactly(
    cluster: Cluster, running: dict[str, Pod], internet: End
):
    server = running["server"].end()
    allow(cluster, "inside", "stranger", egress=[{"to": [{"podSelector": {}}]}])
    stranger = running["stranger"]
    wait_for(lambda: not talks(stranger, internet), "the policy", SECONDS_TO_ENFORCE)
    before = counting.settled(cluster)
    talk = Conversation({name: running[name] for name in PODS if name != "stranger"}, internet)
    with Capture(internet.namespace, "eth0") as capture:
        for name in talk.speakers:
            talk.step(name)
        assert not talks(stranger, internet)
        assert talks(stranger, server)
        seen = talk.seen(capture)

    assert counting.gained(cluster, before, seen) == seen, "and what is denied is nobody's"
