"""What of the kernel's links and routes confirms an address."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from netmgr.kernel.links import Link, dump_links, link_of
from netmgr.kernel.netlink import Operation
from netmgr.kernel.routes import RTN_BLACKHOLE, RTN_LOCAL, Route, look_up, route_of
from netmgr.observer import kernel_check
from netmgr.observer.kernel_check import HostEnd, KernelCheck, KernelState, OnLinkRoute
from netmgr.prefixes import Address, Family, Prefix

A, B = Address.parse("10.88.1.2"), Address.parse("fd00::2")
BRIDGE = 4


def link(number: int, name: str, peer: int, master: int = 0) -> Link:
    link = Link(number, name, up=True, mac=b"", mtu=1500, alias="", group=0)
    return link._replace(peer_netns=peer, master=master)


LINKS = [link(1, "lo", -1), link(2, "eth0", -1), link(11, "veth1", 0, BRIDGE), link(12, "veth2", 3)]


def route(to: str, oif: int) -> Route:
    return Route(Prefix.parse(to), oif, None, 3, 253, 0)


class Kernel:
    """The channel to a kernel with these links and routes, by the address that is looked up."""

    def __init__(self, routes: dict[Address, Route]) -> None:
        self._routes = {look_up(to).text: found for to, found in routes.items()}
        self.is_open, self.largest_batch, self.asked = True, 0, 0

    def dump(self, request: Operation, decode: Callable[[bytes], Link]) -> list[Link]:
        assert (request, decode) == (dump_links(), link_of)
        return LINKS

    def query_each(
        self, requests: Sequence[Operation], decode: Callable[[bytes], Route | None]
    ) -> list[Route | None]:
        assert decode is route_of
        self.largest_batch = max(self.largest_batch, len(requests))
        self.asked += len(requests)
        return [self._routes.get(request.text) for request in requests]

    def close(self) -> None:
        self.is_open = False


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Callable[..., KernelState]:
    def look(*addresses: Address, **routes: Route) -> KernelState:
        kernel = Kernel(dict(zip((A, B), routes.values(), strict=False)))
        monkeypatch.setattr(kernel_check, "Netlink", lambda: kernel)
        check = KernelCheck()
        found = check.look(addresses or (A, B))
        check.close()
        assert not kernel.is_open
        return found

    return look


Look = Callable[..., KernelState]


def test_host_ends_are_the_links_whose_peer_is_in_another_namespace(look: Look) -> None:
    """Whose number may be 0."""
    assert look().ends == {"veth1": HostEnd(11, BRIDGE), "veth2": HostEnd(12, 0)}


def test_a_route_onto_a_link_counts_and_one_of_full_length_is_the_address_s_own(look: Look) -> None:
    found = look(a=route("10.88.0.0/16", BRIDGE), b=route("fd00::2", 12))
    assert found.routes == {A: OnLinkRoute(BRIDGE, own=False), B: OnLinkRoute(12, own=True)}
    assert look(a=route("10.88.1.2", 12)).routes == {A: OnLinkRoute(12, own=True)}


@pytest.mark.parametrize(
    "more",
    [
        {"gateway": Address(Family.V4, 1)},
        {"has_foreign_gateway": True},
        {"kind": RTN_LOCAL},
        {"kind": RTN_BLACKHOLE},
        {"oif": 0},
    ],
    ids=str,
)
def test_a_route_that_leads_elsewhere_confirms_nothing(look: Look, more: dict[str, object]) -> None:
    assert look(a=route("10.88.1.2", 12)._replace(**more)).routes == {}


def test_no_address_is_looked_up_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [Address(Family.V4, A.value + number) for number in range(150)]
    kernel = Kernel({many[-1]: route("10.88.0.0/16", BRIDGE)})
    monkeypatch.setattr(kernel_check, "Netlink", lambda: kernel)
    assert KernelCheck().look([*many, *many]).routes == {many[-1]: OnLinkRoute(BRIDGE, own=False)}
    assert (kernel.asked, kernel.largest_batch) == (150, 64)
