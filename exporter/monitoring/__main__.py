"""Writes configs/prometheus and configs/grafana anew, or draws one of the dashboards.

python -m exporter.monitoring
python -m exporter.monitoring --draw netmgr-egress --prometheus localhost:9090 --hours 6 >egress.svg
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from exporter.monitoring.answers import Span, ask
from exporter.monitoring.dashboards import DASHBOARDS
from exporter.monitoring.files import files
from exporter.monitoring.picture import draw
from netmgr.errors import NetmgrError

SECONDS_PER_HOUR = 3600


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files below the directory that is named, or the picture to standard output; returns the exit code."""
    options = _parser().parse_args(arguments)
    if options.draw is None:
        _write(options.directory)
        return 0
    dashboard = next(dashboard for dashboard in DASHBOARDS if dashboard.uid == options.draw)
    now = time.time()
    try:
        answers = ask(dashboard, options.prometheus, Span(now - options.hours * SECONDS_PER_HOUR, now))
    except NetmgrError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(draw(dashboard, answers))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m exporter.monitoring",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--directory", metavar="PATH", type=Path, default=Path("configs"), help="default: configs")
    parser.add_argument("--draw", choices=[dashboard.uid for dashboard in DASHBOARDS], help="a dashboard, as SVG")
    parser.add_argument("--prometheus", metavar="HOST:PORT", default="localhost:9090", help="default: localhost:9090")
    parser.add_argument("--hours", type=float, default=6, help="how far back to draw; default: 6")
    return parser


def _write(directory: Path) -> None:
    for name, text in files().items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    sys.exit(main())
