"""The claims, stored in the cluster: which Node holds what, and since when it is in cooldown.

They are in ConfigMaps, each with 256 node indexes of one node pool, and are written before the Node
is. A write names the resourceVersion that it is based on: when two controllers give the same
allocation away, one of them is refused, whoever holds the Lease. A controller
that takes over reads the claims and knows all that its predecessor knew, cooldowns included.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from netmgr.errors import ApiError, StateError
from netmgr.kube.client.api import CONFLICT, NOT_FOUND, Api, Object
from netmgr.kube.controller.allocations import Claim, NodeAllocation, NodeIndex
from netmgr.prefixes import Prefix

log = logging.getLogger(__name__)

SHARD = 256
"""Indexes in one ConfigMap: at most 100 kB, cheap to rewrite, far from etcd's limit of 1.5 MB."""

LABEL = "netmgr.io/claims-of"
"""Label of these ConfigMaps; its value is the cluster's name in the plan."""

POOL = "netmgr.io/node-pool"
"""Annotation of these ConfigMaps: the node pool that their claims are of."""


class ClaimStore:
    def __init__(self, api: Api, namespace: str, cluster: str) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"
        self._cluster = cluster
        self._versions: dict[str, str] = {}
        self.claims: dict[NodeIndex, Claim] = {}

    def load(self) -> None:
        """Read every claim anew; StateError if one cannot be read."""
        # Without a resourceVersion the answer is read from etcd. A server's cache may lag, and a
        # claim that is missing there would be given out a second time.
        config_maps = self._api.get(self._path, {"labelSelector": f"{LABEL}={self._cluster}"})
        self._versions, self.claims = {}, {}
        for shard in config_maps["items"]:
            self._take(shard)

    def write(self, changes: Mapping[NodeIndex, Claim | None]) -> bool:
        """Write changes. False: another controller wrote first; all claims were read again.

        Raises:
            StateError: a ConfigMap without our label has the name of one that is to be made.
        """
        shards: dict[str, dict[NodeIndex, Claim | None]] = {}
        for index, claim in changes.items():
            shards.setdefault(shard_name(self._cluster, index), {})[index] = claim
        for name, entries in shards.items():
            try:
                self._take(self._write(name, entries))
            except ApiError as error:
                # 409: another version than ours, or the ConfigMap exists; 404: it was deleted.
                if error.status not in (CONFLICT, NOT_FOUND):
                    raise
                # Shards before this one are written. That is safe: the next round decides on what
                # is read now, which includes them.
                log.warning("claims-conflict action=read-all-again shard=%s", name)
                self.load()
                # Every round would try to make it, and be refused.
                if error.status == CONFLICT and name not in self._versions:
                    label = f"{LABEL}={self._cluster}"
                    raise StateError(
                        f"ConfigMap {name} lacks the label {label} of the claims that it is for: "
                        "restore the label, or delete it if it has no claims"
                    ) from None
                return False
        return True

    def _write(self, name: str, entries: Mapping[NodeIndex, Claim | None]) -> Object:
        # In a merge patch, null removes a key.
        data = {str(index.number): claim and write(claim) for index, claim in entries.items()}
        if name in self._versions:
            metadata = {"resourceVersion": self._versions[name]}
            return self._api.patch(f"{self._path}/{name}", {"metadata": metadata, "data": data})
        new: Object = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": name,
                "labels": {LABEL: self._cluster},
                "annotations": {POOL: next(iter(entries)).pool},
            },
            # A new ConfigMap has no key to remove, and null is no value.
            "data": {key: value for key, value in data.items() if value},
        }
        return self._api.create(self._path, new)

    def _take(self, shard: Object) -> None:
        name, pool = shard["metadata"]["name"], shard["metadata"].get("annotations", {}).get(POOL)
        if pool is None:
            raise StateError(
                f"ConfigMap {name} has the label {LABEL} but no annotation {POOL} with the node "
                "pool of its claims: restore the annotation, or delete it if it has no claims"
            )
        # The answer to a write holds the whole shard, keys of other writers included, so it
        # replaces all that was known of it.
        self._versions[name] = shard["metadata"]["resourceVersion"]
        for index in [index for index in self.claims if shard_name(self._cluster, index) == name]:
            del self.claims[index]
        for claim in read(pool, shard.get("data") or {}):
            self.claims[claim.index] = claim


def shard_name(cluster: str, index: NodeIndex) -> str:
    return f"netmgr-claims-{cluster}-{index.pool}-{index.number // SHARD}"


def write(claim: Claim) -> str:
    content: dict[str, object] = {
        "node": claim.node,
        "uid": claim.uid,
        "ranges": [str(block) for block in claim.allocation.ranges],
    }
    if claim.released is not None:
        content["released"] = datetime.fromtimestamp(claim.released, UTC).isoformat()
    return json.dumps(content)


def read(pool: str, data: Mapping[str, str]) -> Iterator[Claim]:
    """The claims in one ConfigMap's data, by number of node; StateError for what is no claim."""
    for key, value in data.items():
        try:
            content: dict[str, Any] = json.loads(value)
            released = None
            if "released" in content:
                released = datetime.fromisoformat(content["released"]).timestamp()
                # By its offset a time may leave the calendar, and `write` could not give it back.
                datetime.fromtimestamp(released, UTC)
            ranges = [Prefix.parse(str(block)) for block in content["ranges"]]
            allocation = NodeAllocation.of(NodeIndex(pool, int(key)), ranges)
            yield Claim(allocation, str(content["node"]), str(content["uid"]), released)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise StateError(
                f"claim {key} of node pool {pool} cannot be read: {error}; restore it from the Node"
                " that has the allocation, or remove the key if no Node has it"
            ) from None
