"""Every benchmark still runs. With counts this small the figures mean nothing,
and none is judged."""

from __future__ import annotations

import pytest

from tests.bench.__main__ import SUBJECTS
from tests.bench.report import SMOKE, show

pytestmark = pytest.mark.root


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_benchmark_yields_figures(subject: str, capsys: pytest.CaptureFixture[str]):
    figures = list(SUBJECTS[subject](SMOKE))
    show(figures)
    assert all(figure.value > 0 for figure in figures)
    assert len(capsys.readouterr().out.splitlines()) > len(figures) > 0
