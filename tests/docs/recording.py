"""Records a real lab in a terminal as an animated picture: `python -m tests.docs.recording`.

The picture shows what the program prints, when it prints it. It has no script: lines appear and
scroll by CSS animations, and whoever prefers reduced motion sees the last screen at once.
"""

from __future__ import annotations

import os
import pty
import re
import sys
import time
from pathlib import Path

from netmgr import drawing

TARGET = Path(__file__).parents[2] / "docs/lab.svg"
COMMAND = "make lab"
RUN = [str(Path(sys.executable).with_name("netmgr")), "lab", "run"]
COLUMNS, ROWS = 106, 26
LINE, CHARACTER, MARGIN = 18.0, 8.4, 16.0
TYPED_SECONDS, READ_SECONDS = 1.2, 0.12
"""How long typing the command takes, and how much longer each line may be read than it took."""

PAPER, INK, FAINT, GREEN = "#16181d", "#e6e6e6", "#9aa0a6", "#7ee2a8"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

Line = tuple[float, str]


def record() -> list[Line]:
    """Seconds since the start, and text, of each line."""
    began = time.monotonic()
    pid, terminal = pty.fork()
    if not pid:
        os.environ.update(COLUMNS=str(COLUMNS), TERM="dumb", NO_COLOR="1")
        os.execv(RUN[0], RUN)  # noqa: S606  the lab itself
    lines: list[Line] = []
    with os.fdopen(terminal, errors="replace", newline="\n") as output:
        # The kernel reports EIO, not an end of file, once the other side is closed.
        try:
            for line in output:
                text = ESCAPES.sub("", line).rstrip()[:COLUMNS]
                lines.append((time.monotonic() - began, text))
        except OSError:
            pass
    _, status = os.waitpid(pid, 0)
    if status:
        raise SystemExit("\n".join(text for _, text in lines))
    return lines


def shown_at(lines: list[Line]) -> list[Line]:
    """When each line appears: as it was printed, but for time to read."""
    moment, before, found = TYPED_SECONDS, 0.0, [(0.0, f"$ {COMMAND}")]
    for at, text in lines:
        moment += max(at - before, READ_SECONDS if text else 0.0)
        before = at
        found.append((moment, text))
    return found


def picture(lines: list[Line]) -> str:
    width, height = COLUMNS * CHARACTER + 2 * MARGIN, ROWS * LINE + 2 * MARGIN
    texts = []
    for number, (at, text) in enumerate(lines):
        if not text:
            continue
        colour = GREEN if "✓" in text or "every byte" in text else INK
        colour = FAINT if text.startswith("  netmgr_") else colour
        y = MARGIN + (number + 0.75) * LINE
        delay = f"animation-delay:{at:.2f}s"
        texts.append(drawing.text(MARGIN, y, text, fill=colour, style=delay, **{"class": "l"}))
    rolled = max(0, len(lines) - ROWS)
    steps = "".join(
        f"{100 * lines[ROWS + number][0] / lines[-1][0]:.2f}%"
        f"{{transform:translateY({-(number + 1) * LINE:g}px)}}"
        for number in range(rolled)
    )
    style = (
        f".l{{opacity:0;animation:show 0s forwards}}@keyframes show{{to{{opacity:1}}}}"
        f"@keyframes roll{{0%{{transform:none}}{steps}}}"
        f".r{{animation:roll {lines[-1][0]:.2f}s step-end forwards}}"
        "@media (prefers-reduced-motion:reduce){.l{animation:none;opacity:1}"
        f".r{{animation:none;transform:translateY({-rolled * LINE:g}px)}}}}"
    )
    inner = drawing.element("g", "\n".join(["", *texts, ""]), **{"class": "r"})
    screen = drawing.element(
        "svg",
        inner,
        x=0,
        y=0,
        width=width,
        height=height - MARGIN / 2,
        font_size=14,
        font_family=drawing.MONOSPACE,
    )
    return drawing.document(
        "A lab: what pods sent beside what was counted",
        (width, height),
        [drawing.element("style", style), screen],
        font_size=14,
        paper=PAPER,
    )


def main() -> None:
    """Record, and write the picture."""
    TARGET.write_text(picture(shown_at(record())), encoding="utf-8")


if __name__ == "__main__":
    main()
