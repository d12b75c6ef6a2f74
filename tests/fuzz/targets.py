"""Every target: importing this module registers them."""

from __future__ import annotations

from tests.fuzz import (  # noqa: F401  for what they register
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

__all__ = ["TARGETS"]
