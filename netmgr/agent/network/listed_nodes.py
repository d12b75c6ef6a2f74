"""The file with the cluster's nodes, as `netmgr controller` listed them last.

The kubelet renews it, up to 90 seconds after the controller wrote it. While it is missing or cannot
be read, the routes stay as they are: nodes that are not known are not gone.
"""

from __future__ import annotations

import logging
from pathlib import Path

from netmgr.documents import node_list
from netmgr.documents.node_list import MAX_BYTES, ListedNode
from netmgr.errors import ConfigError
from netmgr.file_version import FileVersion, version_of

log = logging.getLogger(__name__)


class ListedNodes:
    """Reads the list again whenever its file was replaced or written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version: FileVersion | None = None
        self._nodes: tuple[ListedNode, ...] | None = None

    def read(self) -> tuple[ListedNode, ...]:
        """The nodes, as of now.

        Raises:
            ConfigError: there is no file, or it is no such list.
        """
        version = version_of(self._path)
        if self._nodes is None or version is None or version != self._version:
            self._nodes = None
            try:
                with self._path.open(encoding="utf-8") as file:
                    self._nodes = node_list.parse(file.read(MAX_BYTES + 1))
            except FileNotFoundError:
                raise ConfigError(
                    f"{self._path}: is not there: the kubelet brings it up to 90 s after netmgr "
                    "controller --routes nodes wrote the ConfigMap netmgr-nodes"
                ) from None
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"{self._path}: {error}; netmgr controller writes it again if you remove what "
                    "the ConfigMap netmgr-nodes has"
                ) from None
            self._version = version
            log.info("nodes-read number=%s file=%s", len(self._nodes), self._path)
        return self._nodes
