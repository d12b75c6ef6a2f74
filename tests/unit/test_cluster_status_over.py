"""What `netmgr status --cluster` does not say: what is over, or cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from netmgr.kube.diagnose.cluster_status import Leader, workload
from tests.unit.test_cluster_status import (
    NOW,
    OF_CONTROLLERS,
    findings_of,
    node,
    to_nodes_with,
)

Object = dict[str, Any]

CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
LABELLED = "node-restriction.kubernetes.io/netmgr-controller"
AFFINITY = to_nodes_with(CONTROL_PLANE, LABELLED)


@pytest.mark.parametrize(
    ("labels", "affinity", "ready", "wanted"),
    [
        ([CONTROL_PLANE, ""], AFFINITY, 1, 1),
        ([CONTROL_PLANE, CONTROL_PLANE], AFFINITY, 1, 2),
        ([CONTROL_PLANE, LABELLED, CONTROL_PLANE], AFFINITY, 1, 2),
        (["", ""], AFFINITY, 0, 1),
        (["", ""], AFFINITY, 2, 2),
        (["", ""], {}, 1, 2),
        ([""], {}, 1, 1),
        ([], AFFINITY, 0, 2),
    ],
    ids=[
        *("one control plane node", "two", "a labelled one", "none yet", "they were once"),
        *("on workers", "on one worker", "no Node is known"),
    ],
)
def test_no_more_controllers_are_wanted_than_nodes_may_run(
    labels: list[str], affinity: Object, ready: int, wanted: int
) -> None:
    nodes = [node(f"n{number}", labels={label: ""}) for number, label in enumerate(labels)]
    given = {
        "metadata": OF_CONTROLLERS,
        "spec": {"replicas": 2, "template": {"spec": affinity}},
        "status": {"readyReplicas": ready, "replicas": 2},
    }
    made = workload("deployment", given, nodes)
    assert (made.wanted, made.ready) == (wanted, ready)
    found = findings_of(*nodes, workloads=[made], leader=Leader("one", NOW))
    assert [one.check for one in found] == ["controller"] * (ready < wanted)


OF_POD = {"kind": "Pod", "namespace": "netmgr"}


@pytest.mark.parametrize(
    ("about", "at", "is_shown"),
    [
        ({"kind": "Node", "name": "a", "uid": "a"}, "2027-01-15T07:59:59Z", True),
        ({"kind": "Node", "name": "a", "uid": "a"}, "2027-01-15T07:00:00.5Z", True),
        ({"kind": "Node", "name": "a", "uid": "a"}, "2027-01-15T06:59:59Z", False),
        ({"kind": "Node", "name": "a", "uid": "of-the-former"}, "2027-01-15T07:59:59Z", False),
        ({"kind": "Node", "name": "a"}, "2027-01-15T07:59:59Z", True),
        (OF_POD | {"name": "netmgr-agent-x", "uid": "gone"}, "2027-01-15T07:59:59Z", False),
        (OF_POD | {"name": "netmgr-agent-y", "uid": "present"}, "2027-01-15T07:59:59Z", True),
        (OF_POD | {"name": "somebody-else-z", "uid": "unread"}, "2027-01-15T07:59:59Z", True),
        ({"kind": "DaemonSet", "name": "x", "uid": "gone"}, "2027-01-15T07:59:59Z", False),
        ({"kind": "ReplicaSet", "name": "x", "uid": "unread"}, "2027-01-15T07:59:59Z", True),
        ({"kind": "ReplicaSet", "name": "x", "uid": "unread"}, "2027-01-15T06:00:00Z", False),
        ({"kind": "ReplicaSet", "name": "x", "uid": "unread"}, "", True),
    ],
)
@pytest.mark.parametrize("key", ["lastTimestamp", "eventTime"])
def test_an_event_of_a_former_installation_or_about_what_is_gone_is_over(
    about: Object, at: str, key: str, *, is_shown: bool
) -> None:
    event = {"involvedObject": about, "reason": "Refused", "message": "no", key: at or None}
    more = {"present": {"a", "present"}, "installed_at": "2027-01-15T07:00:00Z"}
    assert bool(findings_of(node("a"), events=[event], **more)) is is_shown
