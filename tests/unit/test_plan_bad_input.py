"""Plans and locks that are wrong: every refusal names file, line and key, and leaves the files as
they were.
"""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from netmgr.errors import StateError
from netmgr.plan import files

PLAN = """\
apiVersion: netmgr.io/v1alpha1
kind: NetworkPlan
name: small
pools:
  nodes: [10.0.0.0/12]
  services: [172.16.0.0/15]
clusters:
  alpha:
    services: {length: 20}
    node_pools:
      gpu: {nodes: 500, pods_per_node: 31}
  beta:
    node_pools:
      cpu: {nodes: 100}
"""


GPU = "11: clusters.alpha.node_pools.gpu"
SERVICES = "9: clusters.alpha.services"
NODES, RANGE = "10.0.0.0/12", "[172.16.0.0/15]"
POOLS = f"[{NODES}]\n  services: {RANGE}"
TOO_FEW = "[10.0.0.0/12, 'fd01::/40']\n  services: [172.16.0.0/15, 'fd00::/113']"
SHARED_TWICE = "shared_services: [192.168.0.0/16, 100.64.0.0/16]"
BESIDE = "overlaps 10.9.0.0/16 (line 7); an address has one owner"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("kind: NetworkPlan", "kind: Node", "2: kind: "),
        ("nodes: 500", "nodes: many", f"{GPU}.nodes: "),
        ("nodes: 500", "nodse: 500", f"{GPU}.nodse: unknown key"),
        ("nodes: 500", "nodes: 500, grow_to: 400", f"{GPU}.grow_to: is less than"),
        ("nodes: 500", "nodes: 500, surge: lots", f"{GPU}.surge: 'lots' is neither"),
        ("{length: 20}", "{length: 11}", f"{SERVICES}.length: "),
        ("{length: 20}", "{mode: shared}", f"{SERVICES}.mode: is shared, but shared_services"),
        (NODES, "10.0.0.1/12", "5: pools.nodes[0]: '10.0.0.1/12' has host bits set; did you mean"),
        (
            NODES,
            "10.0.0.0/12, 10.1.0.0/16",
            "5: pools.nodes[1]: 10.1.0.0/16 overlaps 10.0.0.0/12 (line 5); give",
        ),
        (NODES, "169.254.0.0/24", "5: pools.nodes[0]: 169.254.0.0/24 lies in the special-use pre"),
        (NODES, "fd00::/40", "5: pools.nodes: has no IPv4 prefix"),
        (RANGE, "[10.4.0.0/16]", "6: pools.services[0]: 10.4.0.0/16 overlaps 10.0.0.0/12 (line 5)"),
        (RANGE, "['fd00::/108']", "6: pools.services: has no IPv4 prefix"),
        (
            RANGE,
            "[172.16.0.0/15, 'fd00::/108']",
            "6: pools.services[1]: fd00::/108 is IPv6, and nothing of nodes is (line 5); NAT hosts",
        ),
        (POOLS, TOO_FEW, f"{SERVICES}.length_v6: alpha needs a /112 for Services, but the larges"),
        (POOLS, TOO_FEW, "block of pools.services is fd00::/113 (line 6); add a prefix or ask for"),
        ("{length: 20}", "{length_v6: 107}", f"{SERVICES}.length_v6: "),
        ("clusters:", SHARED_TWICE, "7: shared_services: has two prefixes of one family"),
        ("  beta:", "  hub:", "7: clusters: 'hub' is the hub's name"),
        ("  beta:", "  alpha:", "12: clusters.alpha: given twice (first in line 8)"),
        ("clusters:", "limits: {routers: 3}", "7: limits.routers: is no limit; there are"),
        (
            "clusters:",
            "shared_services: 10.1.0.0/16",
            "7: shared_services: 10.1.0.0/16 overlaps the pool 10.0.0.0/12, which the hub routes",
        ),
        (
            "172.16.0.0/15",
            "172.16.0.0/20",
            "12: clusters.beta.services.length: beta needs a /16 for Services",
        ),
        (NODES, "10.0.0.0/20", f"{GPU}.nodes: alpha needs"),
        (
            "clusters:",
            "pinned: {x: [10.9.0.0/16], y: [10.9.1.0/24]}",
            f"7: pinned.y[0]: 10.9.1.0/24 {BESIDE}",
        ),
        (
            "clusters:",
            "exclude: [{prefix: 10.9.0.0/16}]\npinned: {x: [10.9.1.0/24]}",
            f"8: pinned.x[0]: 10.9.1.0/24 {BESIDE}",
        ),
    ],
)
def test_a_refusal_names_file_line_and_key(refused, plan, old, new, expected):
    write(plan, old, new)
    text = refused("lock", "--yes")
    assert (f"plan.yaml:{expected}" if expected[0].isdigit() else expected) in text
    assert not plan.with_name("plan.lock.yaml").exists()


def write(plan: Path, old: str, new: str) -> None:
    """The plan with this change; what has no place of its own stands before the clusters."""
    assert old in PLAN
    plan.write_text(PLAN.replace(old, f"{new}\nclusters:" if old == "clusters:" else new, 1))


@pytest.mark.parametrize(
    ("old", "new", "message", "place"),
    [
        (
            "clusters:",
            "exclude: [{prefix: 10.8.0.0/13}]",
            "plan.yaml:7: exclude[0]: 10.8.0.0/13 is excluded, but hub holds 10.15.254.0/23",
            "9: hub.prefixes",
        ),
        (
            "clusters:",
            "pinned: {x: [10.4.9.0/24]}",
            "plan.yaml:7: pinned.x[0]: 10.4.9.0/24 is pinned to x, but alpha holds 10.4.0.0/17",
            "19: clusters.",
        ),
        (
            "clusters:",
            "pinned: {x: [172.16.0.0/24]}",
            "x, but alpha has its Services at 172.16.0.0/20",
            "21: clusters.alpha.services); undo",
        ),
        (
            "{length: 20}",
            "{length: 21}",
            "Kubernetes cannot resize a Service range",
            "21: clusters.alpha.services); undo",
        ),
        (
            RANGE,
            "[172.17.0.0/16]",
            "which no pool has any more",
            "21: clusters.alpha.services); un",
        ),
        (
            "pods_per_node: 31",
            "pods_per_node: 33",
            f"{GPU}.pods_per_node: needs 3 blocks a node, but nodes have 2 in the lock",
            "32: clusters.alpha.node_pools.gpu.segments[0]",
        ),
    ],
)
def test_a_plan_that_contradicts_its_lock_is_refused_with_both_lines(
    plan, lock, contradicted, old, new, message, place
):
    write(plan, old, new)
    contradicted(f"{message} ({lock}:{place}")


def test_an_unknown_key_of_a_lock_is_refused_by_name(lock, refused):
    lock.write_text(lock.read_text() + "surprise: 1\n")
    text = refused("check")
    assert f"{lock}:" in text
    assert "surprise: unknown key" in text
    assert "if it was edited or merged by hand, take the whole file of one side" in text


def test_a_full_disk_leaves_the_old_lock(plan, lock):
    document = files.load_lock(lock)
    before = lock.read_bytes() + b"# to be written again\n"
    lock.write_bytes(before)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
    try:
        with pytest.raises(StateError, match="cannot be written: File too large"):
            files.write_lock(lock, document, document)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert lock.read_bytes() == before
    assert sorted(each.name for each in plan.parent.iterdir()) == ["plan.lock.yaml", "plan.yaml"]
