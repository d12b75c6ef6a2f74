"""What of Azure's instance metadata becomes the pool, and what is refused as none."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from netmgr.documents.node import NodeDocument
from netmgr.errors import RangesUnknown
from netmgr.prefixes import Family, Prefix
from netmgr.ranges.answers import RangeOffer
from netmgr.ranges.azure import ENDPOINT, pool, read
from netmgr.ranges.metadata import MetadataEndpoint, fetch
from netmgr.ranges.sources import MOST_BLOCKS, validate
from tests.builders import NODE_KEYS
from tests.waiting import PATIENCE

BLOCK = "10.0.0.16/28"
DOCUMENTED = """
{"interface":[{"ipv4":{"ipAddress":[{"privateIpAddress":"10.144.133.132","publicIpAddress":""}],
"subnet":[{"address":"10.144.133.128","prefix":"26"}]},"ipv6":{"ipAddress":[]},"macAddress":"0011AAFFBB22"}]}
"""


def metadata(*interfaces: tuple[list[Any], list[Any]]) -> bytes:
    def part(addresses: list[Any]) -> dict[str, Any]:
        entries = [
            a if isinstance(a, dict) else {"privateIpAddress": a, "publicIpAddress": ""}
            for a in addresses
        ]
        return {"ipAddress": entries, "subnet": [{"address": "10.0.0.0", "prefix": "16"}]}

    parts = [{"ipv4": part(v4), "ipv6": part(v6)} for v4, v6 in interfaces]
    return json.dumps({"interface": parts}).encode()


def shown(body: bytes) -> list[str]:
    return [str(block) for block in validate(pool(body), document(), {}).ranges]


def test_the_documented_example_has_the_machines_own_address_and_no_pool():
    assert shown(DOCUMENTED.encode()) == []


def test_all_but_the_first_address_of_every_interface_and_family_is_the_pool():
    body = metadata(
        (["10.0.0.4", "10.0.0.5", "10.0.0.6"], ["2001:db8::4", "2001:db8::5"]),
        (["10.1.0.4", "10.1.0.9"], []),
    )
    assert shown(body) == ["10.0.0.5/32", "10.0.0.6/32", "10.1.0.9/32", "2001:db8::5/128"]


@pytest.mark.parametrize(
    "entry",
    [
        {"privateIpAddress": BLOCK},
        {"privateIpAddress": BLOCK, "prefixLength": "30"},
        {"privateIpAddress": BLOCK, "privateIPAddressPrefixLength": "", "prefixLength": None},
        {"privateIpAddress": "10.0.0.16", "privateIPAddressPrefixLength": "28"},
        {"privateIpAddress": "10.0.0.16", "prefixLength": 28},
        {"privateIpAddress": "10.0.0.16", "privateIPAddressPrefixLength": "", "prefixLength": 28},
    ],
    ids=["text", "text first", "nothing else", "string", "number", "empty first"],
)
def test_a_configuration_that_is_a_block_is_taken_whole(entry):
    assert shown(metadata((["10.0.0.4", entry], []))) == [BLOCK]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON"),
        (b"x" * 61, f"^the instance metadata is not JSON: it begins with b'{60 * 'x'}'$"),
        (b"<html>sign in</html>", "not JSON"),
        (DOCUMENTED.encode()[:-20], "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "^the instance metadata: is not an object"),
        (b"{}", "^the instance metadata: has no list 'interface'"),
        (b'{"interface":[]}', "^the instance metadata names no network interface"),
        (
            b'{"interface":[{"ipv4":{"ipAddress":[7]}}]}',
            r"^interface\[0\].ipv4.ipAddress\[0\]: is not",
        ),
        (b'{"interface":[{"ipv4":7}]}', r"^interface\[0\].ipv4: is not an object"),
        (b'{"interface":[7]}', r"interface\[0\]: is not an object"),
        (b'{"interface":[{"ipv4":{}}]}', r"interface\[0\].ipv4: has no list 'ipAddress'"),
        (metadata((["10.0.0.4", ""], [])), r"ipAddress\[1\].privateIpAddress: '' is not an IP"),
        (
            metadata((["10.0.0.4", {"privateIpAddress": 7}], [])),
            r"ipAddress\[1\].privateIpAddress: is not a string",
        ),
        (metadata((["10.0.0.4", "10.0.0.300"], [])), "is not an IP address"),
        (metadata((["10.0.0.4", "2001:db8::1"], [])), "is no IPv4 address of an interface"),
        (metadata((["10.0.0.4", "0.0.0.0/0"], [])), "is no IPv4 address of an interface"),
        (metadata((["10.0.0.4", "10.0.0.17/28"], [])), "host bits set"),
        (metadata((["", "10.0.0.5"], [])), r"ipAddress\[0\]"),
    ],
)
def test_what_is_no_such_document_is_refused_and_says_where(body, reason):
    with pytest.raises(RangesUnknown, match=reason):
        pool(body)


def test_the_largest_blocks_are_taken_and_each_block_once_in_order():
    body = metadata(
        (["10.0.0.4"], ["2001:db8::4", "2001:db8:0:1::/64"]),
        (["10.1.0.4", "10.0.1.0/24", "10.0.0.9", "10.0.1.0/24"], []),
    )
    assert shown(body) == ["10.0.0.9/32", "10.0.1.0/24", "2001:db8:0:1::/64"]


@contextmanager
def answering(answer: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """A service's port, and what it was asked once it has answered."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                asked.append(connection.recv(4096))
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1], asked
        thread.join()


def test_a_machine_s_pool_is_asked_of_the_metadata_service():
    body = metadata((["10.0.0.4", "10.0.0.5"], []))
    with answering(b"HTTP/1.0 200 OK\r\n\r\n" + body) as (port, asked):
        endpoint = replace(ENDPOINT, host="127.0.0.1", port=port, seconds=PATIENCE)
        assert read(endpoint) == RangeOffer((Prefix.parse("10.0.0.5"),))
    (request,) = asked
    assert request.startswith(b"GET /metadata/instance/network?api-version=2021-02-01 ")
    assert b"\r\nMetadata: true\r\n" in request


def document(**more: Any) -> NodeDocument:
    node = {"name": "worker-0", "addresses": ["10.0.0.4"]}
    base = {**NODE_KEYS, "node": node, "range_source": "azure"}
    return NodeDocument.model_validate(base | more)


SITES = {
    "site": "training",
    "sites": [
        {"name": "hub", "prefixes": ["10.200.0.0/16"]},
        {"name": "training", "prefixes": ["10.0.0.0/12"]},
    ],
}


@pytest.mark.parametrize(
    ("block", "more", "reason"),
    [
        (
            "10.16.0.5/32",
            SITES,
            r"outside the prefixes of site training \(10.0.0.0/12\); the plan and",
        ),
        ("10.200.0.5/32", SITES, "outside the prefixes of site training"),
        ("169.254.0.0/28", {}, "special-use prefix 169.254.0.0/16"),
        ("10.0.0.0/28", {}, "the node's own address 10.0.0.4"),
        ("10.0.0.96/28", {}, "10.0.0.99 is set on eth0, .*apply_network_config"),
        ("10.0.0.32/28", {}, "10.0.0.40/32 has it already"),
    ],
)
def test_a_block_that_contradicts_is_left_out_and_the_others_are_used(block, more, reason):
    good = Prefix.parse("10.0.0.40")
    own = {Prefix.parse("10.0.0.99"): "set on eth0"}
    valid = validate(RangeOffer((good, Prefix.parse(block))), document(**more), own)
    assert valid.ranges == (good,)
    (diagnostic,) = valid.refused
    assert re.match(f"{re.escape(block)} is not used: .*{reason}", str(diagnostic)), diagnostic


def test_many_blocks_are_used_at_once_and_a_list_without_an_end_is_refused():
    blocks = [
        Prefix.parse("10.1.0.0/17"),
        *(Prefix(Family.V4, 0x0A010000 + n, 32) for n in range(MOST_BLOCKS)),
    ]
    valid = validate(RangeOffer(tuple(blocks[:-1])), document(), {})
    assert valid.ranges == (blocks[0],)
    assert len(valid.refused) == MOST_BLOCKS - 1
    with pytest.raises(RangesUnknown, match="2049 blocks are too many; 2048 can be used"):
        validate(RangeOffer(tuple(blocks)), document(), {})


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n{}",
    ],
    ids=["length", "chunk"],
)
def test_an_answer_longer_than_any_memory_is_no_whole_one(answer):
    with (
        answering(answer) as (port, _),
        pytest.raises(RangesUnknown, match="is no whole HTTP answer"),
    ):
        fetch(MetadataEndpoint("127.0.0.1", port, "/", {}))
