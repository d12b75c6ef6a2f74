"""A support archive of a cluster, through its API server: what netmgr has there, and its logs.

Secrets are never asked for. Whoever runs it needs to read Nodes, and everything in `netmgr`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial

from netmgr import archive
from netmgr.archive import Archive, Part
from netmgr.kube.client.api import Api, Object

LOG_LINES = 2000
_OBJECTS = {
    "/apis/apps/v1": ("daemonsets", "deployments"),
    "/api/v1": ("pods", "configmaps", "events"),
    "/apis/coordination.k8s.io/v1": ("leases",),
}
NAMESPACES = ("netmgr", "netmgr-claims")
"""Those of the manifests."""


def collect(api: Api, namespaces: tuple[str, ...], *, redact: bool = False) -> Archive:
    """The archive, with the objects of `namespaces`; ApiError if not even pods can be listed."""
    # Whatever else is refused has the reason in its place in the archive.
    pods: list[Object] = []
    for namespace in namespaces:
        pods += api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    parts = dict(_parts(api, namespaces, pods))
    texts = archive.collect(parts)
    if redact:
        # Its own pods are no tenant's, and what their logs say of others' is redacted.
        texts = archive.redacted(texts, ())
    return archive.packed(f"netmgr-cluster-{time.strftime('%Y%m%dT%H%M%S')}", texts)


def _parts(api: Api, namespaces: tuple[str, ...], pods: list[Object]) -> Iterator[tuple[str, Part]]:
    yield "version.json", partial(_object, api, "/version")
    yield "nodes.json", partial(_object, api, "/api/v1/nodes")
    for namespace in namespaces:
        for root, kinds in _OBJECTS.items():
            for kind in kinds:
                path = f"{root}/namespaces/{namespace}/{kind}"
                yield f"{namespace}/{kind}.json", partial(_object, api, path)
    for pod in pods:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        spec = pod["spec"]
        # An agent that does not start has said why in an init container.
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            path = f"/api/v1/namespaces/{namespace}/pods/{name}/log"
            query = {"container": container["name"], "tailLines": LOG_LINES, "timestamps": "true"}
            part = f"{namespace}/logs/{name}-{container['name']}.log"
            yield part, partial(api.text, path, query)


def _object(api: Api, path: str) -> str:
    return json.dumps(api.get(path), indent=1) + "\n"
