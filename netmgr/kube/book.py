"""The claims as they stand in the cluster: read once, then written only where nobody else has written meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from netmgr.errors import ApiError, StateError
from netmgr.kube import claims
from netmgr.kube.api import CONFLICT, NOT_FOUND, Api, Object
from netmgr.kube.claims import Claim, shard_name
from netmgr.kube.places import Slot

log = logging.getLogger(__name__)

POOL = "netmgr.io/node-pool"
"""Annotation of a ConfigMap with claims: the node pool whose places it has."""


class Book:
    """All claims of one cluster."""

    def __init__(self, api: Api, namespace: str, cluster: str) -> None:
        """Nothing is read yet."""
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"
        self._cluster = cluster
        self._versions: dict[str, str] = {}
        self.claims: dict[Slot, Claim] = {}

    def load(self) -> None:
        """Read every claim, as it is now.

        Raises:
            ApiError: the server is away, or does not let us.
            StateError: a claim there cannot be read.
        """
        found = self._api.get(self._path, {"labelSelector": f"{claims.LABEL}={self._cluster}"})
        self._versions, self.claims = {}, {}
        for shard in found["items"]:
            self._take(shard)

    def write(self, changes: Mapping[Slot, Claim | None]) -> bool:
        """Write changes. False: somebody else wrote first; everything was read again, so decide anew."""
        shards: dict[str, dict[Slot, Claim | None]] = {}
        for slot, claim in changes.items():
            shards.setdefault(shard_name(self._cluster, slot), {})[slot] = claim
        for name, entries in shards.items():
            try:
                self._take(self._write(name, entries))
            except ApiError as error:
                if error.status not in (CONFLICT, NOT_FOUND):
                    raise
                log.warning("claims-conflict action=read-all-again shard=%s", name)
                self.load()
                return False
        return True

    def _write(self, name: str, entries: Mapping[Slot, Claim | None]) -> Object:
        data = {str(slot.number): claim and claims.write(claim) for slot, claim in entries.items()}
        if name in self._versions:
            metadata = {"resourceVersion": self._versions[name]}
            return self._api.patch(f"{self._path}/{name}", {"metadata": metadata, "data": data})
        pool = next(iter(entries)).pool
        new: Object = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {claims.LABEL: self._cluster}, "annotations": {POOL: pool}},
            "data": {key: value for key, value in data.items() if value},
        }
        return self._api.create(self._path, new)

    def _take(self, shard: Object) -> None:
        name, pool = shard["metadata"]["name"], shard["metadata"].get("annotations", {}).get(POOL)
        if pool is None:
            raise StateError(
                f"ConfigMap {name} has the label {claims.LABEL} and no annotation {POOL} that says the node pool "
                "of its claims: put it back, or remove the label if these are none"
            )
        self._versions[name] = shard["metadata"]["resourceVersion"]
        for slot in [slot for slot in self.claims if shard_name(self._cluster, slot) == name]:
            del self.claims[slot]
        self.claims.update((claim.place.slot, claim) for claim in claims.read(pool, shard.get("data") or {}))
