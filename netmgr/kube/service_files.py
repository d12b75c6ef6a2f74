"""Services and their EndpointSlices as files, so that a NAT host's agent needs no API.

One file for each Service that has an address, `<namespace>_<name>.json`: a v1 List of the
Service and its EndpointSlices, reduced to what translation needs. A file is replaced in one step,
and only when its content changes; it goes with its Service.

Files are first written when both lists are complete, and a folder that did not exist appears with
all its files at once: a reader never takes a half-known cluster for an empty one.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, TypeVar

from netmgr.errors import StateError
from netmgr.kube.api import Object

log = logging.getLogger(__name__)

OWNER = "kubernetes.io/service-name"
"""Label of an EndpointSlice: the Service it belongs to."""

Key = TypeVar("Key")

SUFFIX = ".json"
NEW = ".new"
"""The file being written; readers ignore names that begin with a dot."""

# ExternalName has no clusterIP, a new Service an empty one, and a headless one the word None.
NO_ADDRESS = (None, "", "None")


class Name(NamedTuple):
    """A Service's namespace and name."""

    namespace: str
    service: str

    @property
    def file(self) -> str:
        """The file's name. Kubernetes names have no underscore, so no two Services share a file."""
        return f"{self.namespace}_{self.service}{SUFFIX}"


class ServiceFiles:
    """Keeps the folder in step with the cluster. Safe for threads: each kind has a reflector."""

    def __init__(self, folder: Path) -> None:
        """Touch nothing yet."""
        self._folder = folder
        self._lock = threading.Lock()
        self._services: dict[Name, Object] = {}
        self._slices: dict[Name, dict[str, Object]] = {}
        self._written: dict[str, str] = {}
        self._lists: set[str] = set()
        self.services = _Services(self)
        self.slices = _Slices(self)

    def set_services(self, services: dict[Name, Object]) -> None:
        """Replace all Services."""
        with self._lock:
            self._services = services
            self._complete("services")

    def set_slices(self, slices: dict[Name, dict[str, Object]]) -> None:
        """Replace all slices."""
        with self._lock:
            self._slices = slices
            self._complete("slices")

    def set_service(self, name: Name, service: Object | None) -> None:
        """Add, update or (None) remove a Service."""
        with self._lock:
            _put(self._services, name, service)
            self._update(name)

    def set_slice(self, owner: Name, name: str, found: Object | None) -> None:
        """Add, update or (None) remove a slice."""
        with self._lock:
            _put(self._slices.setdefault(owner, {}), name, found)
            if not self._slices[owner]:
                del self._slices[owner]
            self._update(owner)

    def _complete(self, kind: str) -> None:
        self._lists.add(kind)
        if len(self._lists) == len(("services", "slices")):
            self._reconcile()

    def _reconcile(self) -> None:
        """Write all files, and remove those that a predecessor left."""
        wanted = {
            name.file: self._text(name)
            for name, service in self._services.items()
            if _has_address(service)
        }
        try:
            if not self._folder.exists():
                self._appear(wanted)
            self._written = {
                path.name: path.read_text() for path in self._folder.glob(f"*{SUFFIX}")
            }
        except (OSError, UnicodeDecodeError) as error:
            raise StateError(f"{self._folder}: cannot be read or made: {error}") from None
        # Files of Services that were deleted while no process watched.
        for file in self._written.keys() - wanted.keys():
            self._remove(file)
        for file, text in wanted.items():
            self._write(file, text)
        log.info("services-complete folder=%s services=%s", self._folder, len(wanted))

    def _appear(self, wanted: dict[str, str]) -> None:
        new = self._folder.with_name(f".{self._folder.name}.new")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        for file, text in wanted.items():
            (new / file).write_text(text)
        # The rename shows the whole folder at once.
        new.rename(self._folder)

    def _update(self, name: Name) -> None:
        service = self._services.get(name)
        if len(self._lists) < len(("services", "slices")):
            return
        if service is not None and _has_address(service):
            self._write(name.file, self._text(name))
        elif name.file in self._written:
            self._remove(name.file)

    def _text(self, name: Name) -> str:
        slices = self._slices.get(name, {})
        # Sorted: the order of events must not change the text, because a changed file wakes every
        # reader.
        items = [self._services[name], *(slices[key] for key in sorted(slices))]
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})

    def _write(self, file: str, text: str) -> None:
        if self._written.get(file) == text:
            return
        # One name is enough: only this process writes into the folder.
        new = f"{self._folder}/{NEW}"
        try:
            with open(new, "w", encoding="utf-8") as stream:  # noqa: PTH123  a Path costs a write
                stream.write(text)
            os.replace(new, f"{self._folder}/{file}")  # noqa: PTH105  as above
        except OSError as error:
            raise StateError(
                f"{self._folder}/{file}: cannot be written: {error.strerror}"
            ) from None
        self._written[file] = text

    def _remove(self, file: str) -> None:
        try:
            (self._folder / file).unlink(missing_ok=True)
        except OSError as error:
            raise StateError(
                f"{self._folder}/{file}: cannot be removed: {error.strerror}"
            ) from None
        self._written.pop(file, None)


class _Services:
    def __init__(self, files: ServiceFiles) -> None:
        self._files = files

    def replace(self, objects: Iterable[Object]) -> None:
        self._files.set_services({_name(found): _service(found) for found in objects})

    def change(self, found: Object) -> None:
        self._files.set_service(_name(found), _service(found))

    def delete(self, found: Object) -> None:
        self._files.set_service(_name(found), None)


class _Slices:
    """Follows EndpointSlices. One without a Service is ignored; one may change its Service."""

    def __init__(self, files: ServiceFiles) -> None:
        self._files = files
        self._owners: dict[tuple[str, str], Name] = {}
        """The Service of each slice (namespace and name) at its last event."""

    def replace(self, objects: Iterable[Object]) -> None:
        slices: dict[Name, dict[str, Object]] = {}
        owners: dict[tuple[str, str], Name] = {}
        for found in objects:
            for owner in _owner(found):
                slices.setdefault(owner, {})[found["metadata"]["name"]] = _slice(found)
                owners[_name(found)] = owner
        self._owners = owners
        self._files.set_slices(slices)

    def change(self, found: Object) -> None:
        name, owners = found["metadata"]["name"], _owner(found)
        # Its label may have changed: then the Service it left must lose its endpoints.
        if self._owners.get(_name(found)) not in owners:
            self.delete(found)
        for owner in owners:
            self._owners[_name(found)] = owner
            self._files.set_slice(owner, name, _slice(found))

    def delete(self, found: Object) -> None:
        owner = self._owners.pop(_name(found), None)
        if owner is not None:
            self._files.set_slice(owner, found["metadata"]["name"], None)


def _put(held: dict[Key, Object], key: Key, value: Object | None) -> None:
    if value is None:
        held.pop(key, None)
    else:
        held[key] = value


def _name(found: Object) -> Name:
    return Name(found["metadata"]["namespace"], found["metadata"]["name"])


def _owner(found: Object) -> list[Name]:
    service = found["metadata"].get("labels", {}).get(OWNER)
    return [Name(found["metadata"]["namespace"], service)] if service else []


def _has_address(service: Object) -> bool:
    return service["spec"].get("clusterIP") not in NO_ADDRESS


def _service(found: Object) -> Object:
    metadata = {key: found["metadata"][key] for key in ("namespace", "name")}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": found["spec"]}


def _slice(found: Object) -> Object:
    metadata = {key: found["metadata"][key] for key in ("namespace", "name")}
    labels = {OWNER: found["metadata"]["labels"][OWNER]}
    # The API server sends null for a list without entries.
    content = {key: found.get(key) or [] for key in ("endpoints", "ports")}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": metadata | {"labels": labels},
        "addressType": found["addressType"],
        **content,
    }
