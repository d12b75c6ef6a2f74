"""Which variant of iptables a machine is found to use, and that looking changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from netmgr.documents.node import Backend
from netmgr.errors import SetupError
from netmgr.kernel import netns
from netmgr.kernel.xtables import variant as variants
from netmgr.rules import choose
from netmgr.rules.choose import FILE_NAME, in_use, open_backend, remembered
from tests.contracts.conftest import run, settled

pytestmark = pytest.mark.root

LEGACY, NFT = Backend.IPTABLES_LEGACY, Backend.IPTABLES_NFT
PROGRAMS = {LEGACY: ("iptables-legacy", "ip6tables-legacy"), NFT: ("iptables-nft", "ip6tables-nft")}
OTHER = {LEGACY: NFT, NFT: LEGACY}
LEGACY_NAMES = [Path(f"/proc/thread-self/net/{name}_names") for name in ("ip_tables", "ip6_tables")]


@pytest.fixture(autouse=True)
def _namespace(namespaces) -> Iterator[None]:
    with netns.entered(namespaces("node").descriptor):
        yield


def in_both(variant: Backend, words: str) -> None:
    for program in PROGRAMS[variant]:
        run(f"{program} {words}")


def test_a_machine_without_rules_uses_nf_tables_and_looking_makes_no_table():
    assert in_use() is NFT
    assert [path.read_text(encoding="ascii") for path in LEGACY_NAMES] == ["", ""]
    assert run("nft list ruleset") == ""


@pytest.mark.parametrize("variant", [LEGACY, NFT])
@pytest.mark.parametrize("chain", ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"])
def test_the_kubelets_chain_decides_before_any_number_of_rules(variant, chain):
    for number in range(5):
        in_both(OTHER[variant], f"-A INPUT -m mark --mark {number}")
    run(f"{PROGRAMS[variant][1]} -t mangle -N {chain}")
    assert in_use() is variant


@pytest.mark.parametrize("variant", [LEGACY, NFT])
def test_without_a_kubelet_the_variant_with_more_rules_is_in_use(variant):
    in_both(OTHER[variant], "-A INPUT -m mark --mark 1")
    in_both(variant, "-t nat -N THEIRS")
    for number in range(2):
        in_both(variant, f"-t nat -A THEIRS -m mark --mark {number}")
    assert in_use() is variant


@pytest.mark.parametrize("variant", [LEGACY, NFT])
def test_chains_of_ours_decide_before_everything_so_that_lost_state_finds_them(
    variant, policy, tmp_path
):
    settled(open_backend(variant, tmp_path), policy).close()
    in_both(OTHER[variant], "-t mangle -N KUBE-KUBELET-CANARY")
    assert in_use() is variant


def test_the_choice_is_written_down_and_kept_when_the_machine_would_now_choose_otherwise(tmp_path):
    assert opened(Backend.IPTABLES, tmp_path) == NFT
    assert (tmp_path / FILE_NAME).read_text(encoding="ascii") == "iptables-nft\n"
    in_both(LEGACY, "-t mangle -N KUBE-KUBELET-CANARY")
    assert opened(Backend.IPTABLES, tmp_path) == opened(Backend.AUTO, tmp_path) == NFT
    assert remembered(tmp_path) == NFT


@pytest.mark.parametrize("choice", [Backend.NFTABLES, LEGACY])
def test_a_variant_that_the_document_names_is_followed_and_the_former_one_is_known(
    choice, tmp_path
):
    (tmp_path / FILE_NAME).write_text("iptables-nft\n", encoding="ascii")
    assert opened(choice, tmp_path) == choice
    assert remembered(tmp_path) == NFT


def test_a_kernel_that_cannot_is_told_from_the_start(tmp_path, monkeypatch):
    # A kernel without nft_compat is not to be had here; one that has no such revision of the
    # extension answers alike.
    monkeypatch.setattr(variants, "_SET_REVISION", 99)
    assert not choose.nft_is_supported()
    assert in_use() is LEGACY
    with pytest.raises(SetupError, match=r"lacks nft_compat or xt_set.*modprobe"):
        open_backend(NFT, tmp_path)


def opened(choice: Backend, state_dir: Path) -> str:
    backend = open_backend(choice, state_dir)
    backend.close()
    return backend.name
