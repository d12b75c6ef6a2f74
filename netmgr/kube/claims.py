"""Claims (pure): which Node holds which place, and since when a place rests, as the cluster itself remembers it.

They stand in ConfigMaps, each with 256 places of one node pool, and are written before the Node
is: a write names the resourceVersion it is based on, so that of two controllers that give the
same place away one is refused, whoever holds the lease. A restarted or another controller
reads them and knows all that its predecessor knew, resting places included.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from netmgr.errors import StateError
from netmgr.kube.places import Place, Places, Slot
from netmgr.prefixes import Prefix

SHARD = 256
"""Places in one ConfigMap: at most 100 kB, far from etcd's limit of 1.5 MB, and cheap to write again."""

LABEL = "netmgr.io/claims-of"
"""Label of these ConfigMaps; its value is the cluster's name in the plan."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A place that is held, or rests because its Node is gone."""

    place: Place
    node: str
    uid: str
    released: float | None = None
    """When the Node was found gone, in seconds since the epoch; None while it is there."""


def shard_name(cluster: str, slot: Slot) -> str:
    """The ConfigMap in which a place stands."""
    return f"netmgr-claims-{cluster}-{slot.pool}-{slot.number // SHARD}"


def write(claim: Claim) -> str:
    """A claim as the value of its key."""
    said: dict[str, object] = {"node": claim.node, "uid": claim.uid, "ranges": [str(r) for r in claim.place.ranges]}
    if claim.released is not None:
        said["released"] = datetime.fromtimestamp(claim.released, UTC).isoformat()
    return json.dumps(said)


def read(pool: str, data: Mapping[str, str]) -> Iterator[Claim]:
    """The claims in one ConfigMap's data, whose keys are numbers of places.

    Raises:
        StateError: something there is no claim.
    """
    for key, value in data.items():
        try:
            said: dict[str, Any] = json.loads(value)
            slot = Slot(pool, int(key))
            released = datetime.fromisoformat(said["released"]).timestamp() if "released" in said else None
            place = Place.of(slot, map(Prefix.parse, said["ranges"]))
            yield Claim(place, str(said["node"]), str(said["uid"]), released)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StateError(
                f"claim {key} of node pool {pool} cannot be read: {error}; "
                "restore it from the Node that has the place, or remove the key if there is none"
            ) from None


def moved(places: Places, claims: Mapping[Slot, Claim]) -> Iterator[str]:
    """What a plan would move or forget that Nodes hold, or that rests: a sentence for each. Empty: it may be taken."""
    for slot, claim in sorted(claims.items()):
        planned = places.at(slot)
        if planned is None or planned.ranges != claim.place.ranges:
            had = ", ".join(map(str, claim.place.ranges))
            now = ", ".join(map(str, planned.ranges)) if planned else "nothing"
            holder = f"Node {claim.node}" if claim.released is None else f"a place that rests after Node {claim.node}"
            yield f"{holder} ({slot}) has {had}, and the plan says {now}"
