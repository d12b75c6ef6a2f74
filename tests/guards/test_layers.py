"""Who may import what, and what a command or a process may load before it has anything to do."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.programs

PROGRAM_STARTER = "netmgr/programs.py"


def test_the_layers_hold(top: Path) -> None:
    # Not in this process: it would reconfigure every logger that later tests listen to.
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [linter, "--no-cache"], cwd=top, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _imports(tree: ast.Module) -> Iterator[str]:
    """Dotted names of all that a module imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_one_module_starts_programs(product: dict[str, ast.Module]) -> None:
    starters = {
        name
        for name, tree in product.items()
        for imported in _imports(tree)
        if imported.split(".")[0] == "subprocess"
    }
    assert starters <= {PROGRAM_STARTER}


def test_nothing_passes_through_a_shell(product: dict[str, ast.Module]) -> None:
    calls = [
        f"{name}:{node.lineno}"
        for name, tree in product.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and (_asks_for_a_shell(node) or _is_os_system(node))
    ]
    assert calls == []


def _asks_for_a_shell(call: ast.Call) -> bool:
    return any(keyword.arg == "shell" for keyword in call.keywords)


def _is_os_system(call: ast.Call) -> bool:
    return ast.unparse(call.func) in {"os.system", "os.popen"}


def _loaded_by(code: str) -> set[str]:
    """Top-level packages that an interpreter of its own has loaded after `code`."""
    report = "import sys; print('loaded:', *{name.split('.')[0] for name in sys.modules})"
    command = [sys.executable, "-c", f"{code}\n{report}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("loaded:")[2].split())


def test_help_loads_nothing_that_only_a_command_needs() -> None:
    ask_for_help = """
import sys
from netmgr.cli.main import main
sys.argv = ["netmgr", "--help"]
try:
    main()
except SystemExit:
    pass
"""
    heavy = {
        "pyroute2",
        "iptc",
        "kubernetes",
        "pydantic",
        "yaml",
        "netaddr",
        "prometheus_client",
        "sqlite3",
    }
    assert _loaded_by(ask_for_help) & heavy == set()


@pytest.mark.parametrize("module", ["exporter.catalog", "exporter.collector", "exporter.server"])
def test_the_exporter_loads_nothing_that_only_the_agent_needs(module: str) -> None:
    agents = {"pydantic", "pyroute2", "kubernetes", "iptc", "yaml", "sqlite3"}
    assert _loaded_by(f"import {module}") & agents == set()


@pytest.mark.parametrize(
    "module", ["netmgr.agent.main", "netmgr.cli.agent", "netmgr.cli.node", "netmgr.cli.nat"]
)
def test_nothing_of_the_agent_knows_of_an_api_server(module: str) -> None:
    assert _loaded_by(f"import {module}") & {"kubernetes", "urllib3"} == set()
