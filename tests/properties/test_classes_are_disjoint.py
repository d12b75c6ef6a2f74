"""Cut prefixes are disjoint, cover what was claimed, and give every address to the longest claim
that holds it.
"""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from netmgr.documents.classes import disjoint
from netmgr.documents.node import NodeDocument
from netmgr.documents.special_use import RESERVED_USE, SPECIAL_USE
from netmgr.model import Counter, Traffic
from netmgr.prefixes import Address, Family, Prefix, PrefixTable, overlaps
from netmgr.rules.engine import Rules
from netmgr.rules.policy import Policy
from tests.builders import NODE_KEYS
from tests.fakes.passage import Packet
from tests.fakes.rules import FakeBackend

NAMES = ("hub", "storage", "far")


@st.composite
def a_prefix(draw):
    """Short ones that hold many others, and long ones that lie close together."""
    family = draw(st.sampled_from(Family))
    length = draw(st.one_of(st.integers(1, 10), st.integers(family.width - 3, family.width)))
    value = draw(st.integers(0, 31)) << draw(st.sampled_from([0, family.width - 5]))
    return Prefix(family, value >> (family.width - length) << (family.width - length), length)


some_claims = st.lists(st.tuples(a_prefix(), st.sampled_from(NAMES)), max_size=12)


def probes(prefixes):
    """Addresses at and beside every edge."""
    for prefix in prefixes:
        for value in (prefix.value - 1, prefix.value, prefix.last, prefix.last + 1):
            if 0 <= value < 1 << prefix.family.width:
                yield Address(prefix.family, value)


@settings(max_examples=60)
@given(claims=some_claims)
def test_pieces_are_disjoint_cover_the_claims_and_go_to_the_longest(claims):
    pieces = disjoint(claims)
    everything = [piece for found in pieces.values() for piece in found]
    assert list(overlaps(everything, lambda prefix: prefix)) == []
    longest = PrefixTable(dict(claims).items())
    for address in probes([*dict(claims), *everything]):
        holding = [
            label for label, found in pieces.items() if any(piece.holds(address) for piece in found)
        ]
        match = longest.match(address)
        assert holding == ([match[1]] if match else [])


PODS = [Address.parse(text) for text in ("10.1.0.5", "10.1.0.6", "fd00:1::5")]


@settings(max_examples=40)
@given(data=st.data(), is_rewriting=st.booleans(), is_observing=st.booleans())
def test_every_packet_of_a_pod_is_counted_once_in_each_direction_and_in_the_right_class(
    data, is_rewriting, is_observing
):
    claimed = data.draw(st.lists(a_prefix(), min_size=1, max_size=6, unique=True))
    classes = {name: claimed[number::3] for number, name in enumerate(NAMES) if claimed[number::3]}
    keys = {
        **NODE_KEYS,
        "node": {"name": "n"},
        "ranges": ["10.1.0.0/24", "fd00:1::/112"],
        "cni": not is_observing,
        "accounting": {
            "classes": [
                {"name": name, "prefixes": [*map(str, found)]} for name, found in classes.items()
            ]
        },
    }
    try:
        document = NodeDocument.model_validate(keys)
    except ValidationError as error:
        assume("leave no internet" not in str(error))
        raise
    kernel = FakeBackend(rewrites=is_rewriting)
    rules = Rules(kernel, Policy.of(document))
    rules.apply(rules.plan(PODS))
    internal = [
        (prefix, "internal") for prefix in (*SPECIAL_USE, *RESERVED_USE, *document.internal)
    ]
    table = PrefixTable(
        [*internal, *((prefix, name) for name, found in classes.items() for prefix in found)]
    )
    pod = data.draw(st.sampled_from(PODS))
    edges = probes([*claimed, *document.internal_prefixes])
    peer = data.draw(
        st.sampled_from([one for one in edges if one.family is pod.family and one not in PODS])
    )
    match = table.match(peer)
    within = any(one.holds(peer) for one in document.ranges)
    kind = match[1] if match else "internal" if within else "internet"
    for src, dst, links, way in (
        (pod, peer, ("nm0", "eth0"), "out"),
        (peer, pod, ("eth0", "nm0"), "in"),
    ):
        sent = kernel.send(Packet(src, dst, iif=links[0], oif=links[1], way_back=links[0]))
        if not sent.dropped_by:
            assert {one for one in sent.counted if one.is_pod} == {
                Counter.of_pod(pod, Traffic(f"{kind}-{way}"))
            }
