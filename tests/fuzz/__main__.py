"""`python -m tests.fuzz [TARGET…] --seconds N`: fuzz with coverage feedback.

`--input FILE` checks one input of a target again, without a coverage engine.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import of_launcher
from tests.fuzz.of_launcher import SANITIZED
from tests.fuzz.target import CORPUS
from tests.fuzz.targets import TARGETS

NAMES = (SANITIZED, *TARGETS)
LIMITS = ("-timeout=25", "-rss_limit_mb=2048", "-mutate_depth=2")
"""Ours change several places at once: a longer series of mutations of one input leaves rubble."""

GRACE_SECONDS = 600
"""Beyond its time, until an engine that hangs is ended."""

_PROGRESS = re.compile(
    r"^#(\d+)\s+(?:INITED|NEW|REDUCE|pulse|RELOAD|DONE)\s+cov: (\d+) ft: (\d+)", re.MULTILINE
)
_EXECUTIONS = re.compile(r"^stat::number_of_executed_units: (\d+)", re.MULTILINE)
_LINES = 15
"""Of an engine's log that are shown."""


@dataclass(frozen=True)
class Outcome:
    """What a run of one target came to.

    Edges and features are libFuzzer's measures of coverage: with the corpus, and at the end.
    """

    executions: int
    edges: tuple[int, int]
    features: tuple[int, int]
    broken: Path | None
    """The input that broke the property; the engine's log where it wrote none."""
    report: Sequence[str]

    def __str__(self) -> str:
        (before, after), (fewer, more) = self.edges, self.features
        edges, features = f"{before:>5} → {after:>5}", f"{fewer:>5} → {more:>5}"
        return f"{self.executions:>11,} executions, edges {edges}, features {features}"


def main() -> int:
    """Fuzz, or check one input again; 1 if a property was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"any of {', '.join(NAMES)}; default: all"
    )
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument(
        "--work", type=Path, default=Path("build/fuzz"), help="where inputs are kept between runs"
    )
    parser.add_argument("--input", type=Path, help="one input of one target")
    arguments = parser.parse_args()
    chosen = arguments.targets or NAMES
    if unknown := set(chosen) - set(NAMES):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if arguments.input is None:
        return max(
            _fuzz_and_show(name, arguments.seconds, arguments.work.absolute()) for name in chosen
        )
    if len(chosen) != 1:
        parser.error("--input needs one target")
    check(chosen[0], arguments.input.read_bytes())
    _show(f"{chosen[0]}: the property holds")
    return 0


def check(name: str, data: bytes) -> None:
    """Check one input, without a coverage engine; raises what breaks the property."""
    if name == SANITIZED:
        of_launcher.run_sanitized([data])
    else:
        TARGETS[name].run(data)


def _fuzz_and_show(name: str, seconds: int, work: Path) -> int:
    outcome = fuzz(name, seconds, work)
    _show(f"{name:<{max(map(len, NAMES))}} {outcome}")
    if outcome.broken is None:
        return 0
    _show(*(f"  | {line}" for line in outcome.report))
    _show(
        f"  broken; to see it again: .venv/bin/python -m tests.fuzz {name} --input {outcome.broken}"
    )
    return 1


def fuzz(name: str, seconds: int, work: Path) -> Outcome:
    """Run one target under its engine."""
    known, broken = work / "corpus" / name, work / "broken" / name
    for folder in (known, broken):
        folder.mkdir(parents=True, exist_ok=True)
    before = {*broken.iterdir()}
    command = [
        *_engine(name, work),
        *(f"-max_total_time={seconds}", f"-max_len={_longest(name)}", *LIMITS),
        *("-print_final_stats=1", f"-artifact_prefix={broken}/", str(known), str(CORPUS / name)),
    ]
    log = work / f"{name}.log"
    with log.open("wb") as output:
        status = subprocess.run(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=seconds + GRACE_SECONDS,
        ).returncode
    text = log.read_text(errors="replace")
    progress = [tuple(map(int, match.groups())) for match in _PROGRESS.finditer(text)]
    found = sorted({*broken.iterdir()} - before)
    if not progress and not found:
        raise SystemExit(
            "\n".join([f"{name}: the engine did not start, see {log}", *_explanation(text)])
        )
    if status and not found:
        found = [log]
    executed = _EXECUTIONS.search(text)
    # An input of the corpus may break it, before there is any progress.
    first, last = (progress[0], progress[-1]) if progress else ((0, 0, 0), (0, 0, 0))
    return Outcome(
        int(executed[1]) if executed else last[0],
        (first[1], last[1]),
        (first[2], last[2]),
        found[0] if found else None,
        _explanation(text),
    )


def _engine(name: str, work: Path) -> list[str]:
    if name != SANITIZED:
        return [sys.executable, "-m", "tests.fuzz.engine", TARGETS[name].check.__module__, name]
    program = work / name
    of_launcher.build(program, *of_launcher.SANITIZERS, "-fsanitize=fuzzer", compiler="clang")
    return [str(program)]


def _longest(name: str) -> int:
    return of_launcher.LONGEST if name == SANITIZED else TARGETS[name].longest


def _explanation(text: str) -> list[str]:
    """The lines of a log that say what was broken."""
    lines = [line for line in text.splitlines() if not line.startswith(("#", "INFO"))]
    begin = next(
        (
            at
            for at, line in enumerate(lines)
            if "Traceback" in line or "Assertion" in line or "ERROR" in line
        ),
        0,
    )
    end = next(
        (at for at, line in enumerate(lines) if line.startswith("==") and at > begin), len(lines)
    )
    return lines[begin:end][-_LINES:]


def _show(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
