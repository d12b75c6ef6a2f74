"""What the Kubernetes room keeps in files and objects: without an API server."""

from __future__ import annotations

import pytest

from netmgr.errors import StateError
from netmgr.kube.claim_store import read


@pytest.mark.parametrize(
    "value",
    [
        "",
        "{",
        "{}",
        '{"node": "a", "uid": "u", "ranges": ["10.0.0.1/8"]}',
        "[1]",
        '{"node": "a", "uid": "u", "ranges": [5]}',
        '{"node": "a", "uid": "u", "ranges": [], "released": "9999-12-31T23:59:59-23:59"}',
        '{"node": "a", "uid": "u", "ranges": [], "released": "0001-01-01T00:00:00+23:59"}',
        '{"node": "a", "uid": "u", "ranges": [], "released": 5}',
    ],
)
def test_a_claim_that_is_none_is_refused_by_its_key(value: str) -> None:
    with pytest.raises(StateError, match="claim 7 of node pool gpu cannot be read"):
        list(read("gpu", {"7": value}))
