"""Every benchmark still runs. With counts this small the figures mean nothing,
and none is judged."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

from netmgr.documents.node import Backend
from tests.bench import forwarding, growth
from tests.bench.__main__ import SUBJECTS
from tests.bench.report import EXPONENT, SMOKE, Figure, show, write

pytestmark = pytest.mark.root


@pytest.mark.slow
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_benchmark_yields_figures(
    subject: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = list(SUBJECTS[subject](SMOKE))
    show(figures)
    write(figures, tmp_path / "bench.json")
    written = json.loads((tmp_path / "bench.json").read_text())
    assert [one["what"] for one in written["figures"]] == [one.what for one in figures]
    assert all(figure.value > 0 for figure in figures if figure.unit != EXPONENT)
    assert len(capsys.readouterr().out.splitlines()) > len(figures) > 0


@pytest.mark.parametrize(("power", "is_within"), [(0.0, True), (1.0, True), (2.0, False)])
def test_an_exponent_is_that_of_the_power_by_which_a_cost_grows(
    power: float, *, is_within: bool
) -> None:
    costs = {size: 3 * float(size) ** power for size in (1, 10, 100, 1000)}
    fitted, last = growth.figures({"ADD": costs}, "pods")
    assert fitted.value == pytest.approx(power)
    assert last.value == pytest.approx(power)
    assert fitted.is_within is last.is_within is is_within
    assert fitted.what.startswith("ADD, 1, 10, 100, 1,000 pods: 3, ")


def test_a_constant_part_does_not_hide_the_growth_of_the_last_step() -> None:
    costs = {size: 1000.0 + 0.1 * size**2 for size in (1, 10, 100, 1000)}
    fitted, last = growth.figures({"start": costs}, "pods")
    assert fitted.is_within
    assert not last.is_within


def test_packets_that_do_not_arrive_are_no_measurement() -> None:
    source = Path(forwarding.__file__).with_name("flood.c")
    lossy = (
        "add table inet lossy; "
        "add chain inet lossy forward { type filter hook forward priority 0; }; "
        f"add rule inet lossy forward ip length {forwarding.IP_BYTES} numgen inc mod 100 0 drop"
    )
    with (
        forwarding.compiled(source) as flood,
        forwarding.node_of_ours(Backend.NFTABLES) as sender,
    ):
        assert sender.flood(flood, SMOKE.packets) > 0
        forwarding.run_in(sender.node, "nft", lossy)
        with pytest.raises(forwarding.PacketsLostError, match="1013 of 1024 packets"):
            sender.flood(flood, SMOKE.packets)


def test_the_tc_counter_counts_both_directions_of_the_internet_and_nothing_internal() -> None:
    source = Path(forwarding.__file__).with_name("flood.c")
    greeting, size = 20 + 8 + 1, SMOKE.packets * forwarding.IP_BYTES
    with (
        forwarding.compiled(source) as flood,
        forwarding.node_of_ours(Backend.NFTABLES) as sender,
    ):
        sender.fill(2)
        with sender.tc_counter() as counter:
            sender.flood(flood, SMOKE.packets, forwarding.INTERNAL)
            assert counter.read(sender.address) == (0, 0, 0, 0)
            sender.flood(flood, SMOKE.packets)
            counted = counter.read(sender.address)
    assert counted == (greeting + size, 1 + SMOKE.packets, greeting, 1)


def test_the_spread_is_that_of_the_quartiles_of_both_sides() -> None:
    figure = Figure.of("ADD", [1, 2, 3, 4, 100], "ms", median, ("ptp", [8, 8, 10, 16, 16]))
    assert (figure.quartiles, figure.reference_quartiles) == ((2, 4), (8, 16))
    assert figure.judged == pytest.approx(0.3)
