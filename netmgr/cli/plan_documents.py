"""`netmgr plan check --documents`: machines' documents, held against each other and against the plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from netmgr.errors import ConfigError

if TYPE_CHECKING:
    from netmgr.config import NodeDocument
    from netmgr.plan.document import PlanDocument
    from netmgr.plan.fleet import Contradiction
    from netmgr.plan.lock import LockDocument


def faults(folder: Path, planned: tuple[PlanDocument, LockDocument, Path] | None) -> list[str]:
    """What is wrong with the documents in `folder`, a line each with both places.

    Args:
        folder: holds the documents as `*.yaml`.
        planned: the plan, its lock and where the lock stands; None if there is none to hold them against.

    Raises:
        ConfigError: there is none, or one is no document; names every fault of every one.
    """
    from netmgr.plan.fleet import contradictions

    documents = _read(folder)
    found = list(contradictions(documents))
    if planned:
        from netmgr.render.departures import departures

        plan, lock, where = planned
        found += departures(documents, plan, lock, str(where))
    return [_told(each) for each in found]


def _read(folder: Path) -> dict[str, NodeDocument]:
    from netmgr.config import NodeDocument
    from netmgr.documents import load

    found: dict[str, NodeDocument] = {}
    refused: list[str] = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            found[str(path)] = load(path, NodeDocument)
        except ConfigError as error:
            refused.append(error.message)
    if refused:
        raise ConfigError("\n".join(refused))
    if not found:
        raise ConfigError(f"{folder}: holds no document; run: netmgr plan render machines --to {folder}")
    return found


def _told(each: Contradiction) -> str:
    from netmgr.documents import place

    at, beside = (place(Path(spot.source), spot.key) for spot in (each.at, each.beside))
    return f"{at}: {each.message} ({beside}); {each.remedy}"
