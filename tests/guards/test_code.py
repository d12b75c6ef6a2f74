"""The product's code: its imports, its log calls, and how much of it a reader must hold in mind."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from graphlib import TopologicalSorter

import pytest

from netmgr.logs import RESERVED
from tests.waiting import PATIENCE

pytestmark = pytest.mark.programs

PROGRAM_STARTER = "netmgr/programs.py"
FEWEST_LINES = 40

LIMIT = 12

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NESTING = (*FUNCTIONS, ast.Lambda)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
BRANCHES = (*LOOPS, ast.If, ast.IfExp, ast.ExceptHandler, ast.Match)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

VAGUE = {"found", "each", "one", "ones", "it", "thing", "things"}
GENERIC = {"data", "entries", "entry", "info", "item", "items", "result", "results"}
GENERIC |= {"value", "values", "what"}
MOST_GENERIC = 6.5
"""Bindings of generic names in a thousand lines."""

LEVELS = {"debug", "info", "warning", "error", "critical", "exception"}
WORDS = r"[a-z0-9]+(?:-[a-z0-9]+)*"
GRAMMAR = re.compile(rf"{WORDS}(?: [a-z_]+=(?:%s|%d|%\.\df|{WORDS}))*")


def test_one_module_starts_programs(product: dict[str, ast.Module]) -> None:
    starters = {name for name, tree in product.items() if any(_imported(tree, {"subprocess"}))}
    assert starters <= {PROGRAM_STARTER}


def imports(product: dict[str, ast.Module]) -> dict[str, set[str]]:
    """The product's modules that each of its modules imports, wherever in it."""
    dotted = {_dotted(path): path for path in product}
    return {
        path: {dotted[name] for name in _imported(tree, dotted)} - {path}
        for path, tree in product.items()
    }


def _dotted(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imported(tree: ast.Module, known: Collection[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in known else node.module for name in modules]
        yield from (name for name in names if name in known)


def test_no_module_imports_itself_in_a_circle(product: dict[str, ast.Module]) -> None:
    TopologicalSorter(imports(product)).prepare()


def test_a_short_module_has_more_than_one_importer(
    product: dict[str, ast.Module], texts: dict[str, str]
) -> None:
    importers = Counter(name for names in imports(product).values() for name in names)
    scraps = [
        name
        for name in product
        if importers[name] == 1
        and texts[name].count("\n") < FEWEST_LINES
        and not name.endswith("__init__.py")
    ]
    assert scraps == []


def test_no_test_waits_less_than_all_the_others(modules: dict[str, ast.Module]) -> None:
    """What comes about is waited for with one patience; what a test wants lost takes less than 1 s.

    The bench, the two-node cluster and the chaos run by themselves, and have their own.
    """
    waits = {"wait", "result", "join", "communicate", "run", "eventually"}
    apart = ("tests/bench/", "tests/e2e/", "tests/fleet/", "tests/fuzz/", "tests/chaos/")
    hasty = [
        f"{name}:{call.lineno}"
        for name, tree in modules.items()
        if name.startswith("tests/") and not name.startswith(apart)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and _called(call) in waits
        for seconds in _seconds(call)
        if 1 <= seconds < PATIENCE
    ]
    assert hasty == []


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _seconds(call: ast.Call) -> list[float]:
    """The bounds of time that a call is given as plain numbers."""
    keywords = [word.value for word in call.keywords if word.arg in ("timeout", "seconds")]
    given = [*call.args, *keywords] if _called(call) != "run" else keywords
    return [
        value.value
        for value in given
        if isinstance(value, ast.Constant) and type(value.value) in (int, float)
    ]


def test_what_a_test_names_of_a_module_is_there(
    product: dict[str, ast.Module], modules: dict[str, ast.Module]
) -> None:
    """Of slow tests too, which not every run runs. mypy sees to the product's own code."""
    dotted = {_dotted(path) for path in product}
    named = [
        (modules_by_name[node.value.id], node.attr, f"{path}:{node.lineno}")
        for path, tree in modules.items()
        if path.startswith("tests/") and (modules_by_name := _modules_by_name(tree, dotted))
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in modules_by_name
    ]
    missing = [
        f"{place}: {module} has no {attribute}"
        for module, attribute, place in named
        if not hasattr(importlib.import_module(module), attribute)
    ]
    assert not missing, "\n".join(missing)
    assert len(named) > len(dotted)


def _modules_by_name(tree: ast.Module, known: Collection[str]) -> dict[str, str]:
    """Those of the known modules that a module imports, by what it calls them."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if f"{node.module}.{alias.name}" in known
    }


def _loaded_by(code: str) -> set[str]:
    """Top-level packages that an interpreter of its own has loaded after `code`."""
    report = "import sys; print('loaded:', *{name.split('.')[0] for name in sys.modules})"
    command = [sys.executable, "-c", f"{code}\n{report}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("loaded:")[2].split())


def test_help_loads_nothing_that_only_a_command_needs() -> None:
    ask_for_help = """
import contextlib, sys
from netmgr.cli.main import main
sys.argv = ["netmgr", "--help"]
with contextlib.suppress(SystemExit):
    main()
"""
    heavy = {"pyroute2", "iptc", "kubernetes", "pydantic", "yaml", "netaddr", "prometheus_client"}
    assert _loaded_by(ask_for_help) & {*heavy, "sqlite3"} == set()


def test_the_exporter_loads_nothing_that_only_the_agent_needs() -> None:
    agents = {"pydantic", "pyroute2", "kubernetes", "iptc", "yaml", "sqlite3"}
    modules = "exporter.catalog, exporter.collector, exporter.server"
    assert _loaded_by(f"import {modules}") & agents == set()


def test_the_agent_does_without_pyroute2s_memory() -> None:
    modules = "netmgr.agent.main, netmgr.agent.roles, netmgr.cli.agent"
    assert _loaded_by(f"import {modules}") & {"pyroute2", "asyncio"} == set()


def test_nothing_of_the_agent_knows_of_an_api_server() -> None:
    modules = "netmgr.agent.main, netmgr.cli.agent, netmgr.cli.node, netmgr.cli.nat"
    assert _loaded_by(f"import {modules}") & {"kubernetes", "urllib3"} == set()


def complexity(node: ast.AST, depth: int = 0) -> int:
    """How much a reader must hold in mind: cognitive complexity, dense expressions included.

    Each branch or loop costs one, and one more for every level it is nested. A comprehension is a
    loop, and each of its further loops and conditions costs extra; so do ternaries and chains of
    `and` and `or`. A nested function or lambda nests what is in it. The length of a function is not
    judged: a long flat list of steps reads well.
    """
    return sum(_cost(child, depth) for child in ast.iter_child_nodes(node))


def _cost(node: ast.AST, depth: int) -> int:
    if isinstance(node, NESTING):
        return complexity(node, depth + 1)
    if isinstance(node, BRANCHES):
        return 1 + depth + complexity(node, depth + 1)
    if isinstance(node, COMPREHENSIONS):
        own = sum(1 + depth + number + len(loop.ifs) for number, loop in enumerate(node.generators))
        return own + complexity(node, depth + 1)
    if isinstance(node, ast.BoolOp):
        return 1 + complexity(node, depth)
    return complexity(node, depth)


def test_no_function_of_the_product_is_too_complex(product: dict[str, ast.Module]) -> None:
    costs = {
        f"{name}:{node.lineno} {node.name}": complexity(node)
        for name, tree in product.items()
        for node in ast.walk(tree)
        if isinstance(node, FUNCTIONS)
    }
    assert {name: cost for name, cost in costs.items() if cost > LIMIT} == {}


def test_variables_are_called_what_they_hold(
    product: dict[str, ast.Module], texts: dict[str, str]
) -> None:
    bound = [
        (word, f"{name}:{node.lineno}")
        for name, tree in product.items()
        for node in ast.walk(tree)
        for word in _bound(node)
    ]
    assert [(word, place) for word, place in bound if word in VAGUE] == []
    generic = [word for word, _ in bound if word in GENERIC]
    lines = sum(texts[name].count("\n") for name in product)
    assert len(generic) * 1000 / lines < MOST_GENERIC, Counter(generic)


def test_a_public_class_has_one_meaning(product: dict[str, ast.Module]) -> None:
    places: dict[str, list[str]] = {}
    for name, tree in product.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def _bound(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg


def calls(tree: ast.Module) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in LEVELS
        and ast.unparse(node.func.value) in ("log", "faults.log", "logger")
    ]


def test_every_log_call_is_an_event_name_and_values_by_key(product: dict[str, ast.Module]) -> None:
    logged = [(name, call) for name, tree in product.items() for call in calls(tree)]
    wrong = []
    for name, call in logged:
        text = str(call.args[0].value if isinstance(call.args[0], ast.Constant) else "")
        if not GRAMMAR.fullmatch(text):
            wrong.append(f"{name}:{call.lineno}: {text!r}")
        if RESERVED & {pair.partition("=")[0] for pair in text.split(" ")[1:]}:
            wrong.append(f"{name}:{call.lineno}: a key of every JSON line")
    assert not wrong, "\n".join(wrong)
    assert len(logged) > len(LEVELS)


def test_every_process_logs_by_the_one_formatter(
    product: dict[str, ast.Module], texts: dict[str, str]
) -> None:
    own = ("basicConfig", "StreamHandler", "dictConfig")
    users = [name for name in product if any(word in texts[name] for word in own)]
    assert users == ["netmgr/logs.py"]
