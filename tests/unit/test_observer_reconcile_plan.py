"""Whose an address is, by what cache and kernel say together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from netmgr.model import Attachment, AttachmentKey, PodRef
from netmgr.observer.cached_results import CachedResult
from netmgr.observer.kernel_check import HostEnd, KernelState, OnLinkRoute
from netmgr.observer.reconcile_plan import (
    STALE_SECONDS,
    CountedAddress,
    ReconcilePlan,
    ResultState,
    attachments,
    plan,
)
from netmgr.prefixes import Address

A, B = Address.parse("10.88.1.2"), Address.parse("fd00::2")
ELSEWHERE = Address.parse("203.0.113.9")
BRIDGE, UPLINK, VETH_1, VETH_2 = 4, 2, 11, 12
ENDS = {
    "veth1": HostEnd(VETH_1, BRIDGE),
    "veth2": HostEnd(VETH_2, BRIDGE),
    "eth0": HostEnd(UPLINK, 0),
}
LIMITS = (("all-in", 1_000_000),)
ON_BRIDGE = OnLinkRoute(BRIDGE, own=False)


def result(
    pod: str, *addresses: Address, links: Iterable[str] = ("cni0", "veth1"), at: float = 1.0
) -> CachedResult:
    key, owner = AttachmentKey(f"c-{pod}", "eth0"), PodRef("team", pod)
    return CachedResult(key, owner, addresses or (A,), tuple(links), at, LIMITS)


def look(
    results: Iterable[CachedResult],
    kernel: KernelState,
    before: ReconcilePlan | None = None,
    now: float = 0.0,
) -> ReconcilePlan:
    return plan(results, kernel, before.counted if before else {}, now)


def bridge(*ends: str, addresses: Iterable[Address] = (A, B)) -> KernelState:
    return KernelState({name: ENDS[name] for name in ends}, dict.fromkeys(addresses, ON_BRIDGE))


def ptp(**routes: Address) -> KernelState:
    owned = {address: OnLinkRoute(ENDS[link].number, own=True) for link, address in routes.items()}
    return KernelState(ENDS, owned)


def names(counted: Iterable[CountedAddress]) -> set[str]:
    return {one.pod.name for one in counted}


def test_a_pod_on_a_bridge_is_confirmed_by_its_port():
    after = look([result("a", A, B)], bridge("veth1"))
    key, owner = AttachmentKey("c-a", "eth0"), PodRef("team", "a")
    expected = Attachment(key, owner, (A, B), "veth1", "", rates=LIMITS)
    assert list(attachments(after.begins)) == [expected]
    assert after.states[ResultState.COUNTED] == 1


def test_a_pod_on_a_pair_of_its_own_is_confirmed_by_its_route():
    assert names(look([result("a", links=["veth2"])], ptp(veth2=A)).begins) == {"a"}


def test_a_result_without_links_needs_the_addresss_own_route_into_a_host_end():
    assert names(look([result("a", links=[])], ptp(veth1=A)).begins) == {"a"}
    assert look([result("a", links=[])], bridge("veth1")).begins == ()


def test_neither_a_file_nor_a_route_elsewhere_is_enough():
    for kernel in (
        KernelState(ENDS, {}),
        bridge(),
        bridge("veth2"),
        ptp(veth2=A),
        KernelState({}, {A: OnLinkRoute(VETH_1, own=True)}),
    ):
        after = look([result("a")], kernel)
        assert (after.begins, after.states[ResultState.STALE]) == ((), 1)


def test_an_address_without_a_route_on_a_link_is_nobodys_whatever_a_result_names():
    assert look([result("a", ELSEWHERE, links=["eth0"])], bridge("eth0")).begins == ()


def test_of_two_pods_that_claim_an_address_the_newer_has_it():
    older, newer = result("a", links=["veth1"]), result("b", links=["veth2"], at=2.0)
    after = look([newer, older], bridge("veth1", "veth2"))
    assert names(after.begins) == {"b"}
    assert after.states == {ResultState.COUNTED: 1, ResultState.STALE: 0, ResultState.SUPERSEDED: 1}


def test_a_second_look_at_the_same_changes_nothing():
    first = look([result("a", A, B)], bridge("veth1"))
    second = look([result("a", A, B)], bridge("veth1"), first)
    assert (second.begins, second.ends, second.counted) == ((), (), first.counted)


def test_an_account_ends_only_when_file_and_kernel_check_are_gone():
    first = look([result("a")], bridge("veth1"))
    assert look([], bridge("veth1"), first).ends == ()
    assert look([result("a")], bridge(), first).ends == ()
    assert names(look([], bridge(), first).ends) == {"a"}


def test_a_file_that_stays_behind_alone_keeps_its_account_for_a_while_and_no_longer():
    first = look([result("a")], bridge("veth1"))
    bare = look([result("a")], bridge(), first, now=100.0)
    assert look([result("a")], bridge(), bare, now=100.0 + STALE_SECONDS - 1).ends == ()
    assert names(look([result("a")], bridge(), bare, now=100.0 + STALE_SECONDS).ends) == {"a"}
    for files in ([result("a")], []):
        back = look(files, bridge("veth1"), bare, now=130.0)
        assert look([result("a")], bridge(), back, now=100.0 + STALE_SECONDS).ends == ()


def test_a_counter_that_lost_its_file_needs_the_kernel_to_name_its_link():
    """One of a release that kept no link may have any that has the address's own route."""
    first = look([result("a")], bridge("veth1"))
    assert names(look([], ptp(veth2=A), first).ends) == {"a"}
    (one,) = first.begins
    nameless = replace(one, attachment=replace(one.attachment, host_link=""))
    assert plan([], ptp(veth2=A), {A: nameless}, 0.0).ends == ()


def test_the_other_addresses_of_a_pod_are_looked_at_whatever_became_of_one():
    """One stays another's, the next is confirmed, or was lost."""
    first = look([result("a", A, B)], bridge("veth1"))
    after = look([result("a", A, B)], bridge("veth1", addresses=[B]), first)
    assert after.states[ResultState.COUNTED] == 1
    after = look([result("b", A, links=["veth2"], at=2.0)], bridge("veth2", addresses=[A]), first)
    assert {(one.pod.name, one.address) for one in after.ends} == {("a", A), ("a", B)}


def test_pods_of_the_same_name_are_told_apart_by_their_container():
    kernel = bridge("veth1", "veth2")
    one, other = result("a", A), result("a", B, links=["veth2"])
    other = replace(other, key=AttachmentKey("c-other", "eth0"))
    begun = look([one, other], kernel).begins
    assert [(each.key.container_id, each.addresses) for each in attachments(begun)] == [
        ("c-a", (A,)),
        ("c-other", (B,)),
    ]


def test_an_address_that_was_taken_over_changes_hands_in_one_look():
    first = look([result("a")], bridge("veth1"))
    after = look([result("a"), result("b", links=["veth2"], at=2.0)], bridge("veth2"), first)
    assert (names(after.ends), names(after.begins)) == ({"a"}, {"b"})
    assert after.counted[A].pod.name == "b"
    assert after.written_at == {A: 2.0}


def test_a_pod_whose_sandbox_was_made_anew_goes_on_under_its_new_link():
    first = look([result("a")], bridge("veth1"))
    after = look([result("a"), result("a", links=["veth2"], at=2.0)], bridge("veth2"), first)
    assert (after.begins, after.ends) == ((), ())
    assert after.counted[A].attachment.host_link == "veth2"
