"""AWS's instance metadata: what the first interface has beside its own addresses is the pool.

Source: docs.aws.amazon.com, "Use the Instance Metadata Service to access instance metadata"
(IMDSv2) and "Instance metadata categories". Every request needs a token, which a PUT gets. The
answer to the PUT passes as few routers as the instance's hop limit says, by default one hop: it
reaches the machine, and no network behind it.

`mac` names the first interface (network card 0, device 0). Of `local-ipv4s` and `ipv6s` the first
one is the interface's own, the one that DHCP gives out. A category that an interface has nothing of
is 404.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace

from netmgr.errors import RangesUnknown
from netmgr.prefixes import Family, Prefix
from netmgr.ranges.answers import RangeOffer, block_of
from netmgr.ranges.metadata import NO_ANSWER, NOT_FOUND, OK, MetadataEndpoint, fetch

ENDPOINT = MetadataEndpoint("169.254.169.254", 80, "/latest/meta-data/")

_MODIFY = "aws ec2 modify-instance-metadata-options --instance-id ID"
_TOKEN = replace(
    ENDPOINT,
    method="PUT",
    target="/latest/api/token",
    # A token is for one reading.
    headers={"X-aws-ec2-metadata-token-ttl-seconds": "60", "Content-Length": "0"},
    hints={
        NO_ANSWER: "; run the agent in the machine's own network, or raise the answer's hop limit "
        f"({_MODIFY} --http-put-response-hop-limit 2)",
        403: f"; enable the instance's metadata service ({_MODIFY} --http-endpoint enabled)",
    },
)
_INTERFACES = "network/interfaces/macs/"
# Category, family, length of its largest block, and how many of the first are the machine's own.
_CATEGORIES = (
    ("local-ipv4s", Family.V4, 32, 1),
    ("ipv4-prefix", Family.V4, 28, 0),
    ("ipv6s", Family.V6, 128, 1),
    ("ipv6-prefix", Family.V6, 80, 0),
)
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


def read(endpoint: MetadataEndpoint = ENDPOINT) -> RangeOffer:
    """Ask the instance metadata service once for the machine's pool."""
    session = _Session(endpoint)
    first = session.words("mac")
    macs = [word.removesuffix("/") for word in session.words(_INTERFACES)]
    if len(first) != 1 or first[0] not in macs or not all(map(_MAC.fullmatch, macs)):
        known = f"{', '.join(macs)[:200]!r}"
        raise RangesUnknown(f"{endpoint}: mac {first[:1]!r:.60} is none of its interfaces {known}")
    pools = {mac: tuple(_pool(session, mac)) for mac in macs}
    ranges = pools.pop(first[0])
    return RangeOffer(ranges, {f"interface {mac}": pools[mac] for mac in pools if pools[mac]})


def _pool(session: _Session, mac: str) -> Iterator[Prefix]:
    for category, family, shortest, own in _CATEGORIES:
        key = f"{_INTERFACES}{mac}/{category}"
        blocks = [block_of(word, key, family, shortest) for word in session.words(key)]
        yield from blocks[own:]


class _Session:
    """Requests with one token, all of them before one deadline."""

    def __init__(self, endpoint: MetadataEndpoint) -> None:
        self._deadline = time.monotonic() + endpoint.seconds
        put = replace(_TOKEN, host=endpoint.host, port=endpoint.port, seconds=endpoint.seconds)
        token = fetch(put, self._deadline)[1].decode("latin-1")
        # It becomes a header.
        if not re.fullmatch(r"[!-~]{1,1024}", token):
            raise RangesUnknown(f"{put}: is no token: it begins with {token[:60]!r}")
        self._endpoint = replace(endpoint, headers={"X-aws-ec2-metadata-token": token})

    def words(self, key: str) -> list[str]:
        """The lines of a category; none where there is no such one."""
        endpoint = replace(self._endpoint, target=self._endpoint.target + key)
        response, body = fetch(endpoint, self._deadline, (OK, NOT_FOUND))
        return body.decode("latin-1").split() if response.status == OK else []
