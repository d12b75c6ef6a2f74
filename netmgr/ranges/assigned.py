"""The Node's ranges as the cluster has them now, in a file that the kubelet keeps up to date.

node.yaml has the ranges that the Node had when the agent's pod was started. Kubernetes never
changes a Node's podCIDRs, but a Node that is deleted and registered again gets new ones, and
another Node may get the old ones. So `netmgr controller` writes an annotation of the agent's pod,
and the pod's downward API volume is the file: no token, no watch and no request of the node's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from netmgr.documents.node import NodeDocument
from netmgr.errors import RangesUnknown
from netmgr.prefixes import Prefix

NODE_RANGES = "netmgr.io/node-ranges"
"""The annotation of an agent's pod."""

MAX_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class AssignedRanges:
    """The ranges of a Node at one of its versions."""

    node: str
    """The Node's UID; empty when there is no such Node any more, or it has no ranges yet."""
    version: int
    """The Node's resourceVersion, which grows also from one Node to the next of that name."""
    ranges: tuple[Prefix, ...]
    """The Node's ranges; without a Node those that it had."""

    @property
    def in_force(self) -> tuple[Prefix, ...]:
        """What new pods may have addresses of."""
        return self.ranges if self.node else ()

    def replaces(self, document: NodeDocument) -> bool:
        """Whether these are newer than the document's."""
        # Each names the resourceVersion of the Node that it was made from. After a reboot node.yaml
        # is newer, if the controller was away meanwhile. That a Node was deleted has no version.
        return not self.node or self.version > document.ranges_version

    def __str__(self) -> str:
        """The annotation's value."""
        ranges = [str(block) for block in self.ranges]
        return json.dumps({"node": self.node, "version": self.version, "ranges": ranges})

    @classmethod
    def parse(cls, text: str) -> AssignedRanges:
        """Read an annotation's value; ValueError if it is none."""
        try:
            content = json.loads(text)
            ranges = tuple(Prefix.parse(str(block)) for block in content["ranges"])
            return cls(str(content["node"]), int(content["version"]), ranges)
        except (KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"it is no object with node, version and ranges: {error}") from None


def read(document: NodeDocument) -> AssignedRanges | None:
    """What a document's file says, unless it is empty or older; RangesUnknown if unreadable."""
    if document.ranges_file is None:
        return None
    try:
        with document.ranges_file.open("rb") as file:
            text = file.read(MAX_BYTES).decode()
        # The annotation is written once the pod runs; until then the kubelet leaves the file empty.
        assigned = AssignedRanges.parse(text) if text.strip() else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RangesUnknown(
            f"{document.ranges_file}: {error}; remove the annotation {NODE_RANGES} of the agent's "
            "pod, and netmgr controller writes it again"
        ) from None
    return assigned if assigned is not None and assigned.replaces(document) else None


def current(document: NodeDocument) -> tuple[Prefix, ...]:
    """The ranges that a document's node has now, none without such a Node; raises as `read`."""
    assigned = read(document)
    return document.ranges if assigned is None else assigned.in_force


def describe_change(assigned: AssignedRanges | None, written: tuple[Prefix, ...]) -> str:
    """What the file changes in the ranges of node.yaml, for a person; empty if nothing."""
    if assigned is None or set(assigned.in_force) == set(written):
        return ""
    before = ", ".join(map(str, written))
    if not assigned.node:
        return (
            f"the Node was deleted: no new pod gets an address of {before} until the kubelet is "
            "restarted and has registered it again, and it has podCIDRs"
        )
    now = ", ".join(map(str, assigned.ranges))
    return f"the Node has other ranges since this pod was started: {now} instead of {before}"
