"""Asking the clouds' metadata services at their own address: what is said, and what is made of
every bad answer.
"""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest

from netmgr.errors import RangesUnknown
from netmgr.prefixes import Prefix
from netmgr.ranges import aws, azure, gcp
from netmgr.ranges.answers import RangeOffer
from netmgr.ranges.metadata import MAX_BYTES, MAX_RETRY_AFTER
from tests.fakes.metadata import (
    AWS_SECOND,
    AwsServer,
    GoogleServer,
    MetadataServer,
    aws_interface,
    document,
    give_address,
    google_document,
    header,
    http,
)
from tests.kernel.namespaces import inside
from tests.lab import named_netns, wiring
from tests.waiting import PATIENCE

pytestmark = pytest.mark.root

GOOD = document(["10.0.0.4", "10.0.0.5", "10.0.0.16/28"])
POOL = (Prefix.parse("10.0.0.5"), Prefix.parse("10.0.0.16/28"))
GIVEN_UP_SECONDS = 0.5


@dataclass(frozen=True)
class Cloud:
    """A source and its service."""

    source: ModuleType
    serves: Callable[[Path], MetadataServer]

    def ask(self, machine: Path, seconds: float = PATIENCE) -> RangeOffer:
        with wiring.inside(machine):
            offer: RangeOffer = self.source.read(replace(self.source.ENDPOINT, seconds=seconds))
        return offer

    def refusal(self, machine: Path, seconds: float = PATIENCE) -> RangesUnknown:
        with pytest.raises(RangesUnknown) as raised:
            self.ask(machine, seconds)
        return raised.value


AZURE, AWS, GOOGLE = (Cloud(azure, MetadataServer), Cloud(aws, AwsServer), Cloud(gcp, GoogleServer))
ON_EVERY_CLOUD = pytest.mark.parametrize("cloud", [AZURE, AWS, GOOGLE], ids=["azure", "aws", "gcp"])
ON_AZURE = pytest.mark.parametrize("cloud", [AZURE], ids=["azure"])
ON_AWS = pytest.mark.parametrize("cloud", [AWS], ids=["aws"])
ON_JSON = pytest.mark.parametrize("cloud", [AZURE, GOOGLE], ids=["azure", "gcp"])
ON_GOOGLE = pytest.mark.parametrize("cloud", [GOOGLE], ids=["gcp"])


@contextmanager
def namespace(name: str) -> Iterator[Path]:
    path = Path(f"/run/netmgr-lab/{name}-{os.getpid()}")
    named_netns.create(path)
    try:
        inside(path, "ip", "link", "set", "lo", "up")
        yield path
    finally:
        named_netns.delete(path)


@pytest.fixture(scope="module")
def machine() -> Iterator[Path]:
    with namespace("metadata") as path:
        yield path


@pytest.fixture
def server(machine: Path, cloud: Cloud) -> Iterator[MetadataServer]:
    with cloud.serves(machine) as made:
        made.offer(["10.0.0.4"], "10.0.0.5", "10.0.0.16/28")
        yield made


@ON_EVERY_CLOUD
def test_the_pool_is_what_the_first_interface_has_beside_its_own_address(
    machine: Path, cloud: Cloud, server: MetadataServer, monkeypatch: pytest.MonkeyPatch
):
    # A proxy would answer for itself.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert cloud.ask(machine) == RangeOffer(POOL)
    assert all(header(text, "Host") == "169.254.169.254" for _, text in server.requests)
    assert not any("x-forwarded-for" in text.lower() for _, text in server.requests)


@ON_AZURE
def test_azure_is_asked_as_documented(machine: Path, cloud: Cloud, server: MetadataServer):
    cloud.ask(machine)
    ((_, text),) = server.requests
    first, *headers = text.splitlines()
    assert first == "GET /metadata/instance/network?api-version=2021-02-01 HTTP/1.1"
    assert "Metadata: true" in headers


@ON_AWS
def test_aws_is_asked_with_one_token_for_all_categories(
    machine: Path, cloud: Cloud, server: AwsServer
):
    server.offer(["10.0.0.4", "2001:db8::4"], "10.0.0.5", "2001:db8::5", "2001:db8:0:1::/80")
    assert [str(block) for block in cloud.ask(machine).ranges] == [
        "10.0.0.5/32",
        "2001:db8::5/128",
        "2001:db8:0:1::/80",
    ]
    first, *others = [text for _, text in server.requests]
    assert first.startswith("PUT /latest/api/token HTTP/1.1\r\n")
    (token,) = server.tokens
    assert {header(text, "X-aws-ec2-metadata-token") for text in others} == {token}


@ON_AWS
@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("/ipv4-prefix", "503 Service Unavailable"),
        ("/mac", "404 Not Found"),
        ("/macs/", "404 Not Found"),
        ("/local-ipv4s", "401 Unauthorized"),
    ],
)
def test_a_category_that_is_refused_is_not_taken_for_an_empty_one(
    machine: Path, cloud: Cloud, server: AwsServer, end: str, status: str
):
    server.faults[end] = http(b"", status)
    assert "169.254.169.254" in cloud.refusal(machine).message


@ON_AWS
@pytest.mark.parametrize("mac", [AWS_SECOND, "../../iam"])
def test_a_first_interface_that_is_not_listed_is_refused(
    machine: Path, cloud: Cloud, server: AwsServer, mac: str
):
    server.faults["/mac"] = http(mac.encode())
    assert "is none of its interfaces" in cloud.refusal(machine).message


@ON_AWS
def test_what_other_interfaces_of_aws_have_is_named(machine: Path, cloud: Cloud, server: AwsServer):
    server.interfaces[AWS_SECOND] = aws_interface(["10.1.0.4"], "10.1.0.9", "10.1.0.16/28")
    server.interfaces["02:29:96:8f:6a:2f"] = aws_interface(["10.2.0.4"])
    blocks = (Prefix.parse("10.1.0.9"), Prefix.parse("10.1.0.16/28"))
    assert cloud.ask(machine) == RangeOffer(POOL, {f"interface {AWS_SECOND}": blocks})


@ON_GOOGLE
def test_what_other_interfaces_of_google_have_is_named(
    machine: Path, cloud: Cloud, server: GoogleServer
):
    server.interfaces += [("10.1.0.4", []), ("10.2.0.4", ["10.2.1.0/24"])]
    assert cloud.ask(machine) == RangeOffer(POOL, {"nic2": (Prefix.parse("10.2.1.0/24"),)})


@ON_AWS
def test_a_token_comes_as_far_as_the_hop_limit_says(machine: Path, cloud: Cloud, server: AwsServer):
    with namespace("node") as node, namespace("pod") as pod:
        lay(machine, "10.9.0.1/30", node, "10.9.0.2/30")
        lay(node, "10.9.1.1/30", pod, "10.9.1.2/30")
        inside(machine, "ip", "route", "replace", "10.9.1.0/30", "via", "10.9.0.2")
        inside(node, "ip", "route", "replace", "169.254.169.254", "via", "10.9.0.1")
        inside(pod, "ip", "route", "replace", "169.254.169.254", "via", "10.9.1.1")
        inside(node, "sysctl", "--quiet", "net.ipv4.ip_forward=1")
        assert cloud.ask(node) == RangeOffer(POOL)
        message = cloud.refusal(pod, GIVEN_UP_SECONDS).message
        assert "no whole answer within 0.5 s; run the agent in the machine's own" in message
        assert "--http-put-response-hop-limit 2" in message
        server.hop_limit = 2
        assert cloud.ask(pod) == RangeOffer(POOL)


def lay(near: Path, here: str, far: Path, there: str) -> None:
    """Lay a cable between two namespaces."""
    name = f"to-{far.name[:8]}"
    inside(near, "ip", "link", "add", name, "type", "veth", "peer", "uplink", "netns", str(far))
    for end, link, address in ((near, name, here), (far, "uplink", there)):
        inside(end, "ip", "address", "add", address, "dev", link)
        inside(end, "ip", "link", "set", link, "up")


@ON_AWS
def test_a_service_that_is_switched_off_is_told_with_the_command_that_enables_it(
    machine: Path, cloud: Cloud, server: AwsServer
):
    server.answer = http(b"", "403 Forbidden")
    assert re.search(
        r"\(403 Forbidden\); .*--http-endpoint enabled", cloud.refusal(machine).message
    )


@ON_AZURE
def test_an_answer_may_come_in_chunks_or_end_with_the_connection(
    machine: Path, cloud: Cloud, server: MetadataServer
):
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (
        len(GOOD),
        GOOD,
    )
    for answer in (chunked, b"HTTP/1.0 200 OK\r\n\r\n" + GOOD):
        server.answer = answer
        assert cloud.ask(machine) == RangeOffer(POOL)


@ON_EVERY_CLOUD
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "no whole HTTP answer"),
        (b"\x16\x03\x01garbage", "no whole HTTP answer"),
        (http(GOOD)[:-1], "no whole HTTP answer: IncompleteRead"),
        (http(GOOD, Content_Length=str(len(GOOD) + 1)), "no whole HTTP answer: IncompleteRead"),
        (
            http(GOOD, "301 Moved", Location="http://203.0.113.9/"),
            "redirects to http://203.0.113.9/, which is not",
        ),
        (http(GOOD, "500 Broken"), r"answers \(500 Broken\)"),
        (http(b"", "404 Not Found"), r"answers \(404 Not Found\)"),
        (http(b" " * (MAX_BYTES + 1) + GOOD), "more than 512 KiB"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1000 + b"\r\n" + GOOD, "no whole HTTP answer"),
        (http(b"<html>sign in</html>"), "not JSON|is no token|without Metadata-Flavor: Google"),
    ],
    ids=range(10),
)
def test_a_bad_answer_is_told_for_what_it_is(
    machine: Path, cloud: Cloud, server: MetadataServer, answer: bytes | None, reason: str
):
    server.answer = answer
    assert re.search(reason, cloud.refusal(machine).message)


@ON_JSON
@pytest.mark.parametrize("body", [GOOD[:-9], b"<html/>", b"{}", b"[]", b"7", b"[" * 100_000])
def test_an_answer_without_its_document_is_refused(
    machine: Path, cloud: Cloud, server: MetadataServer, body: bytes
):
    server.answer = b"HTTP/1.0 200 OK\r\nMetadata-Flavor: Google\r\n\r\n" + body
    assert re.search("not JSON|no list|is not an object", cloud.refusal(machine).message)


@ON_GOOGLE
def test_another_server_with_google_s_document_is_refused(
    machine: Path, cloud: Cloud, server: GoogleServer
):
    server.answer = http(google_document(("10.0.0.4", ["10.0.0.16/28"])))
    assert "without Metadata-Flavor: Google" in cloud.refusal(machine).message


@ON_GOOGLE
@pytest.mark.parametrize(
    ("alias", "reason"),
    [
        ("0.0.0.0/0", "is no IPv4 address of an interface"),
        ("10.0.0.0/15", "is no IPv4 address of an interface"),
        ("2001:db8::/96", "is no IPv4 address of an interface"),
        ("10.0.0.1/24", "host bits set"),
        ("\x1b[2J" + "9" * 100_000, r"is not an IP address|\\x1b"),
    ],
    ids=range(5),
)
def test_an_alias_range_that_no_interface_can_have_is_refused(
    machine: Path, cloud: Cloud, server: GoogleServer, alias: str, reason: str
):
    server.interfaces = [("10.0.0.4", ["10.0.0.16/28", alias])]
    message = cloud.refusal(machine).message
    assert re.search(rf"network-interfaces\[0\].ipAliases\[1\]: .*({reason})", message)
    assert len(message) < 500
    assert message.isprintable()


@ON_EVERY_CLOUD
@pytest.mark.parametrize(
    ("retry_after", "seconds"),
    [
        ({}, 0),
        ({"Retry_After": "17"}, 17),
        ({"Retry_After": "9" * 50}, MAX_RETRY_AFTER),
        ({"Retry_After": "soon"}, 0),
    ],
    ids=["none", "seconds", "an age", "nonsense"],
)
def test_throttling_says_how_long_to_stay_away(
    machine: Path, cloud: Cloud, server: MetadataServer, retry_after: dict[str, str], seconds: float
):
    server.answer = http(b"{}", "429 Too Many Requests", **retry_after)
    error = cloud.refusal(machine)
    assert "asks to be asked less often (429" in error.message
    assert error.retry_after == seconds


@ON_EVERY_CLOUD
@pytest.mark.parametrize(
    ("dribbles", "pause"),
    [(False, 30.0), (True, 0.0), (False, 0.3)],
    ids=["silent", "a byte now and then", "slow"],
)
def test_a_server_that_takes_its_time_is_given_up(
    machine: Path,
    cloud: Cloud,
    server: MetadataServer,
    dribbles: bool,  # noqa: FBT001  pytest's way
    pause: float,
):
    """AWS's has to answer several requests, all of them in time."""
    server.dribbles, server.pause = dribbles, pause
    if pause < GIVEN_UP_SECONDS and not dribbles and cloud is not AWS:
        assert cloud.ask(machine) == RangeOffer(POOL)
        return
    began = time.monotonic()
    assert "no whole answer within 0.5 s" in cloud.refusal(machine, GIVEN_UP_SECONDS).message
    assert time.monotonic() - began < PATIENCE


@ON_EVERY_CLOUD
def test_nobody_at_the_address_is_told_at_once(machine: Path, cloud: Cloud):
    give_address(machine)
    assert "refused" in cloud.refusal(machine).message.lower()


@ON_EVERY_CLOUD
def test_no_way_to_the_address_is_told_at_once(cloud: Cloud):
    with namespace("island") as path:
        assert "unreachable" in cloud.refusal(path).message.lower()


@pytest.fixture
def watch() -> Iterator[gcp.ChangeWatch]:
    with closing(gcp.ChangeWatch(replace(gcp.ENDPOINT, seconds=PATIENCE))) as made:
        yield made


def wakes(watch: gcp.ChangeWatch, seconds: float) -> bool:
    poll = select.poll()
    poll.register(watch, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def waiting(server: GoogleServer) -> int:
    return sum("wait_for_change=true" in text for _, text in server.requests)


@ON_GOOGLE
def test_a_change_wakes_whoever_watches_and_a_look_in_between_does_not(
    machine: Path, server: GoogleServer, watch: gcp.ChangeWatch
):
    with wiring.inside(machine):
        assert watch.read() == RangeOffer(POOL)
        assert not wakes(watch, gcp.LEAST_WATCH)
        assert watch.read() == RangeOffer(POOL)
        server.offer(["10.0.0.4"], "10.0.0.32/28")
        assert wakes(watch, PATIENCE)
        assert watch.read() == RangeOffer((Prefix.parse("10.0.0.32/28"),))
        assert not wakes(watch, 0)


@ON_GOOGLE
def test_a_server_that_does_not_wait_is_not_asked_again_and_again(
    machine: Path, server: GoogleServer, watch: gcp.ChangeWatch
):
    server.waits = False
    with wiring.inside(machine):
        watch.read()
        assert wakes(watch, PATIENCE)
        watch.read()
        assert not wakes(watch, 0)
    assert waiting(server) == 1


@ON_GOOGLE
def test_a_server_that_fails_is_not_waited_for(
    machine: Path, server: GoogleServer, watch: gcp.ChangeWatch
):
    with wiring.inside(machine):
        watch.read()
        server.answer = http(b"", "503 Service Unavailable")
        assert wakes(watch, PATIENCE)
        with pytest.raises(RangesUnknown, match="503"):
            watch.read()
        assert not wakes(watch, 0)
