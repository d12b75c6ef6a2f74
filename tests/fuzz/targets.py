"""Every target: importing this module registers them."""

from __future__ import annotations

from tests.fuzz import (
    of_cluster,
    of_cni,
    of_documents,
    of_exporter,
    of_kernel,
    of_launcher,
    of_rules,
    of_state,
)
from tests.fuzz.target import TARGETS

GROUPS = (of_cni, of_launcher, of_kernel, of_rules, of_documents, of_cluster, of_state, of_exporter)

__all__ = ["GROUPS", "TARGETS"]
