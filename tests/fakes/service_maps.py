"""Documents of Services in a folder, and what they open, without a kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from netmgr.services.directory import Documents
from netmgr.services.service_map import ServiceMap, ServiceObjects
from tests.fakes.services_world import RANGES, SPOKE


class Folder:
    """Writes documents into a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, name: str, *objects: dict[str, Any]) -> Path:
        """Write one object, or a list of several."""
        path = self._path / name
        content = (
            objects[0]
            if len(objects) == 1
            else {"apiVersion": "v1", "kind": "List", "items": objects}
        )
        path.write_text(json.dumps(content, indent=1))
        return path


def map_of(source: Path) -> ServiceMap:
    """A map that knows the usual ranges and spoke."""
    return ServiceMap(Documents(source), ServiceObjects(RANGES, SPOKE))


def opened(service_map: ServiceMap) -> dict[str, tuple[list[str], list[str]]]:
    """Endpoints that new connections get, and draining ones, by ServicePort."""
    return {
        str(vip): (
            sorted(map(str, one.frontend.endpoints)),
            sorted(map(str, one.draining)),
        )
        for vip, one in service_map.ports.items()
    }


def edited(document: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A Service with some of its specification otherwise."""
    return document | {"spec": document["spec"] | spec}
