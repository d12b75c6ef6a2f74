"""Classes of prefixes that clouds publish, in each cloud's form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from netmgr.documents import loader
from netmgr.documents.classes import INTERNAL, disjoint
from netmgr.documents.node import NodeDocument
from netmgr.errors import ConfigError
from netmgr.prefixes import Family, Prefix
from netmgr.rules.model import Abilities
from netmgr.rules.policy import Policy, desired
from tests.builders import NODE_KEYS

AMAZON = {
    "syncToken": "1795000000",
    "createDate": "2026-11-18-10-00-00",
    "prefixes": [
        {"ip_prefix": "203.0.113.0/25", "region": "eu-1", "service": "S3"},
        {"ip_prefix": "203.0.113.0/24", "region": "eu-1", "service": "AMAZON"},
        {"ip_prefix": "203.0.113.0/25", "region": "eu-1", "service": "AMAZON"},
        {"ip_prefix": "198.51.100.0/24", "region": "us-1", "service": "S3"},
    ],
    "ipv6_prefixes": [{"ipv6_prefix": "2001:db8::/40", "region": "eu-1", "service": "S3"}],
}
GOOGLE = {
    "syncToken": "1795000000",
    "creationTime": "2026-11-18T10:00:00",
    "prefixes": [
        {"ipv4Prefix": "203.0.113.0/25", "service": "Google Cloud", "scope": "eu-1"},
        {"ipv6Prefix": "2001:db8::/40", "service": "Google Cloud", "scope": "eu-1"},
        {"ipv4Prefix": "198.51.100.0/24", "service": "Google Cloud", "scope": "us-1"},
    ],
}
AZURE = {
    "changeNumber": 300,
    "cloud": "Public",
    "values": [
        {
            "name": f"Storage.{region}",
            "properties": {
                "region": region,
                "systemService": "AzureStorage",
                "addressPrefixes": prefixes,
            },
        }
        for region, prefixes in (
            ("eu-1", ["203.0.113.0/25", "2001:db8::/40"]),
            ("us-1", ["198.51.100.0/24"]),
        )
    ],
}
KINDS = ("S3", "AMAZON")
IN_EUROPE = {"203.0.113.0/25", "2001:db8::/40"}


def document(*classes: dict[str, Any], **more: Any) -> NodeDocument:
    content = NODE_KEYS | {
        "node": {"name": "n", "addresses": ["10.0.0.1"]},
        "ranges": ["10.1.0.0/24"],
        "accounting": {"classes": list(classes)},
        **more,
    }
    return loader.parse(yaml.safe_dump(content), "node.yaml", NodeDocument)


def published(path: Path, content: Any, name: str = "cloud", **chosen: str) -> dict[str, Any]:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return {"name": name, "published": {"file": str(path), **chosen}}


def texts(prefixes: tuple[Prefix, ...]) -> set[str]:
    return {str(prefix) for prefix in prefixes}


@pytest.mark.parametrize(
    ("content", "service"),
    [(AMAZON, "S3"), (GOOGLE, "Google Cloud"), (AZURE, "AzureStorage")],
    ids=["amazon", "google", "azure"],
)
def test_a_class_has_what_a_cloud_publishes_of_a_region_and_service(tmp_path, content, service):
    path = tmp_path / "list.json"
    chosen = document(published(path, content, region="eu-1", service=service))
    assert texts(chosen.traffic_classes["cloud"]) == IN_EUROPE
    everywhere = document(published(path, content, service=service))
    assert texts(everywhere.traffic_classes["cloud"]) == {*IN_EUROPE, "198.51.100.0/24"}


def test_a_prefix_of_two_lists_is_of_the_class_that_is_named_first(tmp_path):
    shared = [{"ip_prefix": "11.5.0.0/16", "region": "eu-1", "service": kind} for kind in KINDS]
    content = AMAZON | {"prefixes": [*AMAZON["prefixes"], *shared]}
    both = document(
        published(tmp_path / "s3", content, "s3", service="S3", region="eu-1"),
        published(tmp_path / "all", content, "amazon", region="eu-1", service="AMAZON"),
    )
    pieces = dict(Policy.of(both).classifier.pieces)
    assert texts(pieces["s3"]) == {*IN_EUROPE, "11.5.0.0/16"}
    assert texts(pieces["amazon"]) == {"203.0.113.128/25"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is no list of a cloud's prefixes"),
        ("[]", "is no list of a cloud's prefixes"),
        ({"prefixes": AMAZON["prefixes"]}, "nobody knows how old it is"),
        ({"createDate": "d", "prefixes": [{"ip_prefix": "203.0.113.1/24"}]}, "host bits"),
        ({"createDate": "d", "prefixes": [5]}, "is no list"),
        ({"createDate": "d", "values": [{"name": "x"}]}, "is no list"),
        ({"createDate": "d", "prefixes": []}, "has 0 prefixes of this region and service"),
        (
            {
                "createDate": "d",
                "prefixes": [{"ip_prefix": f"11.{n // 256}.{n % 256}.0/25"} for n in range(2001)],
            },
            "has 2,001 prefixes of this region and service; choose others that have 1 to 2,000",
        ),
        ({"createDate": "d", "prefixes": [{"ip_prefix": "0.0.0.0/0"}]}, "is everything"),
    ],
)
def test_what_is_no_such_list_is_refused_by_file_and_line(tmp_path, content, words):
    with pytest.raises(ConfigError, match=rf"node\.yaml:\d+: accounting\.classes\[0\].*{words}"):
        document(published(tmp_path / "list", content))


def test_a_list_that_is_not_there_says_what_to_do(tmp_path):
    given = published(tmp_path / "list", AMAZON)
    (tmp_path / "list").unlink()
    with pytest.raises(ConfigError, match=r"list: No such file or directory; download the list"):
        document(given)


def test_ten_thousand_prefixes_are_cut_as_fast_as_they_are_read():
    """By the work, which is counted: comparing each with each would take minutes."""
    prefixes = [
        Prefix(Family.V4, (0x0B000000 + number) << 8 & 0xFFFFFFFF, 24) for number in range(10_000)
    ]
    claims = [(prefix, str(number % 3)) for number, prefix in enumerate(prefixes)]
    claims += [(Prefix.parse("11.0.0.0/8"), INTERNAL)]
    covered = []
    original = Prefix.overlaps

    def counting(self: Prefix, other: Prefix) -> bool:
        covered.append(None)
        return original(self, other)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Prefix, "overlaps", counting)
        disjoint(claims)
    assert len(covered) < 5 * len(claims)


def rules(number: int, abilities: Abilities) -> int:
    """How many rules there are for a class of so many prefixes."""
    prefixes = [f"11.{each // 128}.{each % 128 * 2}.0/24" for each in range(number)]
    policy = Policy.of(document({"name": "vendor", "prefixes": prefixes}))
    return sum(len(chain) for chain in desired(policy, (), abilities).chains.values())


@pytest.mark.parametrize(
    "abilities", [Abilities(), Abilities(verdict_maps=False)], ids=["nftables", "iptables"]
)
def test_the_number_of_rules_does_not_depend_on_that_of_prefixes(abilities):
    assert rules(50, abilities) == rules(1000, abilities)
