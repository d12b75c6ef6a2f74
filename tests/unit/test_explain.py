"""Every classification can be explained by a prefix of a document."""

from __future__ import annotations

import pytest

from netmgr.config import NodeDocument
from netmgr.documents import parse
from netmgr.explain import explain
from netmgr.model import Attachment, AttachmentKey, PodRef
from netmgr.prefixes import Address

DOCUMENT = parse(
    """apiVersion: netmgr.io/v1alpha1
kind: Node
node: {name: node-a}
ranges: [10.1.0.0/28]
internal: [10.0.0.0/8, 198.51.100.0/24]
""",
    "node.yaml",
    NodeDocument,
)
POD = Attachment(AttachmentKey("c", "eth0"), PodRef("ns", "web"), (Address.parse("10.1.0.3"),), "nm0", "")


@pytest.mark.parametrize(
    ("address", "role", "prefix", "because", "counted"),
    [
        ("10.1.0.3", "pod", "10.1.0.0/28", "ranges[0] of node.yaml", False),
        ("10.1.0.4", "range", "10.1.0.0/28", "ranges[0] of node.yaml", False),
        ("10.9.9.9", "internal", "10.0.0.0/8", "internal[0] of node.yaml", False),
        ("198.51.100.1", "internal", "198.51.100.0/24", "internal[1] of node.yaml", False),
        ("169.254.169.254", "special-use", "169.254.0.0/16", "special-use prefixes are never internet", False),
        ("203.0.113.1", "internet", "", "no prefix of node.yaml holds it", True),
        ("2001:db8::1", "internet", "", "no prefix of node.yaml holds it", True),
    ],
)
def test_the_longest_prefix_says_what_an_address_is(address, role, prefix, because, counted):
    answer = explain(DOCUMENT, Address.parse(address), [POD])
    assert (answer["role"], answer["prefix"], answer["because"]) == (role, prefix, because)
    assert answer["counted"] == answer["masqueraded"] == counted
    assert answer["pod"] == ("ns/web" if role == "pod" else "")
