"""`python -m exporter.monitoring`: write configs/prometheus and configs/grafana anew."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from exporter.monitoring.files import files


def main(arguments: Sequence[str] | None = None) -> int:
    """Write every file below the directory that is named; the exit code is 0."""
    parser = argparse.ArgumentParser(prog="python -m exporter.monitoring", description=__doc__)
    parser.add_argument("--directory", metavar="PATH", type=Path, default=Path("configs"))
    directory: Path = parser.parse_args(arguments).directory
    for name, text in files().items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
