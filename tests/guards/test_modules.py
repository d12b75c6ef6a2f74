"""What one must read together is one module: no imports in circles,
and no scrap with one importer."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.programs

FEWEST_LINES = 40


def imports(product: dict[str, ast.Module]) -> dict[str, set[str]]:
    """The product's modules that each of its modules imports, wherever in it."""
    dotted = {_dotted(path): path for path in product}
    return {
        path: {dotted[name] for name in _imported(tree, dotted)} - {path}
        for path, tree in product.items()
    }


def _dotted(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imported(tree: ast.Module, known: dict[str, str]) -> Iterator[str]:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in known else node.module for name in modules]
        yield from (name for name in names if name in known)


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Sets of modules that reach each other along their imports."""
    reached = {path: _reached(path, graph) for path in graph}
    together = {
        frozenset(other for other in reached[path] if path in reached[other]) for path in graph
    }
    return [set(modules) for modules in together if modules]


def _reached(start: str, graph: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    pending = [*graph[start]]
    while pending:
        path = pending.pop()
        if path not in found:
            found.add(path)
            pending += graph[path]
    return found


def scraps(graph: dict[str, set[str]], lines: dict[str, int]) -> list[str]:
    importers = [other for others in graph.values() for other in others]
    return [
        path
        for path in graph
        if importers.count(path) == 1
        and lines[path] < FEWEST_LINES
        and not path.endswith("__init__.py")
    ]


def test_no_module_imports_itself_in_a_circle(product: dict[str, ast.Module]) -> None:
    assert circles(imports(product)) == []


def test_a_short_module_has_more_than_one_importer(
    product: dict[str, ast.Module], texts: dict[str, str]
) -> None:
    lines = {path: texts[path].count("\n") for path in product}
    assert scraps(imports(product), lines) == []


def test_the_graph_shows_both() -> None:
    sources = {
        "netmgr/a.py": "from netmgr import b\nfrom netmgr.d import text",
        "netmgr/b.py": "def later():\n    import netmgr.a",
        "netmgr/c.py": "import netmgr.b\nimport os",
        "netmgr/d.py": "import netmgr.a",
    }
    graph = imports({path: ast.parse(source) for path, source in sources.items()})
    assert circles(graph) == [{"netmgr/a.py", "netmgr/b.py", "netmgr/d.py"}]
    assert scraps(graph, dict.fromkeys(sources, 1)) == ["netmgr/d.py"]
