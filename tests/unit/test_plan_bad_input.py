"""Plans and locks that are wrong: every refusal names file, line and key, and leaves the files as
they were.
"""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from netmgr.errors import ConfigError, StateError
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


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("kind: NetworkPlan", "kind: Node", "plan.yaml:2: kind: "),
        ("nodes: 500", "nodes: many", "plan.yaml:11: clusters.alpha.node_pools.gpu.nodes: "),
        (
            "nodes: 500",
            "nodse: 500",
            "plan.yaml:11: clusters.alpha.node_pools.gpu.nodse: unknown key",
        ),
        (
            "nodes: 500",
            "nodes: 500, grow_to: 400",
            "plan.yaml:11: clusters.alpha.node_pools.gpu.grow_to: is less than",
        ),
        (
            "nodes: 500",
            "nodes: 500, surge: lots",
            "plan.yaml:11: clusters.alpha.node_pools.gpu.surge: 'lots' is neither",
        ),
        ("{length: 20}", "{length: 11}", "plan.yaml:9: clusters.alpha.services.length: "),
        (
            "{length: 20}",
            "{mode: shared}",
            "plan.yaml:9: clusters.alpha.services.mode: is shared, but shared_services",
        ),
        (
            "10.0.0.0/12",
            "10.0.0.1/12",
            "plan.yaml:5: pools.nodes[0]: '10.0.0.1/12' has host bits set; did you mean",
        ),
        (
            "10.0.0.0/12",
            "10.0.0.0/12, 10.1.0.0/16",
            "plan.yaml:5: pools.nodes[1]: 10.1.0.0/16 overlaps 10.0.0.0/12 (line 5); give",
        ),
        (
            "10.0.0.0/12",
            "169.254.0.0/24",
            "plan.yaml:5: pools.nodes[0]: 169.254.0.0/24 lies in the special-use prefix",
        ),
        ("10.0.0.0/12", "fd00::/40", "plan.yaml:5: pools.nodes: has no IPv4 prefix"),
        (
            "[172.16.0.0/15]",
            "[10.4.0.0/16]",
            "plan.yaml:6: pools.services[0]: 10.4.0.0/16 overlaps 10.0.0.0/12 (line 5)",
        ),
        ("[172.16.0.0/15]", "['fd00::/108']", "plan.yaml:6: pools.services: has no IPv4 prefix"),
        (
            "[172.16.0.0/15]",
            "[172.16.0.0/15, 'fd00::/108']",
            (
                "plan.yaml:6: pools.services[1]: fd00::/108 is IPv6, and nothing of nodes is "
                "(line 5); NAT hosts need"
            ),
        ),
        (
            "[10.0.0.0/12]\n  services: [172.16.0.0/15]",
            "[10.0.0.0/12, 'fd01::/40']\n  services: [172.16.0.0/15, 'fd00::/113']",
            (
                "plan.yaml:9: clusters.alpha.services.length_v6: alpha needs a /112 for "
                "Services, but the largest free"
            ),
        ),
        (
            "[10.0.0.0/12]\n  services: [172.16.0.0/15]",
            "[10.0.0.0/12, 'fd01::/40']\n  services: [172.16.0.0/15, 'fd00::/113']",
            "block of pools.services is fd00::/113 (line 6); add a prefix or ask for less",
        ),
        ("{length: 20}", "{length_v6: 107}", "plan.yaml:9: clusters.alpha.services.length_v6: "),
        (
            "clusters:",
            "shared_services: [192.168.0.0/16, 100.64.0.0/16]\nclusters:",
            "plan.yaml:7: shared_services: has two prefixes of one family",
        ),
        ("  beta:", "  hub:", "plan.yaml:7: clusters: 'hub' is the hub's name"),
        ("  beta:", "  alpha:", "plan.yaml:12: clusters.alpha: given twice (first in line 8)"),
        (
            "clusters:",
            "limits: {routers: 3}\nclusters:",
            "plan.yaml:7: limits.routers: is no limit; there are",
        ),
        (
            "clusters:",
            "shared_services: 10.1.0.0/16\nclusters:",
            (
                "plan.yaml:7: shared_services: 10.1.0.0/16 overlaps the pool 10.0.0.0/12, "
                "which the hub routes (line 5)"
            ),
        ),
        (
            "172.16.0.0/15",
            "172.16.0.0/20",
            "plan.yaml:12: clusters.beta.services.length: beta needs a /16 for Services",
        ),
        (
            "10.0.0.0/12",
            "10.0.0.0/20",
            "plan.yaml:11: clusters.alpha.node_pools.gpu.nodes: alpha needs",
        ),
        (
            "clusters:",
            "pinned: {x: [10.9.0.0/16], y: [10.9.1.0/24]}\nclusters:",
            (
                "plan.yaml:7: pinned.y[0]: 10.9.1.0/24 overlaps 10.9.0.0/16 (line 7); an "
                "address has one owner"
            ),
        ),
        (
            "clusters:",
            "exclude: [{prefix: 10.9.0.0/16}]\npinned: {x: [10.9.1.0/24]}\nclusters:",
            (
                "plan.yaml:8: pinned.x[0]: 10.9.1.0/24 overlaps 10.9.0.0/16 (line 7); an "
                "address has one owner"
            ),
        ),
    ],
)
def test_a_refusal_names_file_line_and_key(
    run, plan: Path, old: str, new: str, expected: str
) -> None:
    assert old in PLAN
    plan.write_text(PLAN.replace(old, new, 1))
    code, text = run("lock", "--yes")
    assert code == 1
    assert expected in text
    assert not plan.with_name("plan.lock.yaml").exists()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "clusters:",
            "exclude: [{prefix: 10.8.0.0/13}]\nclusters:",
            (
                "plan.yaml:7: exclude[0]: 10.8.0.0/13 is excluded, but hub holds "
                "10.15.254.0/23 ({lock}:9: hub.prefixes"
            ),
        ),
        (
            "clusters:",
            "pinned: {x: [10.0.9.0/24]}\nclusters:",
            (
                "plan.yaml:7: pinned.x[0]: 10.0.9.0/24 is pinned to x, but alpha holds "
                "10.0.0.0/16 ({lock}:19: clusters."
            ),
        ),
        (
            "clusters:",
            "pinned: {x: [172.16.0.0/24]}\nclusters:",
            (
                "x, but alpha has its Services at 172.16.0.0/20 ({lock}:20: "
                "clusters.alpha.services); undo"
            ),
        ),
        (
            "{length: 20}",
            "{length: 21}",
            "Kubernetes cannot resize a Service range ({lock}:20: clusters.alpha.services); undo",
        ),
        (
            "[172.16.0.0/15]",
            "[172.17.0.0/16]",
            "which no pool has any more ({lock}:20: clusters.alpha.services); undo",
        ),
        (
            "pods_per_node: 31",
            "pods_per_node: 33",
            (
                "needs 3 blocks a node, but nodes have 2 in the lock ({lock}:31: "
                "clusters.alpha.node_pools.gpu.segments[0]"
            ),
        ),
    ],
)
def test_a_plan_that_contradicts_its_lock_is_refused_with_both_lines(
    run, plan: Path, old: str, new: str, expected: str
) -> None:
    assert run("lock", "--yes")[0] == 0
    plan.write_text(PLAN.replace(old, new, 1))
    for command in (("lock", "--yes"), ("check",)):
        code, text = run(*command)
        assert code == 1
        assert expected.format(lock=plan.with_name("plan.lock.yaml")) in text


def test_a_plan_that_does_not_fit_says_by_how_much_and_what_is_largest(run, plan: Path) -> None:
    plan.write_text(PLAN.replace("10.0.0.0/12", "10.0.0.0/18"))
    code, text = run("lock", "--yes")
    assert code == 1
    assert (
        "alpha needs 33,808 more addresses, a /16, but of pools.nodes the largest free "
        "block is 10.0.0.0/19"
    ) in text
    assert (
        "57,344 too few; the largest request is clusters.alpha.node_pools.gpu.nodes (32,768)"
        in text
    )


def test_an_unknown_key_of_a_lock_is_refused_by_name(run, plan: Path) -> None:
    assert run("lock", "--yes")[0] == 0
    path = plan.with_name("plan.lock.yaml")
    path.write_text(path.read_text() + "surprise: 1\n")
    code, text = run("check")
    assert code == 1
    assert f"{path}:" in text
    assert "surprise: unknown key" in text
    assert "if it was edited or merged by hand, take the whole file of one side" in text


def test_the_lock_of_another_plan_is_refused(run, plan: Path) -> None:
    assert run("lock", "--yes")[0] == 0
    plan.write_text(PLAN.replace("name: small", "name: large"))
    code, text = run("lock", "--yes")
    assert code == 1
    assert "plan.yaml:3: name: is 'large', but the lock belongs to the plan 'small'" in text


def test_an_exclusion_of_what_is_in_use_is_refused(run, plan: Path) -> None:
    assert run("lock", "--yes")[0] == 0
    lock = files.load_lock(plan.with_name("plan.lock.yaml"))
    held = lock.clusters["alpha"].prefixes[0].prefix
    plan.write_text(PLAN + f"exclude:\n  - prefix: {held}\n")
    for command in (("lock", "--yes"), ("check",)):
        code, text = run(*command)
        assert code == 1
        assert f"plan.yaml:16: exclude[0]: {held} is excluded, but alpha holds" in text


def test_a_full_disk_leaves_the_old_lock(run, plan: Path) -> None:
    assert run("lock", "--yes")[0] == 0
    path = plan.with_name("plan.lock.yaml")
    before = path.read_bytes()
    lock = files.load_lock(path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
    try:
        with pytest.raises(StateError, match="cannot be written: File too large"):
            files.write_lock(path, lock)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert sorted(each.name for each in plan.parent.iterdir()) == ["plan.lock.yaml", "plan.yaml"]


def test_a_list_to_adopt_that_cannot_be_read_names_its_line(run, tmp_path: Path) -> None:
    listed = tmp_path / "list.txt"
    listed.write_text("alpha 10.4.0.0/16\nbeta 10.5.0.0/16 surplus\n")
    code, text = run("adopt", str(listed), "--yes")
    assert code == 1
    assert f"{listed}:2: is not a name and a prefix" in text


def test_limits_of_every_cloud_can_be_read() -> None:
    for cloud in ("azure", "none"):
        assert files.load_limits(cloud).as_of
    with pytest.raises(ConfigError):
        files.load_limits("moon")
