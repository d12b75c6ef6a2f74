"""A document whose role, sites, translation and routes contradict each other is refused with both
lines.
"""

from __future__ import annotations

import pytest

from netmgr.documents.loader import parse
from netmgr.documents.node import NodeDocument
from netmgr.documents.sites import SitePart, site_of
from netmgr.errors import ConfigError
from netmgr.prefixes import Address

SITES = """\
sites:
- name: hub
  prefixes: [10.0.0.0/20]
- name: a
  prefixes: [10.1.0.0/16, 'fd00:1::/56']
  services: [172.16.0.0/20, 'fd00:a::/112']
- name: b
  prefixes: [10.2.0.0/16]
  services: [172.16.16.0/20]
"""
HEAD = f"apiVersion: netmgr.io/v1alpha1\nkind: Node\nnode: {{name: m}}\n{SITES}"
NODE = HEAD + "site: a\nranges: [10.1.0.0/28]\n"
HOST = HEAD + "site: a\nrole: nat-host\n"
VIP_RANGE = "172.16.0.0/20"


def read(text: str) -> NodeDocument:
    return parse(text, "m.yaml", NodeDocument)


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return caught.value.message


OTHER, SITE = "[10.2.0.0/16]", "site: a"


@pytest.mark.parametrize(
    ("text", "before", "after", "message"),
    [
        (
            NODE,
            OTHER,
            "[10.1.128.0/17]",
            "11: sites[2].prefixes[0]: 10.1.128.0/17 of b overlaps 10",
        ),
        (NODE, OTHER, "[10.1.128.0/17]", "of a (line 8); an address is of one site"),
        (NODE, OTHER, "[10.0.0.0/8]", "prefixes[0]: 10.0.0.0/8 of b overlaps 10.0.0.0/20 of hub"),
        (NODE, "[172.16.16.0/20]", "[172.16.0.0/16]", "172.16.0.0/16 of b overlaps 172.16.0"),
        (NODE, "name: b", "name: a", "10: sites[2].name: a is named already (line 7); name every"),
        (NODE, SITE, "site: c", "13: site: c is not one of sites (line 4); there are hub, a, b"),
        (NODE, "site: a\n", "", "4: sites: site is missing; say which of the sites"),
        (
            NODE,
            SITE,
            "site: b",
            "14: ranges[0]: 10.1.0.0/28 lies in no prefix of b (line 11); ",
        ),
        (
            NODE,
            "{name: m}",
            "{name: m, addresses: [10.2.0.4]}",
            "3: node.addresses[0]: 10.2.0.4 lies in 10.2.0.0/16 of",
        ),
        (NODE, SITE, "site: a\nrole: hub-router", "13: site: a has no hub-router (line 14); a hub"),
        (NODE, SITE, "site: hub\nrole: hub-router", "15: ranges: a hub-router runs no pods (line "),
        (HOST, SITE, "site: hub", "13: site: the hub has no nat-host (line 14); name the spoke"),
        (HOST, SITE, SITE, "14: role: a nat-host needs nat; say what it translates"),
    ],
)
def test_a_role_and_its_site_must_agree(text, before, after, message):
    assert text.count(before) == 1
    assert message in refused(text.replace(before, after))


LENGTH = "is not of the length and family of 172.16.0.0/20 (line 17)"
HALF = "{vip_range: 172.16.0.0/21, service_cidr: 10.96.0.0/21}"
V6 = "{vip_range: 'fd00:a::/112', service_cidr: 'fd00:a::/112'}"


def translation(service_cidr: str, vip_range: str = VIP_RANGE) -> str:
    return f"{{vip_range: {vip_range}, service_cidr: {service_cidr}}}"


@pytest.mark.parametrize(
    ("services", "message"),
    [
        ([translation("10.96.0.0/19")], f"17: nat.services[0].service_cidr: 10.96.0.0/19 {LENGTH}"),
        ([translation("'fd00:99::/112'")], f"services[0].service_cidr: fd00:99::/112 {LENGTH}"),
        (
            [translation("10.96.0.0/20", "172.16.16.0/20")],
            "17: nat.services[0].vip_range: 172.16.16.0/20 lies in no VIP range of a (line 9)",
        ),
        ([translation("10.2.16.0/20")], "service_cidr: 10.2.16.0/20 overlaps 10.2.0.0/16 of b (li"),
        ([translation("10.1.16.0/20")], "service_cidr: 10.1.16.0/20 overlaps 10.1.0.0/16 of a (li"),
        (
            [HALF, translation("10.96.0.0/21", "172.16.8.0/21")],
            "18: nat.services[1].service_cidr: 10.96.0.0/21 overlaps 10.96.0.0/21 (line 17); tran",
        ),
        (
            [HALF, translation("10.97.0.0/22", "172.16.0.0/22")],
            "18: nat.services[1].vip_range: 172.16.0.0/22 overlaps 172.16.0.0/21 (line 17); trans",
        ),
        (
            [translation("172.16.8.0/21", "172.16.0.0/21")],
            "nat.services[0].service_cidr: 172.16.8.0/21 overlaps 172.16.0.0/20 of a (line 9)",
        ),
        (
            [translation("10.96.0.0/20"), f"{V6}\n  addresses: [10.1.0.4]"],
            "18: nat.services[1].vip_range: fd00:a::/112 is IPv6, and no address is (line 19); add",
        ),
        ([], "m.yaml:16: nat.services: "),
    ],
)
def test_a_translation_stays_inside_its_spoke_and_is_one_to_one(services, message):
    listed = "".join(f"  - {service}\n" for service in services)
    assert message in refused(f"{HOST}nat:\n  services:\n{listed}\n")


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        (
            "- {to: 10.2.8.0/24, via: 10.1.0.4}",
            "16: routes[0].to: 10.2.8.0/24 leads to 10.2.0.0/16",
        ),
        ("- {to: 10.0.1.0/24, via: 10.2.0.4}", "16: routes[0].via: 10.2.0.4 leads to 10.2.0.0/16"),
        ("- {to: 10.0.1.0/24, via: 'fd00:1::4'}", "routes[0].via: fd00:1::4 is not of the family"),
        ("- {to: 10.0.1.4, via: 10.1.0.4}", "routes[0].to: 10.0.1.4/32 is a single address, which"),
        (
            "- {to: 10.0.1.0/24, via: 10.1.0.4}\n- {to: 10.0.1.0/24, via: 10.1.0.5}",
            "m.yaml:17: routes[1].to: 10.0.1.0/24 has a route already (line 16); keep one",
        ),
    ],
)
def test_routes_lead_to_no_other_spoke(routes, message):
    assert message in refused(f"{NODE}routes:\n{routes}\n")


def test_only_a_nat_host_translates():
    text = f"{NODE}nat: {{services: [{{vip_range: {VIP_RANGE}, service_cidr: 10.96.0.0/20}}]}}\n"
    assert "m.yaml:15: nat: a node translates no Services; remove it" in refused(text)


@pytest.mark.parametrize(
    ("services", "identities"),
    [
        ([translation(VIP_RANGE)], [True]),
        ([translation("10.96.0.0/20"), V6], [False, True]),
        ([HALF, translation("10.97.0.0/21", "172.16.8.0/21")], [False, False]),
    ],
)
def test_vips_and_cluster_ips_may_be_the_same_addresses(services, identities):
    document = read(f"{HOST}nat: {{services: [{', '.join(services)}]}}\n")
    assert [service.is_identity for service in document.nat.services] == identities


def test_a_hub_router_needs_no_site_and_may_have_an_address_in_every_spoke():
    text = (
        HEAD.replace("{name: m}", "{name: m, addresses: [10.0.0.1, 10.1.0.1, 10.2.0.1]}")
        + "role: hub-router\n"
    )
    assert not read(text).wires_pods
    assert read(text + "routes:\n- {to: 172.16.16.0/20, via: 10.2.0.4}\n").routes


@pytest.mark.parametrize(
    ("address", "site", "part"),
    [
        ("10.0.0.1", "hub", SitePart.NODES),
        ("10.1.255.255", "a", SitePart.NODES),
        ("fd00:1::7", "a", SitePart.NODES),
        ("172.16.15.255", "a", SitePart.SERVICES),
        ("fd00:a::1", "a", SitePart.SERVICES),
        ("172.16.16.0", "b", SitePart.SERVICES),
    ],
)
def test_an_address_belongs_to_the_site_whose_prefix_holds_it(address, site, part):
    found = site_of(read(NODE).sites, Address.parse(address))
    assert (found.site, found.part) == (site, part)
    assert found.prefix.holds(Address.parse(address))


@pytest.mark.parametrize("address", ["10.3.0.0", "172.16.32.0", "203.0.113.1", "2001:db8::1"])
def test_an_address_of_no_site_belongs_to_none(address):
    assert site_of(read(NODE).sites, Address.parse(address)) is None
