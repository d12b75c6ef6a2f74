"""What is posted, and where."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from netmgr.model import Traffic


@dataclass(frozen=True, slots=True)
class Amount:
    """Bytes (IP headers included) and packets."""

    bytes: int = 0
    packets: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.bytes + other.bytes, self.packets + other.packets)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.bytes - other.bytes, self.packets - other.packets)


NOTHING = Amount()


class Scope(StrEnum):
    """What kind of total an account is."""

    POD = "pod"
    NAMESPACE = "namespace"
    HOOK = "hook"
    AUDIT = "audit"


class Account(NamedTuple):
    """Where bytes are posted: a pod (namespace, name), a namespace, a hook (chain, family), or a sum of the audit."""

    scope: Scope
    owner: str
    name: str
    traffic: Traffic


class PodName(NamedTuple):
    """Key of a pod's series; the UID is not in it, so that a StatefulSet's pod continues its own."""

    namespace: str
    name: str
