"""What `kubectl kustomize` does, as far as configs/kubernetes uses it; no such program is on the
test machines.

Resources, components, JSON patches that add, generated ConfigMaps under their digest, and images.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]
KEYS = {"apiVersion", "kind", "resources", "components", "patches", "configMapGenerator", "images"}


def build(folder: Path, *components: Path) -> list[Object]:
    """The objects of a kustomization with more components, namespaces first."""
    objects = _apply(folder, [])
    for component in components:
        objects = _apply(component, objects)
    return sorted(objects, key=lambda item: item["kind"] != "Namespace")


def _apply(folder: Path, objects: list[Object]) -> list[Object]:
    document = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert document.keys() <= KEYS, f"{folder}: this knows nothing of {document.keys() - KEYS}"
    for name in document.get("resources", ()):
        path = (folder / name).resolve()
        objects += _apply(path, []) if path.is_dir() else _file(path)
    for name in document.get("components", ()):
        objects = _apply((folder / name).resolve(), objects)
    for generator in document.get("configMapGenerator", ()):
        _refer(objects, made := _config_map(folder, generator), generator["name"])
        objects.append(made)
    for patch in document.get("patches", ()):
        _patch(objects, patch["target"], yaml.safe_load((folder / patch["path"]).read_text()))
    for image in document.get("images", ()):
        _name_image(objects, image)
    names = [
        (item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"])
        for item in objects
    ]
    assert len(set(names)) == len(names), f"{folder}: two objects of one name"
    return objects


def _file(path: Path) -> list[Object]:
    return [item for item in yaml.safe_load_all(path.read_text()) if item]


def _config_map(folder: Path, generator: Object) -> Object:
    files = [item.rpartition("=") for item in generator["files"]]
    data = {key or name: (folder / name).read_text() for key, _, name in files}
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:10]
    is_plain = generator.get("options", {}).get("disableNameSuffixHash", False)
    name = generator["name"] if is_plain else f"{generator['name']}-{digest}"
    metadata = {"name": name, "namespace": generator["namespace"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _pods(objects: list[Object]) -> list[Object]:
    return [
        item["spec"]["template"]["spec"]
        for item in objects
        if item["kind"] in {"DaemonSet", "Deployment"}
    ]


def _refer(objects: list[Object], config_map: Object, name: str) -> None:
    for pod in _pods(objects):
        for volume in pod["volumes"]:
            if volume.get("configMap", {}).get("name") == name:
                volume["configMap"]["name"] = config_map["metadata"]["name"]


def _patch(objects: list[Object], target: Object, operations: list[Object]) -> None:
    chosen = [
        item
        for item in objects
        if (item["kind"], item["metadata"]["name"]) == (target["kind"], target["name"])
    ]
    assert len(chosen) == 1, f"{target} names {len(chosen)} objects"
    for operation in operations:
        place: Any = chosen[0]
        *parents, last = operation["path"].strip("/").split("/")
        for key in parents:
            place = place[int(key)] if isinstance(place, list) else place[key]
        assert operation["op"] == "add", f"this knows nothing of {operation['op']}"
        if last == "-":
            place.append(operation["value"])
        else:
            place[last] = operation["value"]


def _name_image(objects: list[Object], image: Object) -> None:
    for pod in _pods(objects):
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            if container["image"] == image["name"]:
                container["image"] = f"{image['newName']}:{image['newTag']}"
