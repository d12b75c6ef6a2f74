"""Services in IPv6 beside IPv4: from the plan over lock, matrix and explanation to every machine's
document.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from netmgr.cli.plan import app
from netmgr.documents import loader
from netmgr.documents.node import NodeDocument
from netmgr.plan import files, machines
from netmgr.plan.check.reach import OTHERS, ReachTarget, matrix
from netmgr.plan.clouds.azure.terraform import terraform
from netmgr.plan.derive import network
from netmgr.plan.document import PlanDocument
from netmgr.plan.explain import explain
from netmgr.plan.lock import LockDocument, PlanRefused
from netmgr.plan.network import Network
from netmgr.plan.render.node import Documents
from netmgr.prefixes import Address, Family, Prefix
from tests.locks import lock_for

GOLDEN = Path(__file__).parent.parent / "golden" / "render" / "plan.yaml"
SHARED = Prefix.parse("fd00:5a::/112")


@pytest.fixture(scope="module")
def plan() -> PlanDocument:
    text = GOLDEN.read_text().replace("[172.16.0.0/12]", "[172.16.0.0/12, 'fd00:5e::/100']")
    text = text.replace(
        "shared_services: 100.64.0.0/16", "shared_services: [100.64.0.0/16, 'fd00:5a::/108']"
    )
    return loader.parse(text, "plan.yaml", PlanDocument)


@pytest.fixture(scope="module")
def lock(plan: PlanDocument) -> LockDocument:
    before = files.load_lock(files.lock_path(GOLDEN))
    return lock_for(plan, before)


@pytest.fixture(scope="module")
def net(plan: PlanDocument, lock: LockDocument) -> Network:
    return network(plan, lock, files.load_limits(plan.cloud))


def v6(prefixes: tuple[Prefix, ...]) -> Prefix:
    return next(prefix for prefix in prefixes if prefix.family is Family.V6)


def test_the_hub_reaches_them_and_other_spokes_do_not(plan, net):
    cells = {(cell.origin, cell.owner, cell.target): cell for cell in matrix(net)}
    for owner in plan.clusters:
        reached = cells["hub", owner, ReachTarget.SERVICES]
        assert reached.outcome == "reached"
        assert {path.destination.family for path in reached.paths} == set(Family)
    assert cells["training", OTHERS, ReachTarget.SERVICES].outcome == "dropped"
    assert not any(cell.wrong for cell in cells.values())


def test_answers_that_keep_the_clients_address_return_by_the_hosts_own_address(plan, lock, net):
    node = machines.node_named(lock, "evals-cpu-0")
    document = NodeDocument.model_validate(Documents(plan, lock).of(node))
    clients, host = v6(lock.hub.researchers[0].prefixes), lock.clusters["evals"].nat.addresses_v6[0]
    assert [(route.to, route.via) for route in document.routes][1:] == [(clients, host)]
    (table,) = [table for table in net.tables if table.name == "evals_nodes"]
    assert (clients, host) in [(route.prefix, route.via) for route in table.routes]


@pytest.mark.parametrize(
    ("find", "role"),
    [
        (lambda lock: lock.hub.routers.addresses_v6[1], "router"),
        (lambda lock: v6(lock.hub.researchers[0].prefixes).network, "researcher"),
        (lambda lock: lock.clusters["training"].nat.addresses_v6[1], "NAT host"),
        (lambda lock: lock.clusters["evals"].services.vip_ranges[1].network, "Service"),
        (lambda _: SHARED.network, "Service"),
    ],
)
def test_their_addresses_are_explained(plan, lock, find, role):
    answer = explain(plan, lock, find(lock))
    assert answer.role == role
    assert answer.prefix.length < Family.V6.width


def test_the_name_inside_the_cluster_is_told(plan, lock):
    vip_range, _ = lock.clusters["evals"].services.pairs[1]
    answer = explain(plan, lock, Address(Family.V6, vip_range.value + 0x77))
    assert "the hub's name for fd00:5a::77 inside evals; reached from the hub" in answer.traffic


def test_the_cloud_is_asked_for_their_routes_and_subnets(plan, lock, net):
    text = terraform(plan, net)
    for name, held in lock.clusters.items():
        assert f'name                   = "services-{name}-v6-0"' in text
        assert f'next_hop_in_ip_address = "{held.nat.addresses_v6[0]}"' in text
        assert f'["{held.nat.prefix}", "{held.nat.prefix_v6}"]' in text


def test_an_api_server_is_told_both_ranges(plan, lock, tmp_path):
    (tmp_path / "plan.yaml").write_text(files.to_yaml(plan))
    files.write_lock(tmp_path / "plan.lock.yaml", lock, None)
    command = ["render", "kubernetes", "evals", "-f", str(tmp_path / "plan.yaml")]
    documents = yaml.safe_load_all(CliRunner().invoke(app, command).stdout)
    (config,) = [document for document in documents if document["kind"] == "ConfigMap"]
    assert config["data"]["service-cluster-ip-range"] == "100.64.0.0/18,fd00:5a::/112"


def test_ranges_of_a_shared_cluster_need_something_to_share(plan):
    lacking = plan.model_copy(update={"shared_services": plan.shared_services[:1]})
    with pytest.raises(
        PlanRefused, match="is shared, but shared_services has no IPv6 prefix; give"
    ):
        lock_for(lacking)
