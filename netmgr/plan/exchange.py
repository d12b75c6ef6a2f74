"""The lock as a list of prefixes for other programs, and the same lock out of such a list.

The first prefix of a site has the site's whole entry of the lock; plan.yaml is not in the list.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from typing import Any

from netmgr.documents.diagnostics import listed
from netmgr.documents.sites import HUB
from netmgr.errors import ConfigError
from netmgr.plan import files
from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import LockDocument, digest_of
from netmgr.plan.render.map import Region, regions

Row = dict[str, Any]
"""A prefix; `lock` has parts of the lock by site, and under "" what is no site's."""

COLUMNS = ("prefix", "vrf", "status", "role", "scope_type", "scope_name", "description", "comments")
"""What NetBox 4.6 imports prefixes from, without columns that netmgr could not fill."""

_STATUSES = dict.fromkeys(("pool", "prefix"), "container")
_STATUSES |= dict.fromkeys(("reserve", "excluded"), "reserved")
_LARGEST_CELL, _LONGEST = 1 << 24, 200
"""Characters of a cell that is read, and of NetBox's descriptions."""


def rows(plan: PlanDocument, lock: LockDocument) -> Iterator[Row]:
    """The pools, then what the plan's map shows, with statuses that NetBox knows."""
    head = files.sealed(lock)
    parts = {HUB: head.pop(HUB), **head.pop("clusters"), "": head}
    pools = [Region(pool.prefix, "", "pool", note=pool.owner) for pool in plan.pools.keyed()]
    for region in (*pools, *regions(plan, lock)):
        site, role, note = region.owner, region.role, region.note
        if role in {"nodes", "pods"}:  # parts of their subnet
            continue
        is_former = site in lock.clusters and lock.clusters[site].tombstone
        status = _STATUSES.get(role, "deprecated" if is_former else "active")
        part = {site: parts.pop(site)} if site in parts else {}
        about = {"prefix": str(region.prefix), "status": status, "role": role, "site": site}
        words = " ".join(filter(None, (site, role, note)))
        yield {**about, "description": f"{plan.name}: {words}"[:_LONGEST], "lock": part}


def to_csv(listing: Iterable[Row]) -> str:
    """Rows as NetBox imports them: a prefix comes once, and parts of the lock are comments."""
    merged: dict[str, Row] = {}
    for row in listing:
        former = merged.get(row["prefix"], {"lock": {}})
        merged[row["prefix"]] = row | {"lock": former["lock"] | row["lock"]}
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in merged.values():
        writer.writerow(row | {"comments": json.dumps(row["lock"]) if row["lock"] else ""})
    return text.getvalue()


def read_lock(text: str, source: str, plan: PlanDocument) -> tuple[LockDocument, list[str]]:
    """The lock that a list of either form was made of, and the prefixes in it that are others'.

    ConfigError if it is no such list, or anything of the lock is missing or was changed.
    """
    parts: Row = {}
    prefixes, others = set(), []
    try:
        for row in _read(text):
            if not str(row["description"]).startswith(f"{plan.name}: "):
                others.append(str(row["prefix"]))
                continue
            prefixes.add(row["prefix"])
            parts |= row["lock"] if "lock" in row else json.loads(row["comments"] or "{}")
        whole = {**parts.pop(""), HUB: parts.pop(HUB), "clusters": dict(sorted(parts.items()))}
        lock = LockDocument.model_validate(whole)
    except (KeyError, TypeError, ValueError, RecursionError, csv.Error):
        message = f"{source}: is no whole export of the plan {plan.name}, as JSON or as CSV"
        remedy = "a CSV needs the columns prefix, description and comments as they were exported"
        raise ConfigError(message, remedy) from None
    missing = {row["prefix"] for row in rows(plan, lock) if row["site"]} - prefixes
    if missing or lock.digest != digest_of(lock):
        fault = f"rows are missing or were changed: {listed(sorted(missing)) or 'their comments'}"
        raise ConfigError(f"{source}: {fault}", "a lock is not edited: change plan.yaml instead")
    return lock.model_copy(update={"digest": ""}), others


def _read(text: str) -> Iterable[Row]:
    if text.lstrip().startswith("{"):
        return list(json.loads(text)["prefixes"])
    csv.field_size_limit(_LARGEST_CELL)
    # What NetBox exports has the columns' titles.
    head, _, body = text.partition("\n")
    return csv.DictReader(io.StringIO(f"{head.lower()}\n{body}"))
