"""Budgets' rates beside a kernel that refuses them for a while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from netmgr.errors import KernelError
from netmgr.limits import tree
from netmgr.limits.budgets import NodeBudget
from netmgr.limits.rules import KnownPeers
from netmgr.limits.shaper import Shaper
from netmgr.limits.tree import Tree
from netmgr.model import Attachment, Traffic
from netmgr.prefixes import Prefix
from tests.kernel.flows import MEGABIT
from tests.kernel.granted import DAY, PLENTY, budget
from tests.kernel.namespaces import inside
from tests.lab import named_netns, wiring
from tests.unit.limit_cases import NOW, pod

pytestmark = pytest.mark.root

PEERS = KnownPeers((Prefix.parse("10.0.0.0/8"), Prefix.parse("fc00::/7")))
DEVICE = "netmgr-out"
PODS = (pod("lab", "a"), pod("other", "b"))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "node"
    named_netns.create(path)
    try:
        yield path
    finally:
        named_netns.delete(path)


@pytest.fixture
def shaper(node: Path) -> Iterator[Shaper]:
    with wiring.inside(node), closing(Shaper(PEERS, lambda _: {})) as made:
        made.apply(lambda: trees(PODS, 10))
        yield made


def held(rate: int) -> list[NodeBudget]:
    everyone, lab = budget("everyone", "*"), budget("lab", within="everyone")
    return [NodeBudget(one, rate * MEGABIT, 0, DAY, PLENTY) for one in (everyone, lab)]


def trees(pods: Sequence[Attachment], rate: int) -> dict[Traffic, Tree]:
    return {
        way: tree.tree([], pods, way, NOW, held(rate))
        for way in (Traffic.INTERNET_OUT, Traffic.INTERNET_IN)
    }


def replace_queue(node: Path, kind: str) -> None:
    """As another program would; only HTB has classes of ours."""
    inside(node, "tc", "qdisc", "del", "dev", DEVICE, "root")
    inside(node, "tc", "qdisc", "add", "dev", DEVICE, "root", "handle", "1:", kind)


def ceilings(node: Path) -> list[str]:
    shown = inside(node, "tc", "class", "show", "dev", DEVICE).split()
    return [word for before, word in pairwise(shown) if before == "ceil"]


def test_a_rate_that_the_kernel_refused_is_in_force_once_it_takes_it(
    node: Path, shaper: Shaper
) -> None:
    replace_queue(node, "pfifo")
    with pytest.raises(KernelError):
        shaper.retune(lambda: held(20))
    replace_queue(node, "htb")
    shaper.retune(lambda: held(20))
    assert ceilings(node) == ["20Mbit", "20Mbit"]


def test_rates_change_though_the_kernel_refused_that_pods_are_gone(
    node: Path, shaper: Shaper
) -> None:
    replace_queue(node, "pfifo")
    with pytest.raises(KernelError):
        shaper.apply(lambda: trees(PODS[1:], 10))
    replace_queue(node, "htb")
    shaper.retune(lambda: held(20))
    assert ceilings(node) == ["20Mbit"]
