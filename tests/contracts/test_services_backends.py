"""What every backend of Services keeps to: the fake and nftables alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol as Shape

import pytest

from netmgr.kernel import netns
from netmgr.prefixes import Address, Family, Prefix
from netmgr.services.engine import ServiceBackend
from netmgr.services.model import Endpoint, Frontend, Protocol, ServicePort
from netmgr.services.nft_layout import TABLE
from netmgr.services.nftables import NftablesServices
from tests.fakes.services import FakeServices

VIP_RANGES = (Prefix.parse("10.200.0.0/16"), Prefix.parse("fd00:200::/112"))
REAL = [pytest.param("nftables", marks=pytest.mark.root)]


def vip(
    number: int, family: Family = Family.V4, protocol: Protocol = Protocol.TCP, port: int = 80
) -> ServicePort:
    block = next(prefix for prefix in VIP_RANGES if prefix.family is family)
    return ServicePort(Address(family, block.value + number), protocol, port)


def frontend(*numbers: int, family: Family = Family.V4, sticky: bool = False) -> Frontend:
    base = Address.parse("10.9.0.0" if family is Family.V4 else "fd00:9::")
    return Frontend(
        frozenset(Endpoint(Address(family, base.value + one), 8000 + one) for one in numbers),
        sticky,
    )


WANTED = {
    vip(1): frontend(1, 2, 3),
    vip(1, port=443): frontend(4),
    vip(2, protocol=Protocol.UDP, port=53): frontend(1, 2),
    vip(3, protocol=Protocol.SCTP, port=38412): frontend(1, 2),
    vip(4): frontend(1, 2, 3, sticky=True),
    vip(5): frontend(),
    vip(300): frontend(*range(1, 41)),
    vip(1, Family.V6): frontend(1, 2, family=Family.V6),
    vip(2, Family.V6, Protocol.UDP): frontend(1, family=Family.V6),
    vip(3, Family.V6, Protocol.SCTP): frontend(1, 2, 3, family=Family.V6),
    vip(4, Family.V6): frontend(1, 2, family=Family.V6, sticky=True),
}


class Kernel(Shape):
    """A backend, and what other programs do beside it."""

    backend: ServiceBackend

    def again(self) -> ServiceBackend: ...
    def content(self) -> str: ...
    def be_busy(self) -> None: ...
    def lose_everything(self) -> None: ...
    def lose_endpoint(self, one: ServicePort) -> None: ...
    def lose_service(self, one: ServicePort) -> None: ...
    def add_service(self, one: ServicePort) -> None: ...


class FakeKernel:
    def __init__(self) -> None:
        self.backend = FakeServices()

    def again(self):
        return self.backend

    def content(self):
        return repr(sorted(self.backend.programmed.items(), key=lambda item: item[0]))

    def be_busy(self):
        pass

    def lose_everything(self):
        self.backend.programmed.clear()

    def lose_endpoint(self, one):
        endpoints = sorted(self.backend.programmed[one].endpoints)
        self.backend.programmed[one] = Frontend(
            frozenset(endpoints[1:]), self.backend.programmed[one].sticky
        )

    def lose_service(self, one):
        del self.backend.programmed[one]

    def add_service(self, one):
        self.backend.programmed[one] = frontend(9)


class NftKernel:
    def __init__(self, run: Callable[..., str]) -> None:
        self._run = run
        self.backend = NftablesServices(VIP_RANGES)
        self._others = [self.backend]
        run(
            "nft -f -",
            "table inet theirs {\n set s { type ipv4_addr; elements = { 10.200.0.1 } }\n}\n",
        )

    def again(self, ranges=VIP_RANGES):
        self._others.append(NftablesServices(ranges))
        return self._others[-1]

    def close(self):
        for one in self._others:
            one.close()

    def content(self):
        lines = self._run("nft -a list ruleset").replace("\t", " ").splitlines()
        return "\n".join(lines)

    def be_busy(self):
        self._run(
            "nft -f -",
            (
                "add element inet theirs s { 10.200.0.9 }\ndelete element inet theirs s { "
                "10.200.0.9 }\n"
            ),
        )

    def lose_everything(self):
        self._run(f"nft delete table inet {TABLE}")

    def lose_endpoint(self, one):
        self._element("delete", "endpoints", one, " . 0")

    def lose_service(self, one):
        self._element("delete", "services", one)

    def add_service(self, one):
        self._element("add", "services", one, data=" : goto refused")

    def _element(
        self, verb: str, kind: str, one: ServicePort, slot: str = "", data: str = ""
    ) -> None:
        element = f"{one.address} . {one.protocol} . {one.port}{slot}{data}"
        self._run(
            "nft -f -", f"{verb} element inet {TABLE} {kind}{one.family.value} {{ {element} }}\n"
        )


@pytest.fixture(params=["fake", *REAL])
def kernel(request: pytest.FixtureRequest, program: Callable[..., str]) -> Iterator[Kernel]:
    if request.param == "fake":
        yield FakeKernel()
        return
    node = request.getfixturevalue("namespaces")("services")
    with netns.entered(node.descriptor):
        made = NftKernel(program)
        try:
            yield made
        finally:
            made.close()


def test_what_is_put_there_is_held(kernel: Kernel):
    kernel.backend.reconcile(WANTED)
    assert kernel.backend.held() == WANTED


def test_putting_right_twice_and_beginning_again_change_nothing(kernel: Kernel):
    kernel.backend.reconcile(WANTED)
    before = kernel.content()
    assert kernel.backend.reconcile(WANTED) == []
    successor = kernel.again()
    assert successor.held() == WANTED
    assert successor.reconcile(WANTED) == []
    assert kernel.content() == before


def test_what_successors_change_leaves_nothing_twice(kernel: Kernel):
    two, three = {vip(1): frontend(1, 2)}, {vip(1): frontend(1, 2, 3)}
    kernel.backend.reconcile(two)
    kernel.backend.change(three)
    successor = kernel.again()
    assert successor.held() == three
    successor.reconcile(three)
    successor.change(two)
    assert successor.held() == two
    assert kernel.again().reconcile(two) == []


CHANGES = {
    "an endpoint less": {vip(1): frontend(1, 3)},
    "an endpoint more": {vip(1): frontend(1, 2, 3, 4)},
    "other endpoints, as many": {vip(1): frontend(5, 6, 7)},
    "the last endpoint": {vip(1, port=443): frontend()},
    "the first endpoint": {vip(5): frontend(1)},
    "stickiness": {vip(1): frontend(1, 2, 3, sticky=True), vip(4): frontend(1, 2, 3)},
    "a sticky one's endpoints": {
        vip(4): frontend(2, 3, sticky=True),
        vip(4, Family.V6): frontend(2, 3, 4, family=Family.V6, sticky=True),
    },
    "a service more": {
        vip(70): frontend(1, 2),
        vip(70, Family.V6): frontend(1, family=Family.V6),
    },
    "services less": {vip(1): None, vip(300): None, vip(2, Family.V6, Protocol.UDP): None},
    "one that is not there": {vip(999): None},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_a_change_leaves_what_a_fresh_load_of_the_outcome_gives(kernel: Kernel, changes):
    kernel.backend.reconcile(WANTED)
    kernel.backend.change(changes)
    outcome = {one: it for one, it in (WANTED | changes).items() if it is not None}
    assert kernel.backend.held() == outcome
    assert kernel.again().reconcile(outcome) == []


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_a_change_beside_others_work_is_not_told_as_a_repair(kernel: Kernel, changes):
    kernel.backend.reconcile(WANTED)
    kernel.be_busy()
    outcome = {one: it for one, it in (WANTED | changes).items() if it is not None}
    assert kernel.backend.reconcile(outcome) == []
    assert kernel.backend.held() == outcome
    kernel.be_busy()
    kernel.backend.change({vip(4): None})
    kernel.backend.reconcile({one: it for one, it in outcome.items() if one != vip(4)})
    assert kernel.backend.reconcile({one: it for one, it in outcome.items() if one != vip(4)}) == []


HARM = {
    "everything is lost": lambda kernel: kernel.lose_everything(),
    "an endpoint is lost": lambda kernel: kernel.lose_endpoint(vip(1)),
    "an endpoint of a sticky one is lost": lambda kernel: kernel.lose_endpoint(vip(4, Family.V6)),
    "a service is lost": lambda kernel: kernel.lose_service(vip(2, protocol=Protocol.UDP, port=53)),
    "a service is added": lambda kernel: kernel.add_service(vip(500, Family.V6)),
}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
def test_harm_is_put_right_and_told(kernel: Kernel, harm: Callable[[Kernel], None]):
    kernel.backend.reconcile(WANTED)
    before = kernel.content()
    harm(kernel)
    assert kernel.content() != before
    repairs = kernel.backend.reconcile(WANTED)
    assert repairs
    assert kernel.backend.held() == WANTED
    assert kernel.backend.reconcile(WANTED) == []


def test_harm_in_the_middle_of_changes_is_put_right_too(kernel: Kernel):
    kernel.backend.reconcile(WANTED)
    kernel.lose_endpoint(vip(1))
    kernel.backend.change({vip(2, protocol=Protocol.UDP, port=53): frontend(3)})
    wanted = WANTED | {vip(2, protocol=Protocol.UDP, port=53): frontend(3)}
    kernel.backend.reconcile(wanted)
    assert kernel.backend.held() == wanted


@pytest.mark.parametrize("kernel", REAL, indirect=True)
@pytest.mark.parametrize("harmed", [vip(1), vip(1, port=443)], ids=["what changes", "what stays"])
@pytest.mark.parametrize("harm", ["lose_endpoint", "lose_service"])
def test_a_change_amid_harm_puts_the_whole_right(kernel: Kernel, harm: str, harmed: ServicePort):
    kernel.backend.reconcile(WANTED)
    getattr(kernel, harm)(harmed)
    changes = {vip(1): frontend(2, 3), vip(4): frontend(1)}
    kernel.backend.change(changes)
    repairs = kernel.backend.reconcile(WANTED | changes)
    assert repairs or harmed == vip(1)
    assert kernel.backend.held() == WANTED | changes


@pytest.mark.parametrize("kernel", REAL, indirect=True)
def test_a_change_after_everything_was_lost_brings_everything_back_and_it_is_told(kernel: Kernel):
    kernel.backend.reconcile(WANTED)
    kernel.lose_everything()
    kernel.backend.change({vip(4): frontend(1)})
    assert kernel.backend.reconcile(WANTED | {vip(4): frontend(1)})
    assert kernel.backend.held() == WANTED | {vip(4): frontend(1)}


def test_a_change_of_what_another_program_took_away_is_carried_out_all_the_same(kernel: Kernel):
    kernel.backend.reconcile(WANTED)
    kernel.lose_everything()
    wanted = {one: it for one, it in WANTED.items() if one != vip(1)} | {vip(4): frontend(1)}
    kernel.backend.reconcile(wanted)
    assert kernel.backend.held() == wanted


def test_removal_leaves_nothing_of_ours_and_all_of_others(kernel: Kernel):
    before = kernel.content()
    kernel.backend.reconcile(WANTED)
    kernel.backend.remove()
    assert kernel.backend.held() == {}
    assert "netmgr-services" not in kernel.content()
    assert set(before.splitlines()) - set(kernel.content().splitlines()) == set()


@pytest.mark.parametrize("kernel", REAL, indirect=True)
def test_a_family_without_a_range_any_more_is_taken_away(kernel: Kernel):
    kernel.backend.reconcile(WANTED)
    left = {one: it for one, it in WANTED.items() if one.family is Family.V4}
    successor = kernel.again(VIP_RANGES[:1])
    assert successor.reconcile(left)
    assert successor.held() == left
    assert successor.reconcile(left) == []
    assert "fd00:200::" not in kernel.content()


def test_nothing_is_counted_before_anybody_comes(kernel: Kernel):
    kernel.backend.reconcile(WANTED)
    assert kernel.backend.hits() == dict.fromkeys(WANTED, 0)
