"""Which devices a flowtable has, as the kernel lists them."""

from __future__ import annotations

import pytest

from netmgr.kernel import netlink
from netmgr.kernel.flowtables import _flowtable_of
from netmgr.kernel.netlink import attribute

NAME, PREFIX = 1, 2


@pytest.mark.parametrize(
    ("listed", "links", "others"),
    [
        (attribute(NAME, b"eth0\0"), ["eth0"], ["eth", "eth01"]),
        (attribute(PREFIX, b"nm\0"), ["nm", "nm1234"], ["eth0", "n"]),
        (attribute(NAME, b"nm"), ["nm1234"], ["eth0"]),  # Linux 6.16.0 to 6.16.5
        (attribute(PREFIX, b"nm\0") + attribute(NAME, b"eth0\0"), ["nm1", "eth0"], ["eth1"]),
        (b"", [], ["eth0"]),
    ],
)
def test_a_flowtable_has_devices_by_name_and_by_prefix(
    listed: bytes, links: list[str], others: list[str]
) -> None:
    text = {1: "theirs", 2: "quick", 3: netlink.encoded({3: listed})}
    flowtable = _flowtable_of(netlink.NFGENMSG.pack(1, 0, 0) + netlink.encoded(text))
    assert str(flowtable) == "quick of table inet theirs"
    assert [link for link in links + others if flowtable.has_any([link])] == links
