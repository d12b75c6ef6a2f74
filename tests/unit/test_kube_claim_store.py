"""Claims in ConfigMaps: what the store does about one that is not, or not only, its own."""

from __future__ import annotations

import pytest

from netmgr.errors import StateError
from netmgr.kube.client.api import Api
from netmgr.kube.client.concurrency import Concurrency
from netmgr.kube.controller.allocations import Claim, NodeAllocation, NodeIndex
from netmgr.kube.controller.claim_store import LABEL, ClaimStore, shard_name
from netmgr.prefixes import Prefix
from tests.fakes.api_server import ApiServer

CLAIMS = "/api/v1/namespaces/netmgr-claims/configmaps"
INDEX = NodeIndex("gpu", 0)
NAME = shard_name("train", INDEX)
CLAIM = Claim(NodeAllocation.of(INDEX, [Prefix.parse("10.0.0.0/26")]), "n", "uid-n", None)


@pytest.fixture
def api() -> Api:
    return ApiServer(Concurrency()).api("controller")


def store(api: Api) -> ClaimStore:
    made = ClaimStore(api, "netmgr-claims", "train")
    made.load()
    return made


def test_another_controllers_claims_are_read_instead_of_overwritten(api: Api) -> None:
    first, second = store(api), store(api)
    assert first.write({INDEX: CLAIM})
    assert not second.write({INDEX: CLAIM})
    assert second.claims == {INDEX: CLAIM}


def test_a_config_map_in_the_way_of_claims_is_named_until_it_is_deleted(api: Api) -> None:
    api.create(CLAIMS, {"metadata": {"name": NAME, "labels": {LABEL: "train"}}})
    with pytest.raises(StateError, match=f"ConfigMap {NAME} has .* or delete it if it has no clai"):
        store(api)
    # Without its label it is no longer listed, and still has the name.
    api.patch(f"{CLAIMS}/{NAME}", {"metadata": {"labels": {LABEL: None}}})
    claims = store(api)
    with pytest.raises(StateError, match=f"ConfigMap {NAME} lacks the label {LABEL}=train"):
        claims.write({INDEX: CLAIM})
    api.delete(f"{CLAIMS}/{NAME}")
    assert claims.write({INDEX: CLAIM})
