"""What `kubectl kustomize` does, as far as configs/kubernetes uses it; tests run without it.

Resources, components, JSON patches that add or replace, generated ConfigMaps under their digest,
and images. `tests/kubernetes/test_kustomize.py` compares it with the real program.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import yaml

KUBERNETES = Path(__file__).parents[2] / "configs" / "kubernetes"
Object = dict[str, Any]
KEYS = {"apiVersion", "kind", "resources", "components", "patches", "configMapGenerator", "images"}


def build(folder: Path, *components: Path) -> list[Object]:
    """The objects of a kustomization with more components, namespaces first."""
    objects = _apply(folder, [])
    for component in components:
        objects = _apply(component, objects)
    return sorted(objects, key=lambda item: item["kind"] != "Namespace")


def added(overlay: str, name: str, container: str = "agent", *components: str) -> list[str]:
    """The capabilities that an overlay, with these components, gives a container."""
    more = [KUBERNETES / "components" / each for each in components]
    (found,) = [
        item
        for item in build(KUBERNETES / "overlays" / overlay, *more)
        if item["metadata"]["name"] == name and "spec" in item
    ]
    pod = found["spec"]["template"]["spec"]
    (chosen,) = [
        item for item in (*pod["initContainers"], *pod["containers"]) if item["name"] == container
    ]
    capabilities = chosen["securityContext"]["capabilities"]
    assert capabilities["drop"] == ["ALL"]
    return [capability.lower() for capability in capabilities.get("add", ())]


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
    options = generator.get("options", {})
    is_plain = options.get("disableNameSuffixHash", False)
    name = generator["name"] + ("" if is_plain else f"-{_digest(data)}")
    metadata = {"name": name, "namespace": generator["namespace"]}
    if "labels" in options:
        metadata["labels"] = options["labels"]
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _digest(data: dict[str, str]) -> str:
    """Of a ConfigMap's content, in letters that spell no words."""
    # As Go writes JSON. kustomize looks for the name where none is.
    text = json.dumps(
        {"data": data, "kind": "ConfigMap", "name": ""},
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
    )
    for each in "<>&":
        text = text.replace(each, f"\\u{ord(each):04x}")
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    return digest.translate(str.maketrans("013ae", "ghkmt"))


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
    """A target that is not there is no error; its name is a pattern of whole names."""
    for item in objects:
        is_named = re.fullmatch(target["name"], item["metadata"]["name"])
        if item["kind"] == target["kind"] and is_named:
            _operate(item, operations)


def _operate(item: Object, operations: list[Object]) -> None:
    for operation in operations:
        place: Any = item
        *parents, last = operation["path"].strip("/").split("/")
        for key in parents:
            place = place[int(key)] if isinstance(place, list) else place[key]
        is_new = operation["op"] == "add"
        assert is_new or operation["op"] == "replace", f"this does not know {operation['op']}"
        if last == "-":
            place.append(operation["value"])
        elif is_new and isinstance(place, list):
            place.insert(int(last), operation["value"])
        else:
            place[last] = operation["value"]


def _name_image(objects: list[Object], image: Object) -> None:
    for pod in _pods(objects):
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            if container["image"] == image["name"]:
                container["image"] = f"{image['newName']}:{image['newTag']}"
