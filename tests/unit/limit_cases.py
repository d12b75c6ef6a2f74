"""Limits as documents say them, and pods for them."""

from __future__ import annotations

from netmgr.documents.limits import Limit
from netmgr.model import Attachment, AttachmentKey, PodRef
from netmgr.prefixes import Address
from tests.fakes.sites import document

NOW = 1_780_000_000.0
MONTHLY = {"history_hours": 744, "history_rows": 163_680}
"""What quotas of a month need."""


def limits(*items: dict, **accounting: object) -> tuple[Limit, ...]:
    return document("node", limits=list(items), accounting=accounting or MONTHLY).limits


def pod(namespace: str, name: str, link: str = "") -> Attachment:
    key = AttachmentKey(f"{namespace}-{name}", "eth0")
    found = PodRef(namespace, name)
    return Attachment(key, found, (Address.parse("10.0.0.1"),), link or f"nm{name}", "")
