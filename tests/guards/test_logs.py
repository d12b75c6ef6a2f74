"""Every log call keeps to one grammar, `event-name key=value …`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from netmgr.logs import RESERVED

ROOT = Path(__file__).parents[2]
LEVELS = {"debug", "info", "warning", "error", "critical", "exception"}
WORDS = r"[a-z0-9]+(?:-[a-z0-9]+)*"
GRAMMAR = re.compile(rf"{WORDS}(?: [a-z_]+=(?:%s|%d|%\.\df|{WORDS}))*")
FILES = sorted(
    path for room in ("netmgr", "exporter", "cni") for path in (ROOT / room).rglob("*.py")
)


def calls(path: Path) -> list[ast.Call]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in LEVELS
        and ast.unparse(node.func.value) in ("log", "faults.log", "logger")
    ]


def test_every_event_is_named_and_every_value_has_a_key() -> None:
    wrong = []
    for path in FILES:
        for call in calls(path):
            text = (
                call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else ""
            )
            if not GRAMMAR.fullmatch(str(text)):
                wrong.append(f"{path.relative_to(ROOT)}:{call.lineno}: {text!r}")
            if RESERVED & {pair.partition("=")[0] for pair in str(text).split(" ")[1:]}:
                wrong.append(f"{path.relative_to(ROOT)}:{call.lineno}: a key of every JSON line")
    assert not wrong, "\n".join(wrong)
    assert sum(len(calls(path)) for path in FILES) > len(LEVELS)


def test_every_process_logs_by_the_one_formatter() -> None:
    own = ("basicConfig", "StreamHandler", "dictConfig")
    users = [
        path.name for path in FILES if any(name in path.read_text(encoding="utf-8") for name in own)
    ]
    assert users == ["logs.py"]
