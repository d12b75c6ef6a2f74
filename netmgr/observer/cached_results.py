"""Reads libcni's result cache: for each file a pod, its addresses and the host ends of its links.

libcni (containernetworking/cni, libcni/api.go) writes one file per container and interface
after ADD has succeeded and before the runtime hears of it, and removes it after DEL:

    {"kind": "cniCacheV1", "containerId": …, "ifName": …, "networkName": …, "netns": …,
     "cniArgs": [["K8S_POD_NAMESPACE", "research"], …], "config": …, "result": {…}}

The files are foreign data. A bad file ends in an `IgnoreReason`, never in an error: one broken file
must not keep other pods from being counted, and none may block the reader.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from cni.runtime_config import pod_rates
from netmgr.errors import InvalidNetworkConfig, StateError
from netmgr.file_version import FileVersion
from netmgr.model import AttachmentKey, PodRate, PodRef
from netmgr.prefixes import Address

KIND = "cniCacheV1"
MOST_BYTES = 1 << 20
"""Larger files are not read. Real ones have a few kilobytes."""

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
_MOST_CHARACTERS = 253  # of a DNS subdomain, which a pod's name is
_MOST_ADDRESSES = 64
_PAIR = 2


class IgnoreReason(StrEnum):
    """Why a file of the cache is ignored. Values are label values."""

    UNREADABLE = "unreadable"
    """Not a regular file, or it cannot be opened."""
    TOO_LARGE = "too-large"
    """It has more than `MOST_BYTES`."""
    MALFORMED = "malformed"
    """Not a cniCacheV1 document with a result; perhaps it is still being written."""
    UNFIT_NAME = "unfit-name"
    """Its container id, interface, namespace, pod or UID is not a valid CNI or Kubernetes name."""
    WITHOUT_ADDRESS = "without-address"
    """Its result gives the pod no address."""


class UnusableFile(ValueError):
    def __init__(self, reason: IgnoreReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class CachedResult:
    """One interface of one pod as the cache has it."""

    key: AttachmentKey
    pod: PodRef
    addresses: tuple[Address, ...]
    host_links: tuple[str, ...]
    """Interfaces of the result on the host: one end of a veth, perhaps a bridge."""
    written_at: float
    """When the file was written, in seconds since the epoch."""
    rates: tuple[PodRate, ...] = ()
    """The limits that the pod brought along; none if they cannot be understood."""


def parse(content: bytes, written_at: float) -> CachedResult:
    """Read one file, or raise UnusableFile with the reason."""
    try:
        entry = json.loads(content)
    # Nested lists may exceed Python's recursion limit in the decoder.
    except (ValueError, RecursionError):
        raise UnusableFile(IgnoreReason.MALFORMED) from None
    if not isinstance(entry, dict):
        raise UnusableFile(IgnoreReason.MALFORMED)
    result = entry.get("result")
    if entry.get("kind") != KIND or not isinstance(result, dict):
        raise UnusableFile(IgnoreReason.MALFORMED)
    key = AttachmentKey(_name(entry.get("containerId")), _name(entry.get("ifName")))
    addresses = tuple(dict.fromkeys(_addresses(result)))
    if not addresses:
        raise UnusableFile(IgnoreReason.WITHOUT_ADDRESS)
    return CachedResult(
        key,
        _pod(entry.get("cniArgs"), key),
        addresses,
        tuple(_host_links(result)),
        written_at,
        _rates(entry.get("capabilityArgs")),
    )


def _pod(pairs: object, key: AttachmentKey) -> PodRef:
    # As netmgr's own ADD does: outside Kubernetes the namespace is "-" and the name the
    # container's.
    given: dict[str, object] = {}
    for pair in pairs if isinstance(pairs, list) else ():
        if isinstance(pair, list) and len(pair) == _PAIR and isinstance(pair[0], str):
            given[pair[0]] = pair[1]
    return PodRef(
        namespace=_name(given.get("K8S_POD_NAMESPACE") or "-", also="-"),
        name=_name(given.get("K8S_POD_NAME") or key.container_id),
        uid=_name(given.get("K8S_POD_UID") or "", also=""),
    )


def _name(value: object, also: str | None = None) -> str:
    if not isinstance(value, str):
        raise UnusableFile(IgnoreReason.MALFORMED)
    if value != also and (len(value) > _MOST_CHARACTERS or not _NAME.fullmatch(value)):
        raise UnusableFile(IgnoreReason.UNFIT_NAME)
    return value


def _rates(given: object) -> tuple[PodRate, ...]:
    # libcni keeps all that the runtime offered, whatever the plugin's capabilities are.
    try:
        return pod_rates(given) if isinstance(given, dict) else ()
    except InvalidNetworkConfig:
        return ()


def _addresses(result: Mapping[str, object]) -> Iterator[Address]:
    # `ips` since CNI 0.3.0, `ip4` and `ip6` before.
    listed = result.get("ips")
    texts = [_field(item, "address") for item in listed] if isinstance(listed, list) else []
    texts += [_field(result.get(old), "ip") for old in ("ip4", "ip6")]
    for text in texts[:_MOST_ADDRESSES]:
        if text:
            try:
                yield Address.parse(text.partition("/")[0])
            except ValueError:
                raise UnusableFile(IgnoreReason.MALFORMED) from None


def _host_links(result: Mapping[str, object]) -> Iterator[str]:
    listed = result.get("interfaces")
    for item in listed if isinstance(listed, list) else ():
        name = _field(item, "name")
        # The specification leaves `sandbox` empty for interfaces of the host.
        if name and not _field(item, "sandbox"):
            yield name


def _field(item: object, name: str) -> str:
    value = item.get(name) if isinstance(item, dict) else None
    return value if isinstance(value, str) else ""


class CacheListing(NamedTuple):
    """What the directory holds: results, and the number of ignored files by reason."""

    results: tuple[CachedResult, ...]
    unusable: Mapping[IgnoreReason, int]


class ResultCache:
    """The directory of results. Only files that changed are read again. Not thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, tuple[FileVersion, CachedResult | IgnoreReason]] = {}

    def list(self) -> CacheListing:
        """List every result; a directory that does not exist is empty."""
        try:
            with os.scandir(self._directory) as entries:
                # Only names: a file's status is read once, by the same lstat that its version is
                # from.
                names = [entry.name for entry in entries]
        except (FileNotFoundError, NotADirectoryError):
            names = []
        except OSError as error:
            raise StateError(f"{self._directory}: cannot be listed: {error.strerror}") from None
        # Rebuilt each time, so that files that are gone are forgotten.
        self._known = {name: read for name in names if (read := self._look(name))}
        results: list[CachedResult] = []
        unusable: Counter[IgnoreReason] = Counter()
        for _, outcome in self._known.values():
            if isinstance(outcome, CachedResult):
                results.append(outcome)
            else:
                unusable[outcome] += 1
        return CacheListing(tuple(results), unusable)

    def _look(self, name: str) -> tuple[FileVersion, CachedResult | IgnoreReason] | None:
        """Look at one file; None if it is gone."""
        path = self._directory / name
        try:
            status = path.lstat()
        except OSError:
            return None
        version = FileVersion.of(status)
        known = self._known.get(name)
        if known is not None and known[0] == version:
            return known
        if not stat.S_ISREG(status.st_mode):
            return version, IgnoreReason.UNREADABLE
        try:
            return version, parse(_read(path), status.st_mtime)
        except UnusableFile as fault:
            return version, fault.reason


def _read(path: Path) -> bytes:
    # Between lstat and open the name may have become a link, a FIFO or a device: O_NOFOLLOW
    # refuses the link, O_NONBLOCK keeps a FIFO without a writer from blocking the open.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        raise UnusableFile(IgnoreReason.UNREADABLE) from None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnusableFile(IgnoreReason.UNREADABLE)
        try:
            # One byte more than allowed shows a file that grew since its status was read.
            content = file.read(MOST_BYTES + 1)
        except OSError:
            raise UnusableFile(IgnoreReason.UNREADABLE) from None
    if len(content) > MOST_BYTES:
        raise UnusableFile(IgnoreReason.TOO_LARGE)
    return content
