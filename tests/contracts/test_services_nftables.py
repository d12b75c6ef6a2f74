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


@pytest.mark.parametrize(
    ("harm", "described"),
    [
        (
            "add element inet netmgr-services services4 { 100.64.1.9 . icmp . 80 : goto refused }",
            "an unknown protocol: elements not ours: 1",
        ),
        (
            "add chain inet netmgr-services any4-99999999999",
            "chain any4-99999999999 is not ours",
        ),
    ],
)
def test_what_no_service_can_be_is_removed_as_anything_that_is_not_ours(
    services, program, harm, described
):
    made = program("nft --stateless list table inet netmgr-services")
    program("nft -f -", f"{harm}\n")
    assert services.held() == WANTED
    assert services.reconcile(WANTED) == [described]
    assert program("nft --stateless list table inet netmgr-services") == made


def test_hits_of_what_no_service_can_be_are_left_out(services, program):
    program("nft -f -", "add element inet netmgr-services vip4 { 100.64.1.9 . icmp . 80 }\n")
    assert services.hits() == dict.fromkeys(WANTED, 0)
