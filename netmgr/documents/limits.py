"""Limits: how much internet traffic pods may have, each by itself or those of a namespace together.

What is internet is decided as for accounting. Internal traffic is not limited.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from netmgr.documents.fields import Document
from netmgr.documents.quantity import bit_rate, quantity
from netmgr.model import PodRef, Traffic

BitRate = Annotated[int, BeforeValidator(bit_rate)]
"""Bits a second."""

Bytes = Annotated[int, BeforeValidator(quantity), Field(ge=1)]


class Limit(Document):
    """A limit for some pods, each by itself (`pods`), or for each of some namespaces."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    pods: Annotated[str, Field(pattern=r"^[^/]+/[^/]+$")] | None = None
    """NAMESPACE/NAME, where * and ? stand for any characters (fnmatch(3)); / is in neither."""
    namespaces: Annotated[str, Field(pattern=r"^[^/]+$")] | None = None
    """Namespaces, likewise. The pods that a namespace has on this node share the limit."""
    internet_in: Annotated[BitRate | None, Field(alias="internet-in")] = None
    """Bits a second from the internet, Ethernet headers included."""
    internet_out: Annotated[BitRate | None, Field(alias="internet-out")] = None
    """Bits a second to the internet, likewise."""
    burst: Bytes | None = None
    """Bytes that may pass at once after a pause; default: what passes in 5 ms, at least 64 KiB."""

    @model_validator(mode="after")
    def _is_complete(self) -> Limit:
        if (self.pods is None) == (self.namespaces is None):
            raise ValueError("give either pods or namespaces")
        if self.internet_in is None and self.internet_out is None:
            raise ValueError("limits nothing; give internet-in, internet-out or both")
        return self

    def __str__(self) -> str:
        """What it says, in the document's own words."""
        given = self.model_dump(by_alias=True, exclude_none=True)
        return ", ".join(f"{key} {value}" for key, value in given.items())

    def rate(self, traffic: Traffic) -> int | None:
        """Bits a second of one direction."""
        return self.internet_in if traffic.is_inward else self.internet_out

    def covers(self, pod: PodRef) -> bool:
        """Whether it is for this pod or its namespace."""
        if self.namespaces is not None:
            return fnmatchcase(pod.namespace, self.namespaces)
        namespace, _, name = (self.pods or "").partition("/")
        return fnmatchcase(pod.namespace, namespace) and fnmatchcase(pod.name, name)
