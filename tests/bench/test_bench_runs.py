"""Every benchmark still runs. With counts this small the figures mean nothing,
and none is judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.bench import forwarding
from tests.bench.__main__ import SUBJECTS
from tests.bench.report import EXPONENT, SMOKE, show, write

pytestmark = pytest.mark.root

DIFFERENCES = ("crowded", "starting")


@pytest.mark.slow
@pytest.mark.parametrize(
    "subject",
    # A difference of two times, and an idle agent's, may be nothing beside other tests.
    [pytest.param(name, marks=[pytest.mark.alone] * (name in DIFFERENCES)) for name in SUBJECTS],
)
def test_a_benchmark_yields_figures(
    subject: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = list(SUBJECTS[subject](SMOKE))
    show(figures)
    write(figures, tmp_path / "bench.json")
    written = json.loads((tmp_path / "bench.json").read_text())
    assert [one["what"] for one in written["figures"]] == [one.what for one in figures]
    # A number of events may be none.
    assert all(figure.value > 0 for figure in figures if figure.unit not in (EXPONENT, ""))
    assert len(capsys.readouterr().out.splitlines()) > len(figures) > 0


def test_packets_that_do_not_arrive_are_no_measurement() -> None:
    lossy = (
        "add table inet lossy; "
        "add chain inet lossy forward { type filter hook forward priority 0; }; "
        f"add rule inet lossy forward ip length {forwarding.IP_BYTES} numgen inc mod 100 0 drop"
    )
    with (
        forwarding.compiled() as flood,
        forwarding.node_of_ours(Backend.NFTABLES) as sender,
    ):
        assert sender.flood(flood, SMOKE.packets) > 0
        forwarding.run_in(sender.node, "nft", lossy)
        with pytest.raises(forwarding.PacketsLostError, match="1013 of 1024 packets"):
            sender.flood(flood, SMOKE.packets)


def test_the_tc_counter_counts_both_directions_of_the_internet_and_nothing_internal() -> None:
    greeting, size = 20 + 8 + 1, SMOKE.packets * forwarding.IP_BYTES
    with (
        forwarding.compiled() as flood,
        forwarding.node_of_ours(Backend.NFTABLES) as sender,
    ):
        sender.fill(2)
        with sender.tc_counter() as counter:
            address = sender.address(Family.V4)
            sender.flood(flood, SMOKE.packets, peers=forwarding.INTERNAL)
            assert counter.read(address) == (0, 0, 0, 0)
            sender.flood(flood, SMOKE.packets)
            counted = counter.read(address)
    assert counted == (greeting + size, 1 + SMOKE.packets, greeting, 1)
