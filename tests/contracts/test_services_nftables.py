"""What can be done to the table of Services as a whole, and only in nftables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from netmgr.kernel import netns
from netmgr.prefixes import Address, Prefix
from netmgr.services.model import Endpoint, Frontend, Protocol, ServicePort
from netmgr.services.nftables import NftablesServices

pytestmark = pytest.mark.root

WANTED = {
    ServicePort(Address.parse("100.64.1.1"), Protocol.TCP, 80): Frontend(
        frozenset({Endpoint(Address.parse("10.1.0.9"), 80)})
    )
}


@pytest.fixture
def services(namespaces) -> Iterator[NftablesServices]:
    with netns.entered(namespaces("node").descriptor):
        made = NftablesServices([Prefix.parse("100.64.1.0/24")])
        try:
            made.reconcile(WANTED)
            yield made
        finally:
            made.close()


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (
            "add table inet netmgr-services { flags dormant; }",
            "table inet netmgr-services was dormant, so that nothing of it was in effect",
        ),
        (
            "add chain inet netmgr-services prerouting { policy drop; }",
            "chain prerouting was missing or altered",
        ),
    ],
)
def test_a_table_that_was_switched_off_or_drops_the_rest_is_told_and_put_right(
    services, program, harm, sentence
):
    made = program("nft --stateless list table inet netmgr-services")
    program("nft -f -", f"{harm}\n")
    assert services.reconcile(WANTED) == [sentence]
    assert program("nft --stateless list table inet netmgr-services") == made
    assert services.reconcile(WANTED) == []
