"""`python -m tests.fuzz [TARGET…] --seconds N`: fuzz with coverage feedback.

`--input FILE` checks one input of a target again, without a coverage engine.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
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
    r"^#(\d+)\s+(?:INITED|NEW|REDUCE|pulse|RELOAD|DONE)\s+cov: (\d+)", re.MULTILINE
)
_EXECUTIONS = re.compile(r"^stat::number_of_executed_units: (\d+)", re.MULTILINE)
_LINES = 15
"""Of an engine's log that are shown."""


def main() -> int:
    """Fuzz, or check one input again; 1 if a property was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"any of {', '.join(NAMES)}")
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
        work = arguments.work.absolute()
        return max(fuzz(name, arguments.seconds, work) for name in chosen)
    if len(chosen) != 1:
        parser.error("--input needs one target")
    data = arguments.input.read_bytes()
    # Without a coverage engine; it raises what breaks the property.
    if chosen[0] == SANITIZED:
        of_launcher.run_sanitized([data])
    else:
        TARGETS[chosen[0]].run(data)
    _show(f"{chosen[0]}: the property holds")
    return 0


def fuzz(name: str, seconds: int, work: Path) -> int:
    """Run one target under its engine and show what that came to; 1 if its property was broken."""
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
    # An input of the corpus may break it, before there is any progress.
    progress = [tuple(map(int, match.groups())) for match in _PROGRESS.finditer(text)]
    inputs = sorted({*broken.iterdir()} - before)
    if not progress and not inputs:
        words = [f"{name}: the engine did not start, see {log}", *_explanation(text)]
        raise SystemExit("\n".join(words))
    (_, first), (last_execution, last) = (progress[0], progress[-1]) if progress else ((0, 0),) * 2
    executed = _EXECUTIONS.search(text)
    executions = int(executed[1]) if executed else last_execution
    width = max(map(len, NAMES))
    _show(f"{name:<{width}} {executions:>11,} executions, edges {first:>5} → {last:>5}")
    if not status and not inputs:
        return 0
    again = f".venv/bin/python -m tests.fuzz {name} --input {[*inputs, log][0]}"
    _show(*(f"  | {line}" for line in _explanation(text)), f"  broken; to see it again: {again}")
    return 1


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
