"""Whose an address is, by what cache and kernel say together."""

from __future__ import annotations

from collections.abc import Iterable

from netmgr.model import AttachmentKey, PodRef
from netmgr.observer.claims import Claim
from netmgr.observer.evidence import HostEnd, Kernel, OnLinkRoute
from netmgr.observer.judge import STALE_SECONDS, Held, Standing, Verdict, attachments, judge
from netmgr.prefixes import Address

A, B = Address.parse("10.88.1.2"), Address.parse("fd00::2")
ELSEWHERE = Address.parse("203.0.113.9")
BRIDGE, UPLINK, VETH_1, VETH_2 = 4, 2, 11, 12
ENDS = {"veth1": HostEnd(VETH_1, BRIDGE), "veth2": HostEnd(VETH_2, BRIDGE), "eth0": HostEnd(UPLINK, 0)}
ON_BRIDGE = OnLinkRoute(BRIDGE, own=False)


def claim(pod: str, *addresses: Address, links: Iterable[str] = ("cni0", "veth1"), at: float = 1.0) -> Claim:
    return Claim(AttachmentKey(f"c-{pod}", "eth0"), PodRef("team", pod), addresses or (A,), tuple(links), at)


def look(claims: Iterable[Claim], kernel: Kernel, before: Verdict | None = None, now: float = 0.0) -> Verdict:
    return judge(claims, kernel, before.held if before else {}, now)


def bridge(*ends: str, addresses: Iterable[Address] = (A, B)) -> Kernel:
    return Kernel({name: ENDS[name] for name in ends}, dict.fromkeys(addresses, ON_BRIDGE))


def ptp(**routes: Address) -> Kernel:
    return Kernel(ENDS, {address: OnLinkRoute(ENDS[link].number, own=True) for link, address in routes.items()})


def names(held: Iterable[Held]) -> set[str]:
    return {one.pod.name for one in held}


def test_a_pod_on_a_bridge_is_borne_out_by_its_port():
    verdict = look([claim("a", A, B)], bridge("veth1"))
    assert [(pod.addresses, pod.host_link) for pod in attachments(verdict.begins)] == [((A, B), "veth1")]
    assert verdict.standings[Standing.COUNTED] == 1


def test_a_pod_on_a_pair_of_its_own_is_borne_out_by_its_route():
    assert names(look([claim("a", links=["veth2"])], ptp(veth2=A)).begins) == {"a"}


def test_a_result_without_links_needs_the_addresss_own_route_into_a_host_end():
    assert names(look([claim("a", links=[])], ptp(veth1=A)).begins) == {"a"}
    assert look([claim("a", links=[])], bridge("veth1")).begins == ()


def test_neither_a_file_nor_a_route_elsewhere_is_enough():
    for kernel in (
        Kernel(ENDS, {}),
        bridge(),
        bridge("veth2"),
        ptp(veth2=A),
        Kernel({}, {A: OnLinkRoute(VETH_1, own=True)}),
    ):
        verdict = look([claim("a")], kernel)
        assert (verdict.begins, verdict.standings[Standing.STALE]) == ((), 1)


def test_an_address_without_a_route_on_a_link_is_nobodys_whatever_a_result_names():
    assert look([claim("a", ELSEWHERE, links=["eth0"])], bridge("eth0")).begins == ()


def test_of_two_pods_that_claim_an_address_the_newer_has_it():
    older, newer = claim("a", links=["veth1"]), claim("b", links=["veth2"], at=2.0)
    verdict = look([newer, older], bridge("veth1", "veth2"))
    assert names(verdict.begins) == {"b"}
    assert verdict.standings == {Standing.COUNTED: 1, Standing.STALE: 0, Standing.SUPERSEDED: 1}


def test_a_second_look_at_the_same_changes_nothing():
    first = look([claim("a", A, B)], bridge("veth1"))
    second = look([claim("a", A, B)], bridge("veth1"), first)
    assert (second.begins, second.ends, second.held) == ((), (), first.held)


def test_an_account_ends_only_when_file_and_evidence_are_gone():
    first = look([claim("a")], bridge("veth1"))
    assert look([], bridge("veth1"), first).ends == ()
    assert look([claim("a")], bridge(), first).ends == ()
    assert names(look([], bridge(), first).ends) == {"a"}


def test_a_file_that_stays_behind_alone_keeps_its_account_for_a_while_and_no_longer():
    first = look([claim("a")], bridge("veth1"))
    bare = look([claim("a")], bridge(), first, now=100.0)
    assert look([claim("a")], bridge(), bare, now=100.0 + STALE_SECONDS - 1).ends == ()
    assert names(look([claim("a")], bridge(), bare, now=100.0 + STALE_SECONDS).ends) == {"a"}
    back = look([claim("a")], bridge("veth1"), bare, now=130.0)
    assert look([claim("a")], bridge(), back, now=100.0 + STALE_SECONDS).ends == ()


def test_an_address_that_was_taken_over_changes_hands_in_one_look():
    first = look([claim("a")], bridge("veth1"))
    verdict = look([claim("a"), claim("b", links=["veth2"], at=2.0)], bridge("veth2"), first)
    assert (names(verdict.ends), names(verdict.begins)) == ({"a"}, {"b"})
    assert verdict.held[A].pod.name == "b"
    assert verdict.began == {A: 2.0}


def test_a_pod_whose_sandbox_was_made_anew_goes_on_under_its_new_link():
    first = look([claim("a")], bridge("veth1"))
    verdict = look([claim("a"), claim("a", links=["veth2"], at=2.0)], bridge("veth2"), first)
    assert (verdict.begins, verdict.ends) == ((), ())
    assert verdict.held[A].attachment.host_link == "veth2"
